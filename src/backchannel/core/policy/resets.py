"""Automatic resets: when a session that was not used for a while begins anew.

`session.reset` gives each type of chat a rule. `daily` has a mark each day at `atHour`, and `idle` has one some minutes
after the last use. The next message of a person or an operator resets a session that was not used since its mark. With
`daily`, `idleMinutes` counts too: the first mark decides.

Only a session at rest is reset: one without a run, an exchange, a sub-agent or a note that is open. Others wait for the
next message. The rules of a time zone come from files, so `config/zones.py` gives the marks of days.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from backchannel.core.keys import ChatType, Kind, SessionKey
from backchannel.core.settings import Settings, setting

MAX_IDLE_MINUTES = 5_256_000
"""Ten years."""

_MINUTE_MS = 60_000
_UNATTENDED = (Kind.CRON, Kind.HOOK, Kind.NODE)


class ResetMode(StrEnum):
    """When a session begins anew by itself."""

    OFF = "off"
    DAILY = "daily"
    IDLE = "idle"


class ResetChat(StrEnum):
    """Types of chats that can have a rule of their own."""

    DIRECT = "direct"
    GROUP = "group"
    THREAD = "thread"


IdleMinutes = Annotated[int, msgspec.Meta(ge=1, le=MAX_IDLE_MINUTES)]
Hour = Annotated[int, msgspec.Meta(ge=0, le=23)]


class TypeResetSettings(Settings, frozen=True, kw_only=True):
    """When sessions of one type begin anew. What is unset is as for all sessions."""

    mode: Annotated[ResetMode | None, setting("`off`, `daily` or `idle`.")] = None
    at_hour: Annotated[Hour | None, setting("The hour of the day, in `tz`.")] = None
    idle_minutes: Annotated[IdleMinutes | None, setting("Minutes since the last use.")] = None
    carry: Annotated[bool | None, setting("The new transcript begins with a summary of the old one.")] = None


class ResetTypeSettings(Settings, frozen=True, kw_only=True):
    """When sessions begin anew, by type."""

    direct: Annotated[TypeResetSettings, setting("Direct chats, main sessions and sessions of your own.")] = (
        TypeResetSettings()
    )
    group: Annotated[TypeResetSettings, setting("Groups and rooms.")] = TypeResetSettings()
    thread: Annotated[TypeResetSettings, setting("Threads and topics.")] = TypeResetSettings()


class ResetSettings(Settings, frozen=True, kw_only=True):
    """When a session begins anew by itself."""

    mode: Annotated[
        ResetMode,
        setting(
            "When the next message begins a new transcript: `daily`, if the session was not used since the last "
            "`atHour`; `idle`, if it was not used for `idleMinutes`."
        ),
    ] = ResetMode.OFF
    at_hour: Annotated[int, setting("The hour of the day for `daily`, in `tz`.", ge=0, le=23)] = 4
    idle_minutes: Annotated[
        IdleMinutes | None, setting("Minutes since the last use. `idle` needs it; with `daily`, either is enough.")
    ] = None
    by_type: Annotated[ResetTypeSettings, setting("Other values for direct chats, groups or threads.")] = (
        ResetTypeSettings()
    )
    carry: Annotated[bool, setting("The new transcript begins with a summary of the old one.")] = False

    def of(self, chat: ResetChat) -> ResetRule:
        """Return the rule for a type of chat."""
        own: TypeResetSettings = getattr(self.by_type, chat.value)
        return ResetRule(
            mode=self.mode if own.mode is None else own.mode,
            at_hour=self.at_hour if own.at_hour is None else own.at_hour,
            idle_minutes=self.idle_minutes if own.idle_minutes is None else own.idle_minutes,
            carry=self.carry if own.carry is None else own.carry,
        )


class ResetRule(NamedTuple):
    """When sessions of one type begin anew."""

    mode: ResetMode
    at_hour: int
    idle_minutes: int | None
    carry: bool

    @property
    def lacks_minutes(self) -> bool:
        return self.mode is ResetMode.IDLE and self.idle_minutes is None


class ResetDue(NamedTuple):
    """Why a session begins anew."""

    reason: ResetMode
    carry: bool


LastMark = Callable[[int, int], int]
"""Takes a time and an hour of the day; returns the last time at which that hour came."""


class ResetSchedule:
    """The rules of all types, with the marks of days in one time zone."""

    def __init__(self, settings: ResetSettings, last_mark: LastMark) -> None:
        rules = {chat: settings.of(chat) for chat in ResetChat}
        self._rules: Mapping[ResetChat, ResetRule] = {
            chat: rule for chat, rule in rules.items() if rule.mode is not ResetMode.OFF
        }
        self._last_mark = last_mark

    def rule_for(self, key: str, kind: str) -> ResetRule | None:
        """Return the rule for a session; None if it never begins anew by itself."""
        chat = reset_chat(key, kind) if self._rules else None
        return None if chat is None else self._rules.get(chat)

    def due(self, rule: ResetRule, used_at: int, now: int) -> ResetDue | None:
        """Decide whether a session begins anew that was last used at a time."""
        if rule.mode is ResetMode.DAILY and used_at < self._last_mark(now, rule.at_hour):
            return ResetDue(ResetMode.DAILY, rule.carry)
        if rule.idle_minutes is not None and now - used_at >= rule.idle_minutes * _MINUTE_MS:
            return ResetDue(ResetMode.IDLE, rule.carry)
        return None


NO_RESETS = ResetSchedule(ResetSettings(), lambda now, hour: 0)


def reset_chat(key: str, kind: str) -> ResetChat | None:
    """Return the type of a session; None for jobs, hooks, nodes and sub-agents, which people do not talk to."""
    stored = SessionKey.stored(key)
    if kind in _UNATTENDED or stored.is_subagent:
        return None
    if stored.parent is not None:
        return ResetChat.THREAD
    return ResetChat.GROUP if stored.chat_type in (ChatType.GROUP, ChatType.CHANNEL) else ResetChat.DIRECT
