"""The send policy: permission for a message to go to a session or a chat.

A session's own override wins; then any rule that matches and denies; then any that matches and allows; then the
default; then it is allowed. With `shadow` nothing is blocked. The decision then says what would have been blocked, so
that it can be logged and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self, TypeAlias

from backchannel.core.keys import ChatType, KeyScheme, SessionKey, read_part
from backchannel.core.policy.decisions import Decision, quote
from backchannel.core.sessions import Session
from backchannel.core.settings import Settings, setting

PolicyAction: TypeAlias = Literal["allow", "deny"]

POLICY = "session.sendPolicy"
OVERRIDE = "sendPolicy of the session"
_HOW_TO_ALLOW = 'the session\'s own sendPolicy "allow" would let it through (sessions.patch, or /send on by its owner)'


class PolicyMatchSettings(Settings, frozen=True, kw_only=True):
    """What a rule is about; all given must match, none is everything."""

    channel: Annotated[str | None, setting("The channel's name.")] = None
    chat_type: Annotated[ChatType | None, setting("The kind of chat.")] = None
    key_prefix: Annotated[str | None, setting("The beginning of the session key, with or without `agent:<id>:`.")] = (
        None
    )


class PolicyRuleSettings(Settings, frozen=True, kw_only=True):
    """One rule of the send policy."""

    match: Annotated[PolicyMatchSettings, setting("Which messages. Empty: all.")] = PolicyMatchSettings()
    action: Annotated[PolicyAction, setting("The decision.")]


class SendPolicySettings(Settings, frozen=True, kw_only=True):
    """What may be sent where."""

    rules: Annotated[
        tuple[PolicyRuleSettings, ...], setting("A matching deny wins over a matching allow, whatever their order.")
    ] = ()
    default: Annotated[PolicyAction, setting("The decision when no rule matches.")] = "allow"
    shadow: Annotated[bool, setting("Only count and log denied messages; block nothing.")] = False


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a message would go: a session, or the chat that a delivery really reaches."""

    key: SessionKey
    channel: str | None = None
    chat_type: ChatType | None = None
    is_main: bool = False

    @classmethod
    def of(
        cls, key: SessionKey, scheme: KeyScheme, channel: str | None = None, chat_type: ChatType | None = None
    ) -> Self:
        """Complete a destination: the key says what the caller does not, and a main session is a direct chat."""
        is_main = scheme.is_main(key)
        known = ChatType.DIRECT if is_main else key.chat_type
        return cls(key, channel or key.channel, chat_type or known, is_main)

    @classmethod
    def of_session(cls, session: Session, scheme: KeyScheme) -> Self:
        """Name where a session's messages go: by its channel, else by the address that it was last written from."""
        address = session.address
        channel = session.channel or (address.channel if address else None)
        return cls.of(SessionKey.stored(session.key), scheme, channel)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The key, with and without `agent:<id>:`; a main session is also `main`, whatever it is stored as."""
        plain = (str(self.key), self.key.rest)
        return (*plain, f"agent:{self.key.agent}:main", "main") if self.is_main else plain


@dataclass(frozen=True, slots=True)
class SendDecision(Decision):
    """Whether a message may be sent; `would_deny` is set when only `shadow` lets it through."""

    would_deny: bool = False


def may_send(policy: SendPolicySettings, destination: Destination, override: str | None = None) -> SendDecision:
    """Decide whether a message may go to its destination; `override` is the session's own `sendPolicy`."""
    decision = _decide(policy, destination, override)
    if decision.allowed or not policy.shadow:
        return decision
    return SendDecision(True, f"{POLICY}.shadow is true; without it: {decision.reason}", decision.rule, would_deny=True)


def _decide(policy: SendPolicySettings, destination: Destination, override: str | None) -> SendDecision:
    if override is not None:
        return _by_override(override)
    matching = [(index, rule) for index, rule in enumerate(policy.rules) if is_about(rule.match, destination)]
    for action in ("deny", "allow"):
        for index, rule in matching:
            if rule.action == action:
                return _by_rule(index, rule)
    return _by_default(policy)


def is_about(match: PolicyMatchSettings, destination: Destination) -> bool:
    """Whether a rule speaks about a destination. Words and keys are compared without regard to case."""
    if match.channel is not None and _fold(match.channel) != _fold(destination.channel or ""):
        return False
    if match.chat_type is not None and match.chat_type != destination.chat_type:
        return False
    if match.key_prefix is None:
        return True
    prefixes = read_part(match.key_prefix)
    return any(_fold(spelling).startswith(prefixes) for spelling in destination.spellings)


def _fold(word: str) -> str:
    return word.strip().lower()


def _by_override(override: str) -> SendDecision:
    if override == "allow":
        return SendDecision(True, 'the session\'s own sendPolicy is "allow"', OVERRIDE)
    # Whatever else may stand in the row was meant to stop something.
    works = '"allow", or null to follow the rules: sessions.patch, or /send on|inherit by its owner'
    return SendDecision(False, f"the session's own sendPolicy is {quote(override)} ({works})", OVERRIDE)


def _by_rule(index: int, rule: PolicyRuleSettings) -> SendDecision:
    name = f"{POLICY}.rules[{index}]"
    shown = f"{name} ({_show(rule.match)})"
    if rule.action == "allow":
        return SendDecision(True, f"{shown} allows", name)
    return SendDecision(False, f"{shown} denies; {_HOW_TO_ALLOW}", name)


def _by_default(policy: SendPolicySettings) -> SendDecision:
    name = f"{POLICY}.default"
    if policy.default == "deny":
        reason = f'no rule matches, and {name} is "deny" ("allow" would let it through); {_HOW_TO_ALLOW}'
        return SendDecision(False, reason, name)
    return SendDecision(True, f'no rule denies, and {name} is "allow"', name)


def _show(match: PolicyMatchSettings) -> str:
    given = {"channel": match.channel, "chatType": match.chat_type, "keyPrefix": match.key_prefix}
    return ", ".join(f"{name} {quote(value)}" for name, value in given.items() if value is not None) or "everything"
