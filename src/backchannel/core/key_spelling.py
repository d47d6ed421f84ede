"""How keys are spelled: the words that open one, the ids in it, and what may not stand in them.

A key has one spelling. Its first word, channels, peers and groups are in lower case; accounts, threads and the ids of
jobs, hooks and nodes keep their case. `:`, `%`, white space and control characters in ids are percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from backchannel.errors import InvalidSessionKey, UnknownAgent

MAX_AGENT_ID_LENGTH = 64
WHAT_WORKS = "write main, current, a key such as agent:main:cron:nightly, or a session id from sessions_list"

_OWN_WORDS = ("cron", "hook", "subagent", "openai")  # they open a key of their own, so no channel has such a name
_SUFFIXES = ("thread", "topic")
_UNSAFE = re.compile(r"[\s:%\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPES = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_NOT_IN_AGENT_ID = re.compile(r"[^a-z0-9_-]+")


class ChatType(StrEnum):
    """What sort of chat a key stands for."""

    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"


def normalise_agent_id(text: str) -> str:
    """Bring an agent's name to its id: `Research Bot` is `research-bot`.

    Raises:
        UnknownAgent: nothing usable is left, or it is too long; no agent can have such an id.
    """
    name = _NOT_IN_AGENT_ID.sub("-", text.lower()).strip("-")
    if not name or len(name) > MAX_AGENT_ID_LENGTH:
        rule = f"letters, digits, _ and -, at most {MAX_AGENT_ID_LENGTH}, such as research-bot"
        raise UnknownAgent(f"not an agent id: {quote(text)} (expected {rule})")
    return name


class Chat(NamedTuple):
    """A chat's parts: `place` is `channel`, `channel, account` or nothing; `suffix` names a thread."""

    place: tuple[str, ...]
    type: ChatType
    peer: str
    suffix: tuple[str, ...]


def read_chat(parts: Sequence[str]) -> Chat | None:
    """Read the parts as a chat in its one spelling, or tell that they are none."""
    words = [part.lower() for part in parts]
    if words[0] in _OWN_WORDS or words[0].startswith("node-"):
        return None
    suffix: tuple[str, ...] = ()
    if len(words) > 3 and words[-2] in _SUFFIXES:
        suffix = (words[-2], parts[-1])
        words = words[:-2]
    match words:
        case [*place, "direct" | "dm", peer] if len(place) <= 2:
            return Chat((*place[:1], *parts[1 : len(place)]), ChatType.DIRECT, peer, suffix)
        case [channel, "group" | "channel" as word, peer]:
            return Chat((channel,), ChatType(word), peer, suffix)
    return None


def spell(ids: Sequence[str]) -> tuple[str, ...]:
    """Bring plain ids to the one spelling of their key."""
    head = ids[0].lower()
    if head == "node" and len(ids) > 1:
        return (f"node-{ids[1]}", *ids[2:])
    if head.startswith("node-"):
        return (f"node-{ids[0][5:]}", *ids[1:])
    if chat := read_chat(ids):
        return (*chat.place, chat.type.value, chat.peer, *chat.suffix)
    return (head, *ids[1:])


def check_channel(channel: str) -> None:
    """Refuse a channel whose keys would be read as something else.

    Raises:
        InvalidSessionKey
    """
    word = channel.lower()
    if word in (*_OWN_WORDS, "node") or word.startswith("node-"):
        raise InvalidSessionKey(f"a channel cannot be called {quote(channel)}: such keys mean something else")


def split(text: str) -> list[str]:
    """Take a key as it was written apart; its ids are still encoded.

    Raises:
        InvalidSessionKey: a part is empty.
    """
    parts = text.split(":")
    if not all(parts):
        raise not_a_key(text, "no part may be empty; " + WHAT_WORKS)
    return parts


def encode(plain: str) -> str:
    """Write an id so that it can stand in a key."""
    # Lower-case hex digits, so that lower-casing a stored part changes nothing. Lone surrogates are
    # encoded too: no database takes them.
    return _UNSAFE.sub(lambda match: _escape(match[0]), plain)


def _escape(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def decode(part: str) -> str:
    """Read an id as it stands in a key."""
    return _ESCAPES.sub(_unescape, part)


def _unescape(match: re.Match[str]) -> str:
    try:
        return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return match[0]  # not encoded text after all, such as `100%ff`: the percent sign is meant


def not_a_key(text: str, what_works: str) -> InvalidSessionKey:
    """Make the error that says what came and what would work."""
    return InvalidSessionKey(f"not a session key: {quote(text)} ({what_works})")


def quote(text: str) -> str:
    """Show what somebody wrote, on one line and not too long."""
    return repr(text if len(text) <= 80 else text[:79] + "…")
