"""Entries of `sessions.json`, of every generation, read as sessions under keys of ours.

The file is one object, `{<key>: entry}`. A field of a wrong type is left out with a remark. An entry is skipped only if
its session cannot be kept: no id, an id that is no file name, or a key that is impossible here.

Keys are read thus:

    agent:main:discord:group:9   today's, taken as it is.
    discord:group:9, cron:x      a bare key of the agent in whose folder it stands.
    surface:group:9, group:9     the oldest groups: the channel is the one recorded for the session.
    +4912345, telegram:12345     the oldest direct chats: the agent's direct chat, by the settings here.
    global, unknown              reserved; `global` is the main session where session.scope is global.

A direct chat that would share a key with another session of the folder has a `spare` key, made of the person alone. A
session whose key is another session's here gets one that only it can have, `agent:<id>:imported:<sessionId>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from backchannel.core.contracts import THINKING_LEVELS
from backchannel.core.keys import ChatType, KeyScheme, SessionKey, is_full_key
from backchannel.core.sessions import Address, Session, write_address
from backchannel.core.text import cut, stored_name
from backchannel.errors import InvalidSessionKey
from backchannel.openclaw.values import count_in, id_in, number_in, text_in, time_in, whole
from backchannel.openclaw.words import RUN_ENDS

DIRECT_CHANNELS = frozenset(
    ["whatsapp", "telegram", "discord", "signal", "imessage", "slack", "msteams", "matrix", "sms", "webchat"]
)
"""Channels whose oldest direct chats were keyed `<channel>:<person>`."""

_GROUP_WORDS = {"group": ChatType.GROUP, "channel": ChatType.CHANNEL, "room": ChatType.CHANNEL}
_PLACEHOLDERS = ("surface", "provider")
_PHONE = re.compile(r"\+\d{4,20}", re.ASCII)
_WHATSAPP_GROUP = "@g.us"
_WHATSAPP_PEOPLE = ("@s.whatsapp.net", "@lid", "@c.us")

LONGEST_LABEL = 64
_LONGEST_NAME = 4096
LONGEST_MODEL = 256
LONGEST_ADDRESS = 4096

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"\\u[dD]")
"""Perhaps a lone surrogate; files without any need not be walked through."""
_SPACE = re.compile(r"[ \t\r\n]*")
_VERBOSE = {"on": "on", "full": "on", "off": "off"}
_STATES = {shown: state for state, shown in RUN_ENDS.items()}


def imported_key(agent: str, session_id: str) -> SessionKey:
    """Build the key of a session that cannot have its own here."""
    return SessionKey.of(agent, "imported", session_id)


@dataclass(frozen=True, slots=True)
class ReadKey:
    """The key a session gets here, and another one if that is taken by a session beside it."""

    key: SessionKey
    spare: SessionKey | None = None


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Reads the keys of one agent's folder."""

    scheme: KeyScheme
    agent: str

    def read(self, text: str, *, channel: str | None, chat_type: str | None) -> ReadKey:
        """Read a key; `channel` and `chat_type` are what is recorded for its session.

        Raises:
            InvalidSessionKey: no session here can have it; the message says why.
        """
        text = text.strip()
        if is_full_key(text):
            return self._placed(SessionKey.parse(text))
        return self._read_bare(text, channel, chat_type)

    def spawner(self, text: str) -> SessionKey:
        """Read the key of the session that spawned another.

        Raises:
            InvalidSessionKey: it is none.
        """
        return self.read(text, channel=None, chat_type=None).key

    def _placed(self, key: SessionKey) -> ReadKey:
        if key.is_reserved and not self.scheme.is_listed(key):
            what_works = (
                'to take it, set session.scope to "global" and import again'
                if key.rest == "global"
                else "it holds what came from nobody known"
            )
            raise InvalidSessionKey(f"the key {key.rest} is reserved: {what_works}")
        return ReadKey(self.scheme.in_force(key))

    def _read_bare(self, text: str, channel: str | None, chat_type: str | None) -> ReadKey:
        if _PHONE.fullmatch(text) or text.lower().endswith(_WHATSAPP_PEOPLE):
            return self._direct(channel or "whatsapp", text)
        match text.split(":"):
            case [group] if _WHATSAPP_GROUP in group.lower():
                return self._group("whatsapp", ChatType.GROUP, group)
            case [word, *_] if word.lower() in _GROUP_WORDS and word != text:
                kind, _, rest = text.partition(":")
                home = channel or ("whatsapp" if _WHATSAPP_GROUP in rest.lower() else "unknown")
                return self._bare(f"{home}:{_GROUP_WORDS[kind.lower()]}:{rest}")
            case [head, word, _, *_] if word.lower() in _GROUP_WORDS:
                head = channel or "unknown" if head.lower() in _PLACEHOLDERS else head
                rest = text.split(":", 2)[2]
                return self._bare(f"{head}:{_GROUP_WORDS[word.lower()]}:{rest}")
            case [head, peer] if head.lower() in DIRECT_CHANNELS and peer:
                if chat_type in _GROUP_WORDS or _WHATSAPP_GROUP in peer.lower():
                    return self._group(head, _GROUP_WORDS.get(chat_type or "", ChatType.GROUP), peer)
                return self._direct(head, peer)
        return self._bare(text)

    def _bare(self, rest: str) -> ReadKey:
        return self._placed(SessionKey.parse(f"agent:{self.agent}:{rest}"))

    def _group(self, channel: str, type: ChatType, chat: str) -> ReadKey:
        return ReadKey(SessionKey.group(self.agent, channel, type, chat))

    def _direct(self, channel: str, peer: str) -> ReadKey:
        key = self.scheme.direct(self.agent, channel=channel, account="default", peer=peer)
        spare = SessionKey.of(self.agent, ChatType.DIRECT, peer)
        return ReadKey(key, None if spare == key else spare)


class Entry(NamedTuple):
    """One entry as it stands in the file."""

    line: int
    key: str
    value: Any


class UnreadableRest(NamedTuple):
    """Where the file stops being JSON; what stands before was read."""

    line: int
    reason: str


class ReadSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it will be here, before its transcript is looked at."""

    name: str
    """Its key as it was written there."""
    session: Session
    spare: str | None
    """The key to take if another session of the folder has the first one."""
    file: str | None
    """Where the entry says its transcript is."""
    remarks: tuple[str, ...]
    """What was left out or changed."""


class UnusableEntry(msgspec.Struct, frozen=True):
    """An entry that cannot be a session here."""

    name: str
    reason: str


def read_entries(text: str) -> Iterator[Entry | UnreadableRest]:
    """Give the entries of a file one by one, with their lines; one that was cut in the middle gives those before."""
    scan, place = json.JSONDecoder().raw_decode, _after_space(text, 0)
    line, counted = 1, 0
    repaired = whole if _SURROGATE.search(text) else _unchanged
    try:
        place = _expect(text, place, "{")
        while not text.startswith("}", place):
            line, counted = line + text.count("\n", counted, place), place
            key, place = scan(text, place)
            place = _expect(text, _after_space(text, place), ":")
            value, place = scan(text, place)
            if not isinstance(key, str):
                raise ValueError("a key is no text")
            yield Entry(line, repaired(key), repaired(value))
            place = _after_space(text, place)
            if not text.startswith("}", place):
                place = _expect(text, place, ",")
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        yield UnreadableRest(line, f"not JSON from about here on ({reason}): what stands before was read")


def _unchanged(value: Any) -> Any:
    return value


def _expect(text: str, place: int, sign: str) -> int:
    if not text.startswith(sign, place):
        raise ValueError(f"expected {sign!r}")
    return _after_space(text, place + 1)


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


class EntryReader:
    """Reads the entries of one agent's folder."""

    def __init__(self, scheme: KeyScheme, agent: str) -> None:
        self._scheme = scheme
        self._keys = KeyReader(scheme, agent)

    def read(self, entry: Entry, *, seen_at: int) -> ReadSession | UnusableEntry:
        """Read an entry; one without times counts as changed when it was `seen_at`."""
        if not isinstance(entry.value, dict):
            return UnusableEntry(entry.key, "the entry is no object")
        session_id = entry.value.get("sessionId")
        if not isinstance(session_id, str) or not SESSION_ID.fullmatch(session_id):
            return UnusableEntry(entry.key, f"its sessionId {_shown(session_id)} cannot be the name of a file")
        channel = text_in(entry.value, "channel", "provider", "surface")
        chat_type = text_in(entry.value, "chatType")
        try:
            found = self._keys.read(entry.key, channel=channel, chat_type=chat_type)
        except InvalidSessionKey as error:
            return UnusableEntry(entry.key, error.message)
        fields = _Fields(entry.value)
        return ReadSession(
            name=entry.key,
            session=self._session(fields, found.key, session_id, seen_at),
            spare=None if found.spare is None else str(found.spare),
            file=text_in(entry.value, "sessionFile"),
            remarks=tuple(fields.remarks),
        )

    def _session(self, fields: _Fields, key: SessionKey, session_id: str, seen_at: int) -> Session:
        value = fields.value
        updated_at = time_in(value, "updatedAt", "lastInteractionAt", "sessionStartedAt")
        updated_at = seen_at if updated_at is None else updated_at
        created_at = time_in(value, "createdAt", "sessionStartedAt", "startedAt")
        return Session(
            key=str(key),
            agent_id=key.agent,
            kind=self._scheme.kind(key).value,
            session_id=session_id,
            label=fields.label(),
            display_name=fields.display_name(),
            created_at=updated_at if created_at is None else min(created_at, updated_at),
            updated_at=updated_at,
            archived_at=self._archived_at(fields, key),
            deleting=False,
            spawned_by=self._spawned_by(fields),
            channel=_channel(fields, key),
            delivery_context=write_address(fields.address()),
            model=fields.model(),
            thinking_level=fields.word("thinkingLevel", {level: level for level in THINKING_LEVELS}),
            verbose_level=fields.word("verboseLevel", _VERBOSE),
            send_policy=fields.word("sendPolicy", {"allow": "allow", "deny": "deny"}),
            system_sent=value.get("systemSent") is True,
            aborted_last_run=value.get("abortedLastRun") is True,
            last_state=_STATES.get(text_in(value, "status") or ""),
            total_tokens=count_in(value, "totalTokens"),
            context_tokens=count_in(value, "contextTokens"),
            tokens_in=count_in(value, "inputTokens") or 0,
            tokens_out=count_in(value, "outputTokens") or 0,
            cost=number_in(value, "estimatedCostUsd"),
            running_run=None,
            queued=0,
        )

    def _archived_at(self, fields: _Fields, key: SessionKey) -> int | None:
        at = time_in(fields.value, "archivedAt")
        if at is not None and self._scheme.is_main(key):
            fields.remarks.append("it is a main session and cannot be archived")
            return None
        return at

    def _spawned_by(self, fields: _Fields) -> str | None:
        text = text_in(fields.value, "spawnedBy")
        if text is None:
            return None
        try:
            return str(self._keys.spawner(text))
        except InvalidSessionKey as error:
            fields.remarks.append(f"spawnedBy left out: {error.message}")
            return None


def _channel(fields: _Fields, key: SessionKey) -> str | None:
    """Find the channel that is recorded for a session: groups have one, and direct chats that their key names."""
    if key.chat_type in (ChatType.GROUP, ChatType.CHANNEL):
        return text_in(fields.value, "channel", "provider", "surface") or key.channel
    return key.channel


class _Fields:
    """The fields of one entry, and what had to be said about them."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.remarks: list[str] = []

    def label(self) -> str | None:
        """Read the label, by the rule that holds for labels here."""
        text = self._text("label", LONGEST_LABEL)
        if text is not None and _CONTROL.search(text):
            self.remarks.append(f"label {_shown(text)} left out: it is not one line")
            return None
        return text

    def display_name(self) -> str | None:
        """Read the name of the chat, as the channel gave it."""
        return stored_name(self._text("displayName", _LONGEST_NAME, "subject", "groupChannel", "room"))

    def _text(self, field: str, limit: int, *others: str) -> str | None:
        if not isinstance(self.value.get(field), str | None):
            self.remarks.append(f"{field} left out: it is no text")
        text = text_in(self.value, field, *others)
        if text is not None and len(text) > limit:
            self.remarks.append(f"{field} {_shown(text)} left out: it is longer than {limit} characters")
            return None
        return text

    def word(self, field: str, known: dict[str, str]) -> str | None:
        """Read a word out of a few."""
        value = self.value.get(field)
        if value in (None, "", "inherit"):
            return None
        word = known.get(value.lower()) if isinstance(value, str) else None
        if word is None:
            self.remarks.append(f"{field} {_shown(value)} left out: expected one of {', '.join(known)}")
        return word

    def model(self) -> str | None:
        """Read the model that a person chose for the session; the one that answered last is no choice."""
        if self.value.get("modelOverrideSource") == "auto":
            return None
        model, provider = text_in(self.value, "modelOverride"), text_in(self.value, "providerOverride")
        if model is None:
            return None
        ref = f"{provider}/{model}" if provider else model
        if "/" not in ref or len(ref) > LONGEST_MODEL:
            self.remarks.append(f"modelOverride {_shown(ref)} left out: expected provider/model")
            return None
        return ref

    def address(self) -> Address | None:
        """Read the return address; older generations have only its parts, under names of their own."""
        context = self.value.get("deliveryContext")
        given = context if isinstance(context, dict) and text_in(context, "channel") else None
        if given is not None:
            channel, to = text_in(given, "channel"), id_in(given, "to")
            account, thread = id_in(given, "accountId"), id_in(given, "threadId")
        else:
            channel = text_in(self.value, "lastChannel", "lastProvider", "lastSurface")
            to, account = id_in(self.value, "lastTo"), id_in(self.value, "lastAccountId")
            thread = id_in(self.value, "lastThreadId")
        if channel is None or channel == "none":
            return None
        if any(len(part) > LONGEST_ADDRESS for part in (channel, to or "", account or "", thread or "")):
            self.remarks.append(f"the return address on {_shown(channel)} left out: it is too long")
            return None
        return Address(channel=channel, to=to, account_id=account, thread_id=thread)


def _shown(value: object) -> str:
    text = repr(value)
    return cut(text, 60)
