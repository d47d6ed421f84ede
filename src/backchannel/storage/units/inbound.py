"""Units about what comes from people: inbound messages and chat commands."""

from __future__ import annotations

import asyncio
from functools import partial

from backchannel.core.commands import Command, CommandReply, Standing
from backchannel.core.keys import SessionKey
from backchannel.storage.transactions import commands, idempotency, inbound, sessions
from backchannel.storage.transactions.commands import Asker, Judge
from backchannel.storage.transactions.inbound import Arrival, Taken
from backchannel.storage.tx import Tx
from backchannel.storage.units.base import Units


class InboundUnits(Units):
    """Messages from chats."""

    def take_inbound(self, arrival: Arrival, *, start: bool) -> asyncio.Future[Taken]:
        """Handle an inbound message, once for ever; with `start`, start its run when its lane is free."""
        number = self.number if start else None
        return self._driver.write(
            partial(
                inbound.take, arrival=arrival, scheme=self.scheme, outlets=self.outlets, number=number, now=self._now
            )
        )

    async def carry_out(
        self,
        command: Command | CommandReply,
        key: SessionKey,
        standing: Standing,
        agent_model: str | None,
        *,
        judge: Judge | None = None,
        expected_session_id: str | None = None,
        idempotency_key: str | None = None,
        digest: str | None = None,
    ) -> str:
        """Do what a chat command asks of a session, once for each key; returns what is answered.

        Raises:
            IdempotencyConflict: the key stands for something else.
            SessionIdReplaced: the session has another transcript by now.
        """
        asker = Asker(standing=standing, agent_model=agent_model, judge=judge, at_webchat=True)

        def unit(tx: Tx) -> str:
            def do() -> str:
                if (session := sessions.find(tx, str(key))) is not None:
                    sessions.check_current(session, expected_session_id)
                if isinstance(command, CommandReply):
                    return command.text
                return commands.carry_out(tx, command, key, self.scheme, asker, now)

            return idempotency.once(tx, idempotency_key, digest, now, do)

        now = self._now
        return await self._driver.write(unit)
