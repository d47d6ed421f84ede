"""Session keys: the address of a session.

`SessionKey` is the stored address, `agent:<id>:<rest>`, in its one spelling. Its first word, channels, peers and groups
are in lower case. Accounts, threads and the ids of jobs, hooks and nodes keep their case. `:`, `%`, white space and
control characters in ids are percent-encoded. Only this module splits keys.

`KeyScheme` holds the settings that decide which key is the main session. `core/caller_keys.py` has the keys as each
caller writes and sees them. `parse` reads stored and typed keys alike, so it accepts `agent:main:global`. In a caller's
key `global` and `unknown` are refused later: they cannot be addressed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal, NamedTuple, Self, get_args

from backchannel.core.text import quoted
from backchannel.errors import InvalidSessionKey, UnknownAgent

MAX_KEY_LENGTH = 512
MAX_MAIN_KEY_LENGTH = 64  # with it, the main key of every agent fits

MAX_AGENT_ID_LENGTH = 64
WHAT_WORKS = "write main, current, a key such as agent:main:cron:nightly, or a session id from sessions_list"

_KEPT_KEYS = 4096
_RESERVED = ("global", "unknown")
_RESERVED_ENDS = tuple(f":{word}" for word in _RESERVED)
_OWN_WORDS = ("cron", "hook", "subagent", "openai")  # other keys begin so: no channel has such a name
ThreadWord = Literal["thread", "topic"]
_SUFFIXES: tuple[ThreadWord, ...] = get_args(ThreadWord)
_UNSAFE = re.compile(r"[\s:%\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPES = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_NOT_IN_AGENT_ID = re.compile(r"[^a-z0-9_-]+")


class Kind(StrEnum):
    """Kinds of conversations."""

    MAIN = "main"
    GROUP = "group"
    CRON = "cron"
    HOOK = "hook"
    NODE = "node"
    OTHER = "other"


_INTERNAL = (Kind.CRON, Kind.HOOK, Kind.NODE)


class ChatType(StrEnum):
    """Kinds of chats."""

    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"


class DmScope(StrEnum):
    """Scopes of direct chats: which of them share a session."""

    MAIN = "main"
    PER_PEER = "per-peer"
    PER_CHANNEL_PEER = "per-channel-peer"
    PER_ACCOUNT_CHANNEL_PEER = "per-account-channel-peer"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The address of one session, such as `agent:main:telegram:group:42`, made by `parse` or `of`."""

    agent: str
    path: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a full key, as stored or as typed, in any spelling.

        Raises:
            InvalidSessionKey: the text is not `agent:<id>:<rest>`, has an empty part, or is too long.
        """
        text = text.strip()
        word, *parts = split(text)
        if word.lower() != "agent" or len(parts) < 2:
            raise not_a_key(text, "expected agent:<id>:<rest>, such as agent:main:cron:nightly")
        agent, *ids = map(decode, parts)
        return cls.of(agent, *ids)

    @staticmethod
    @lru_cache(maxsize=_KEPT_KEYS)
    def stored(text: str) -> SessionKey:
        """Read a stored key without checking it: lists read hundreds at once, and a run reads its own six times."""
        _, agent, *path = text.split(":")
        return SessionKey(agent, tuple(path))

    @classmethod
    def of(cls, agent: str, *ids: str) -> Self:
        """Build a key from plain ids, which may hold any character.

        Raises:
            InvalidSessionKey: an id is empty, the agent id has nothing usable, or the key is too long.
        """
        if not ids or not all(ids):
            raise not_a_key(":".join(("agent", agent, *ids)), "no part may be empty")
        try:
            key = cls(normalise_agent_id(agent), tuple(map(encode, spell(ids))))
        except UnknownAgent as error:
            raise InvalidSessionKey(error.message) from error
        if len(str(key)) > MAX_KEY_LENGTH:
            raise not_a_key(str(key), f"a key has at most {MAX_KEY_LENGTH} characters")
        return key

    @classmethod
    def group(
        cls,
        agent: str,
        channel: str,
        type: ChatType,
        chat: str,
        thread: str | None = None,
        word: ThreadWord = "thread",
    ) -> Self:
        """Build the key of a group or room, or of one thread in it. `word` is the platform's word for a thread."""
        check_channel(channel)
        suffix = () if thread is None else (word, thread)
        return cls.of(agent, channel, type, chat, *suffix)

    @classmethod
    def cron(cls, agent: str, job: str) -> Self:
        """Build the key of a cron job."""
        return cls.of(agent, "cron", job)

    @classmethod
    def hook(cls, agent: str, name: str) -> Self:
        """Build the key of a webhook."""
        return cls.of(agent, "hook", name)

    @classmethod
    def node(cls, agent: str, node: str) -> Self:
        """Build the key of a node."""
        return cls.of(agent, "node", node)

    @classmethod
    def subagent(cls, agent: str, child: str) -> Self:
        """Build the key of a sub-agent."""
        return cls.of(agent, "subagent", child)

    @classmethod
    def openai(cls, agent: str, name: str) -> Self:
        """Build the key of a conversation of the OpenAI-style API."""
        return cls.of(agent, "openai", name)

    def __str__(self) -> str:
        return f"agent:{self.agent}:{self.rest}"

    @property
    def rest(self) -> str:
        """The key without `agent:<id>:`."""
        return ":".join(self.path)

    @property
    def is_subagent(self) -> bool:
        """True if a spawn created this session."""
        return len(self.path) > 1 and self.path[0] == "subagent"

    @property
    def is_reserved(self) -> bool:
        """True if callers cannot address this key."""
        return len(self.path) == 1 and self.path[0] in _RESERVED

    @property
    def chat_type(self) -> ChatType | None:
        """The kind of chat that the key names; None for main sessions and others without a chat."""
        chat = read_chat(self.path)
        return chat.type if chat else None

    @property
    def channel(self) -> str | None:
        """The channel that the key names, if it names one."""
        chat = read_chat(self.path)
        return decode(chat.place[0]) if chat and chat.place else None

    @property
    def parent(self) -> SessionKey | None:
        """The chat that this thread or topic belongs to; None if the key is no thread."""
        chat = read_chat(self.path)
        return SessionKey(self.agent, self.path[:-2]) if chat and chat.suffix else None


@dataclass(frozen=True, slots=True)
class KeyScheme:
    """The settings under `session` that decide which key a conversation has.

    `main` always names the main session: under another main key, or with the global scope,
    `agent:<id>:main` is read as the key that is in force.

    Raises:
        InvalidSessionKey: the main key or the default agent's id cannot be used.
    """

    main_key: str = "main"
    global_scope: bool = False
    dm_scope: DmScope = DmScope.MAIN
    default_agent: str = "main"

    def __post_init__(self) -> None:
        key = SessionKey.of(self.default_agent, self.main_key)
        if key.is_reserved or key.rest == "current" or len(key.rest) > MAX_MAIN_KEY_LENGTH:
            works = f"at most {MAX_MAIN_KEY_LENGTH} characters, and not global, unknown or current"
            raise InvalidSessionKey(f"not a main key: {quoted(key.rest)} (expected {works})")
        object.__setattr__(self, "main_key", key.rest)
        object.__setattr__(self, "default_agent", key.agent)

    def main(self, agent: str) -> SessionKey:
        """Build the key of an agent's main session."""
        if self.global_scope:
            return SessionKey.of(agent, "global")
        return SessionKey(SessionKey.of(agent, "main").agent, (self.main_key,))

    def direct(self, agent: str, *, channel: str, account: str, peer: str) -> SessionKey:
        """Build the key of a direct chat."""
        if self.global_scope or self.dm_scope is DmScope.MAIN:
            return self.main(agent)
        check_channel(channel)
        if self.dm_scope is DmScope.PER_PEER:
            return SessionKey.of(agent, ChatType.DIRECT, peer)
        place = (channel,) if self.dm_scope is DmScope.PER_CHANNEL_PEER else (channel, account)
        return SessionKey.of(agent, *place, ChatType.DIRECT, peer)

    def is_main(self, key: SessionKey) -> bool:
        """True if the key names its agent's main session."""
        if self.global_scope and key.path == ("global",):
            return True
        return len(key.path) == 1 and key.path[0] in ("main", self.main_key)

    def is_listed(self, key: SessionKey) -> bool:
        """True if callers can see and address this session."""
        return not key.is_reserved or self.is_main(key)

    def lists(self, stored: str) -> bool:
        """Return `is_listed` of a stored key. It is faster: for most keys the last part decides."""
        return not stored.endswith(_RESERVED_ENDS) or self.is_listed(SessionKey.stored(stored))

    def in_force(self, key: SessionKey) -> SessionKey:
        """Replace any form of a main session's key by the stored one."""
        return self.main(key.agent) if self.is_main(key) else key

    def shown(self, key: str) -> str:
        """Return a stored key as callers see it: with the global scope, `agent:<id>:main` for the main session."""
        stored = SessionKey.stored(key)
        return f"agent:{stored.agent}:main" if self.global_scope and self.is_main(stored) else key

    def kind(self, key: SessionKey) -> Kind:
        """Return the kind of conversation that the key names."""
        if self.is_main(key):
            return Kind.MAIN
        match key.path:
            case ("cron", _, *_):
                return Kind.CRON
            case ("hook", _, *_):
                return Kind.HOOK
            case (head, *_) if head.startswith("node-"):
                return Kind.NODE
        return Kind.GROUP if key.chat_type in (ChatType.GROUP, ChatType.CHANNEL) else Kind.OTHER


def read_part(text: str) -> tuple[str, ...]:
    """Read a prefix or pattern of keys: as it is written, and in today's spelling if that differs.

    `node:` and `dm:` are older spellings. Both forms are returned, since an id may be such a word.
    """
    written = text.strip().lower()
    parts = written.split(":")
    start = 2 if parts[0] == "agent" else 0
    match parts[start:]:
        case ["node", id, *rest]:
            today = [f"node-{id}", *rest]
        case ids:
            today = ["direct" if id == "dm" and place <= 2 else id for place, id in enumerate(ids)]
    spelled = ":".join((*parts[:start], *today))
    return (written,) if spelled == written else (written, spelled)


def row_channel(key: str, kind: str, recorded_channel: str | None, last_channel: str | None) -> str:
    """Return the channel that a session's row shows."""
    if kind == Kind.GROUP:
        return recorded_channel or SessionKey.stored(key).channel or "unknown"
    return "internal" if kind in _INTERNAL else last_channel or "unknown"


def normalise_agent_id(text: str) -> str:
    """Turn an agent's name into its id: `Research Bot` becomes `research-bot`.

    Raises: UnknownAgent: no usable character is left, or the id is too long.
    """
    name = _NOT_IN_AGENT_ID.sub("-", text.lower()).strip("-")
    if not name or len(name) > MAX_AGENT_ID_LENGTH:
        rule = f"letters, digits, _ and -, at most {MAX_AGENT_ID_LENGTH}, such as research-bot"
        raise UnknownAgent(f"not an agent id: {quoted(text)} (expected {rule})")
    return name


class ChatParts(NamedTuple):
    """A chat's parts: `place` is `channel`, `channel, account` or nothing; `suffix` names a thread."""

    place: tuple[str, ...]
    type: ChatType
    peer: str
    suffix: tuple[str, ...]


def read_chat(parts: Sequence[str]) -> ChatParts | None:
    """Read the parts as a chat in its one spelling; None if they name no chat."""
    words = [part.lower() for part in parts]
    if words[0] in _OWN_WORDS or words[0].startswith("node-"):
        return None
    suffix: tuple[str, ...] = ()
    if len(words) > 3 and words[-2] in _SUFFIXES:
        suffix = (words[-2], parts[-1])
        words = words[:-2]
    match words:
        case [*place, "direct" | "dm", peer] if len(place) <= 2:
            return ChatParts((*place[:1], *parts[1 : len(place)]), ChatType.DIRECT, peer, suffix)
        case [channel, "group" | "channel" as word, peer]:
            return ChatParts((channel,), ChatType(word), peer, suffix)
    return None


def spell(ids: Sequence[str]) -> tuple[str, ...]:
    """Spell plain ids as parts of a key."""
    head = ids[0].lower()
    if head == "node" and len(ids) > 1:
        return (f"node-{ids[1]}", *ids[2:])
    if head.startswith("node-"):
        return (f"node-{ids[0][5:]}", *ids[1:])
    if chat := read_chat(ids):
        return (*chat.place, chat.type.value, chat.peer, *chat.suffix)
    return (head, *ids[1:])


def check_channel(channel: str) -> None:
    """Refuse a channel name that begins keys of another kind.

    Raises:
        InvalidSessionKey
    """
    word = channel.lower()
    if word in (*_OWN_WORDS, "node") or word.startswith("node-"):
        raise InvalidSessionKey(
            f"a channel cannot be called {quoted(channel)}: keys that begin so have another meaning"
        )


def is_full_key(text: str) -> bool:
    """True if a text is a full key, with its agent; a bare key has none."""
    return text.lower().startswith("agent:")


def split(text: str) -> list[str]:
    """Split a written key into its parts. Its ids stay encoded.

    Raises:
        InvalidSessionKey: a part is empty.
    """
    parts = text.split(":")
    if not all(parts):
        raise not_a_key(text, "no part may be empty; " + WHAT_WORKS)
    return parts


def encode(plain: str) -> str:
    """Encode an id for use in a key."""
    # Lower-case hex digits, so that lower-casing a stored part changes nothing. Lone surrogates are
    # encoded too: no database takes them.
    return _UNSAFE.sub(lambda match: _escape(match[0]), plain)


def _escape(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def decode(part: str) -> str:
    """Decode an id of a key."""
    return _ESCAPES.sub(_unescape, part)


def _unescape(match: re.Match[str]) -> str:
    try:
        return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return match[0]  # no encoded text, such as `100%ff`: the percent sign is literal


def not_a_key(text: str, what_works: str) -> InvalidSessionKey:
    """Make the error that says what came and what would work."""
    return InvalidSessionKey(f"not a session key: {quoted(text)} ({what_works})")
