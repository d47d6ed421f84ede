"""Inbound: an event of a channel becomes a run, a note or a command, in one unit, or is ignored.

The rules are in `core/inbound.py`, the unit in `storage/transactions/inbound.py`. This joins them with the settings
of the channel and the parts of the gateway. The signature is checked before anything is read.
"""

from __future__ import annotations

from dataclasses import replace

from backchannel.channels.bridge import is_signed
from backchannel.config.schema_doors import ChannelSettings
from backchannel.core.caller_keys import CallerKeys
from backchannel.core.commands import Command, CommandName, CommandReply, Standing, may_use
from backchannel.core.inbound import Admission, InboundEvent, Routing, Verdict, admit, parse_event, route
from backchannel.core.keys import SessionKey
from backchannel.core.send_policy import SendDecision
from backchannel.core.sessions import Session
from backchannel.core.shapes import Answer
from backchannel.errors import BadSignature, NotFound, UnknownAgent, UnknownModel
from backchannel.runtime.runtime import Runtime
from backchannel.storage.transactions.inbound import Arrival, Taken
from backchannel.tools.base import Parts


class InboundAnswer(Answer, frozen=True, kw_only=True):
    """What the far end hears of an event that it posted."""

    ok: bool
    verdict: str
    session_key: str
    run_id: str | None = None
    command: str | None = None
    reason: str | None = None
    """Why it was ignored or only recorded."""
    repeat: bool = False
    """Whether the same event had come before; it was handled then."""


class Inbound:
    """Takes what channels hand in."""

    def __init__(self, parts: Parts, runtime: Runtime) -> None:
        self._parts = parts
        self._runtime = runtime
        session = parts.config.session
        self._routing = Routing(parts.scheme, session.identity_links, parts.config.bindings)

    async def post(self, channel: str, body: bytes, signature: str | None) -> InboundAnswer:
        """Take an event that was posted to a channel.

        Raises:
            NotFound: there is no such channel.
            BadSignature: the body is not signed with its secret.
            InvalidRequest: it is no event, or one for another channel, or too old.
            Unavailable: nothing was taken, and it may be posted again.
        """
        settings = self._settings(channel)
        if not is_signed(settings.secret, body, signature):
            raise BadSignature("X-Backchannel-Signature: it does not fit this body (sha256=<HMAC of the body, in hex>)")
        return self._show(await self.take(parse_event(body, channel=channel, now_ms=self._parts.clock.now_ms())))

    async def take(self, event: InboundEvent) -> Taken:
        """Handle an event, once for ever."""
        settings, routed = self._settings(event.channel), route(event, self._routing)

        guard = self._runtime.guard

        def judge(session: Session | None) -> SendDecision:
            return guard.decide_on(routed.destination, session.send_policy if session else None)

        def decide(session: Session | None) -> Admission:
            policy = judge(session)
            admission = admit(event, settings, policy)
            if admission.verdict in (Verdict.ANSWER, Verdict.RECORD):  # the others the policy has no say in
                guard.note(policy, str(routed.key))
            return self._checked(admission, routed.agent)

        model = self._agent_model(routed.agent)
        return await self._runtime.take(
            Arrival(event=event, routed=routed, admit=decide, agent_model=model, judge=judge)
        )

    def _settings(self, channel: str) -> ChannelSettings:
        settings = self._parts.config.channels.get(channel)
        if settings is None:
            raise NotFound(f"no channel {channel[:64]!r} is configured")
        return settings

    def _checked(self, admission: Admission, agent: str) -> Admission:
        """Answer a command that names a model which cannot be used with why."""
        command = admission.command
        if isinstance(command, Command):
            return replace(admission, command=self._with_model(command, agent))
        return admission

    def _with_model(self, command: Command, agent: str) -> Command | CommandReply:
        """Check the model that a command names, or list those there are, if it asks for that."""
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
        return command

    async def carry_out(
        self,
        written: Command | CommandReply,
        key: SessionKey,
        standing: Standing,
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
            written = self._with_model(written, key.agent)
        return await self._parts.store.carry_out(
            written,
            key,
            standing,
            self._agent_model(key.agent),
            judge=self._runtime.guard.decide,
            expected_session_id=expected_session_id,
            idempotency_key=idempotency_key,
            digest=digest,
        )

    def _agent_model(self, agent: str) -> str | None:
        if self._parts.agents.is_function(agent):
            return None
        try:
            return self._parts.agents.get(agent).model
        except UnknownAgent:
            return None

    def _show(self, taken: Taken) -> InboundAnswer:
        outcome = taken.outcome
        did_nothing = outcome.run_id is None and outcome.command is None
        return InboundAnswer(
            ok=True,
            verdict=outcome.verdict.value,
            session_key=CallerKeys(self._parts.scheme, None).show(SessionKey.stored(outcome.session_key)),
            run_id=outcome.run_id,
            command=outcome.command,
            reason=outcome.reason if did_nothing else None,
            repeat=taken.is_repeat,
        )
