"""The send policy: whether a message may go to a session or a chat.

A session's own override wins; then any rule that matches and denies; then any that matches and allows; then the
default; then it is allowed. With `shadow` nothing is blocked: the decision tells what would have been, so that it
can be logged and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeAlias

from backchannel.core.decisions import Decision, quote
from backchannel.core.keys import ChatType, KeyScheme, SessionKey, read_part

Action: TypeAlias = Literal["allow", "deny"]

POLICY = "session.sendPolicy"
OVERRIDE = "sendPolicy of the session"
_HOW_TO_ALLOW = 'the session\'s own sendPolicy "allow" would let it through (sessions.patch, or /send on by its owner)'


class Match(Protocol):
    """What a rule is about; all that is given must match, nothing given is everything."""

    @property
    def channel(self) -> str | None: ...

    @property
    def chat_type(self) -> ChatType | None: ...

    @property
    def key_prefix(self) -> str | None: ...


class Rule(Protocol):
    """One rule."""

    @property
    def match(self) -> Match: ...

    @property
    def action(self) -> Action: ...


class Policy(Protocol):
    """`session.sendPolicy`, as configured."""

    @property
    def rules(self) -> Sequence[Rule]: ...

    @property
    def default(self) -> Action | None: ...

    @property
    def shadow(self) -> bool: ...


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
        """Complete a destination: the key tells what the caller does not, and a main session is a direct chat."""
        is_main = scheme.is_main(key)
        known = ChatType.DIRECT if is_main else key.chat_type
        return cls(key, channel or key.channel, chat_type or known, is_main)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The key, with and without `agent:<id>:`; a main session is also `main`, whatever it is stored as."""
        plain = (str(self.key), self.key.rest)
        return (*plain, f"agent:{self.key.agent}:main", "main") if self.is_main else plain


@dataclass(frozen=True, slots=True)
class SendDecision(Decision):
    """Whether a message may be sent; `would_deny` is set when only `shadow` lets it through."""

    would_deny: bool = False


def may_send(policy: Policy, destination: Destination, override: str | None = None) -> SendDecision:
    """Decide whether a message may go to its destination; `override` is the session's own `sendPolicy`."""
    decision = _decide(policy, destination, override)
    if decision.allowed or not policy.shadow:
        return decision
    return SendDecision(True, f"{POLICY}.shadow is true; without it: {decision.reason}", decision.rule, would_deny=True)


def _decide(policy: Policy, destination: Destination, override: str | None) -> SendDecision:
    if override is not None:
        return _by_override(override)
    matching = [(index, rule) for index, rule in enumerate(policy.rules) if is_about(rule.match, destination)]
    for action in ("deny", "allow"):
        for index, rule in matching:
            if rule.action == action:
                return _by_rule(index, rule)
    return _by_default(policy)


def is_about(match: Match, destination: Destination) -> bool:
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


def _by_rule(index: int, rule: Rule) -> SendDecision:
    name = f"{POLICY}.rules[{index}]"
    told = f"{name} ({_show(rule.match)})"
    if rule.action == "allow":
        return SendDecision(True, f"{told} allows", name)
    return SendDecision(False, f"{told} denies; {_HOW_TO_ALLOW}", name)


def _by_default(policy: Policy) -> SendDecision:
    name = f"{POLICY}.default"
    if policy.default == "deny":
        reason = f'no rule matches, and {name} is "deny" ("allow" would let it through); {_HOW_TO_ALLOW}'
        return SendDecision(False, reason, name)
    return SendDecision(True, f'no rule denies, and {name} is "allow"', name)


def _show(match: Match) -> str:
    given = {"channel": match.channel, "chatType": match.chat_type, "keyPrefix": match.key_prefix}
    return ", ".join(f"{name} {quote(value)}" for name, value in given.items() if value is not None) or "everything"
