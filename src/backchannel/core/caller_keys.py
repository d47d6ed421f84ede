"""Keys as each caller writes and sees them.

`CallerKeys` joins a scheme and a caller. `show` gives the text that the caller sees. `read` takes the text that the
caller wrote. `choose` decides which session was meant, with what the store found. Showing a key and resolving that
text again always gives the same key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from backchannel.core.keys import WHAT_WORKS, KeyScheme, Kind, SessionKey, decode, is_full_key, not_a_key, split
from backchannel.core.text import quoted
from backchannel.errors import AmbiguousLabel, InvalidSessionKey, SessionIdReplaced, SessionNotFound

_SESSION_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class WrittenAddress:
    """What a caller wrote: a key, perhaps a session id; explicit when the text alone names a session."""

    text: str
    key: SessionKey
    session_id: str | None
    is_explicit: bool


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What the store knows about a `WrittenAddress`.

    `id_key` is the session that has, or before a reset had, the session id. Leave it out
    when the caller must not learn of that session.
    """

    key_exists: bool = False
    id_key: SessionKey | None = None
    id_is_current: bool = False
    id_is_deleted: bool = False
    """Whether it is the id of a session that was deleted: it names nothing, whatever lives under its key by now."""


@dataclass(frozen=True, slots=True)
class SessionResolved:
    """The session that was meant, which may not exist yet."""

    key: SessionKey
    exists: bool
    session_id: str | None = None
    """The id that it was named by, if it was: no other transcript of that key was meant."""


@dataclass(frozen=True, slots=True)
class RequestAddress:
    """Where a request goes: to a session and, where it named that by its id, to no other transcript of it.

    The id goes into the unit that does what was asked, which looks whether the session still has it.
    """

    key: SessionKey
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallerKeys:
    """Keys as one caller writes and sees them; the caller is a session, or None for the operator."""

    scheme: KeyScheme
    caller: SessionKey | None

    @property
    def agent(self) -> str:
        """The agent that `main` and bare keys belong to."""
        return self.caller.agent if self.caller else self.scheme.default_agent

    def show(self, key: SessionKey) -> str:
        """Show a key as the caller can pass it back: short to its own agent, in full to the operator."""
        kind = self.scheme.kind(key)
        if self.caller and key.agent == self.caller.agent:
            if kind is Kind.MAIN:
                return "main"
            if kind in (Kind.CRON, Kind.HOOK, Kind.NODE):
                return key.rest
        return self.scheme.shown(str(key))

    def read(self, text: str) -> WrittenAddress:
        """Read `main`, `current`, a full key, a bare key of the caller's agent, or a session id.

        Raises:
            InvalidSessionKey: the text is malformed or reserved, or is `current` from an operator.
        """
        text = text.strip()
        word = text.lower()
        if word == "main":
            return WrittenAddress(text, self.scheme.main(self.agent), None, is_explicit=True)
        if word == "current":
            return WrittenAddress(text, self._current(), None, is_explicit=True)
        is_full = is_full_key(word)
        key = SessionKey.parse(text) if is_full else SessionKey.of(self.agent, *map(decode, split(text)))
        if key.is_reserved:
            raise not_a_key(text, "global and unknown are reserved; " + WHAT_WORKS)
        is_explicit = is_full or len(key.path) > 1 or self.scheme.kind(key) is not Kind.OTHER
        session_id = word if _SESSION_ID.fullmatch(word) else None
        return WrittenAddress(text, self.scheme.in_force(key), session_id, is_explicit)

    def read_id(self, text: str) -> WrittenAddress:
        """Read the id of a session as its name: one that no session has names a new session, `explicit:<id>`.

        Raises:
            InvalidSessionKey: it is blank, or too long.
        """
        word = text.strip().lower()
        key = SessionKey.of(self.agent, "explicit", word)
        return WrittenAddress(text, key, word if _SESSION_ID.fullmatch(word) else None, is_explicit=True)

    def _current(self) -> SessionKey:
        if self.caller is None:
            works = f"write main, or a key such as agent:{self.agent}:main"
            raise InvalidSessionKey(f"'current' is the calling session, and an operator has none ({works})")
        return self.scheme.in_force(self.caller)

    def choose(self, written: WrittenAddress, found: LookedUp) -> SessionResolved:
        """Decide which session was meant; a key wins over a session id.

        Raises:
            SessionIdReplaced: the text is an id that a reset has replaced; the message names the key.
            SessionNotFound: no session has this key or id, and the text alone does not name one; or a session that was
                deleted had the id.
        """
        if found.key_exists:
            return SessionResolved(written.key, exists=True)
        if written.session_id and found.id_key and self.scheme.is_listed(found.id_key):
            if found.id_is_current:
                return SessionResolved(found.id_key, exists=True, session_id=written.session_id)
            shown = self.show(found.id_key)
            message = f"session id {written.session_id} was replaced by a reset (write its key: {shown})"
            raise SessionIdReplaced(message, sessionKey=shown)
        if written.is_explicit and not found.id_is_deleted:
            return SessionResolved(written.key, exists=False)
        raise SessionNotFound(f"no session has the key or id {quoted(written.text)} ({WHAT_WORKS})")

    def resolve(self, text: str, look_up: Callable[[WrittenAddress], LookedUp]) -> SessionResolved:
        """Read a text and choose the session, with a look-up that runs in the caller's transaction."""
        written = self.read(text)
        return self.choose(written, look_up(written))

    def choose_label(self, label: str, matches: Iterable[SessionKey]) -> SessionKey:
        """Decide which of the visible sessions with this label was meant.

        Raises:
            SessionNotFound: none has it.
            AmbiguousLabel: several have it; the message lists them.
        """
        keys = sorted({key for key in matches if self.scheme.is_listed(key)}, key=str)
        match keys:
            case []:
                raise SessionNotFound(f"no session has the label {quoted(label)} (see sessions_list)")
            case [key]:
                return key
        shown = [self.show(key) for key in keys]
        message = f"{len(keys)} sessions have the label {quoted(label)} (write a key: {', '.join(shown)})"
        raise AmbiguousLabel(message, sessionKeys=shown)
