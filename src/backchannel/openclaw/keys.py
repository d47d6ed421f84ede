"""Keys of every generation, read as ours.

    agent:main:discord:group:9   today's, taken as it is
    discord:group:9, cron:x      a bare key of the agent in whose folder it stands
    surface:group:9, group:9     the oldest groups: the channel is the one recorded for the session
    +4912345, telegram:12345     the oldest direct chats: the agent's direct chat, by the settings here
    global, unknown              reserved; `global` is the main session where session.scope is global

A direct chat that would share a key with another session of the folder has a `spare` key, made of the person alone. A
session whose key is another session's here gets one that only it can have, `agent:<id>:imported:<sessionId>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from backchannel.core.keys import ChatType, KeyScheme, SessionKey, is_full_key
from backchannel.errors import InvalidSessionKey

DIRECT_CHANNELS = frozenset(
    ["whatsapp", "telegram", "discord", "signal", "imessage", "slack", "msteams", "matrix", "sms", "webchat"]
)
"""Channels whose oldest direct chats were keyed `<channel>:<person>`."""

_GROUP_WORDS = {"group": ChatType.GROUP, "channel": ChatType.CHANNEL, "room": ChatType.CHANNEL}
_PLACEHOLDERS = ("surface", "provider")
_PHONE = re.compile(r"\+\d{4,20}", re.ASCII)
_WHATSAPP_GROUP = "@g.us"
_WHATSAPP_PEOPLE = ("@s.whatsapp.net", "@lid", "@c.us")


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
