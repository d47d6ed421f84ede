"""Chat commands: checked against the known models and agents, and carried out.

`core/commands/commands.py` lists them, and the store carries them out.
"""

from __future__ import annotations

from dataclasses import replace

from backchannel.core.commands.commands import Command, CommandName, CommandReply, Rank, may_use
from backchannel.core.keys import SessionKey
from backchannel.errors import UnknownAgent, UnknownModel
from backchannel.tools.base import Parts


class ChatCommands:
    """The chat commands of a gateway."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def carry_out(
        self,
        written: Command | CommandReply,
        key: SessionKey,
        standing: Rank,
        *,
        expected_session_id: str | None = None,
        idempotency_key: str | None = None,
        digest: str | None = None,
    ) -> str:
        """Carry out a command that an operator wrote, once for each key; returns what is answered.

        Raises:
            IdempotencyConflict, SessionIdReplaced, Unavailable: nothing was done.
        """
        allowed = may_use(written.spec, standing)
        if not allowed.allowed:
            written = CommandReply(written.name, allowed.reason)
        elif isinstance(written, Command):
            written = self.with_model(written, key.agent)
        return await self._parts.store.carry_out(
            written,
            key,
            standing,
            self.agent_model(key.agent),
            policy=self._parts.config.session.send_policy,
            expected_session_id=expected_session_id,
            idempotency_key=idempotency_key,
            digest=digest,
        )

    def with_model(self, command: Command, agent: str) -> Command | CommandReply:
        """Check the model that a command names, or list those there are, if it asks for that.

        A model that cannot be used makes it a reply that says why.
        """
        if command.name is CommandName.COMPACT and command.word != "undo" and self._parts.agents.is_function(agent):
            return CommandReply(command.name, f"The agent {agent!r} is a function and asks no model.")
        if command.name is CommandName.MODEL and command.word == "list":
            return replace(command, choices=self._parts.models.known_here())
        if command.name is not CommandName.MODEL or command.argument is None:
            return command
        if self._parts.agents.is_function(agent):
            return CommandReply(command.name, f"The agent {agent!r} is a function and asks no model.")
        try:
            self._parts.models.check(command.argument)
        except UnknownModel as error:
            return CommandReply(command.name, error.message)
        return replace(command, doubt=self._parts.models.doubt(command.argument))

    def agent_model(self, agent: str) -> str | None:
        """Name the model of an agent, for `/status` and `/model`; None if it asks none."""
        if self._parts.agents.is_function(agent):
            return None
        try:
            return self._parts.agents.get(agent).model
        except UnknownAgent:
            return None
