"""The send policy, asked inside the unit that accepts a message."""

from __future__ import annotations

import structlog

from backchannel.core.facts import PolicyShadowed
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.policy.send_policy import Destination, SendDecision, SendPolicySettings, may_send
from backchannel.core.sessions import Session
from backchannel.errors import PolicyDenied
from backchannel.runtime.events import Event

log = structlog.get_logger(__name__)
_ANYWHERE = Destination(SessionKey("", ()))


class SendGuard:
    """Refuses messages that the send policy denies."""

    def __init__(self, policy: SendPolicySettings, scheme: KeyScheme) -> None:
        self._policy = policy
        self._scheme = scheme
        self.shadowed = 0
        """How many messages only `shadow` has let through."""

    def decide(self, session: Session) -> SendDecision:
        """Ask the policy about a session, by its channel and chat type."""
        if not self._policy.rules:  # as in most configurations: every message asks, and all get the same answer
            return may_send(self._policy, _ANYWHERE, session.send_policy)
        return may_send(self._policy, Destination.of_session(session, self._scheme), session.send_policy)

    def decide_delivery(self, key: str, override: str | None, channel: str) -> SendDecision:
        """Ask the policy about a delivery of a session, by the channel that it really goes to."""
        return may_send(self._policy, Destination.of(SessionKey.stored(key), self._scheme, channel), override)

    def check(self, session: Session) -> SendDecision:
        """Refuse a message to a session, or say why it is allowed.

        Raises:
            PolicyDenied: the message names the rule that decided.
        """
        decision = self.decide(session)
        if not decision.allowed:
            raise PolicyDenied(
                f"not sent: {decision.reason}", rule=decision.rule, sessionKey=self._scheme.shown(session.key)
            )
        return decision

    def on_shadowed(self, fact: Event) -> None:
        """Count and log a message that was committed although only `shadow` let it through; a listener."""
        if isinstance(fact, PolicyShadowed):
            self.shadowed += 1
            log.warning("the send policy would deny this", session_key=fact.key, reason=fact.reason)
