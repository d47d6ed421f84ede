"""An export: sessions and their transcripts in the form of OpenClaw, as `backchannel import` reads it too.

It reads the database beside a running gateway, one session after the other, each as it is at one moment. A file is
complete or not there; `sessions.json` comes last, so it never names a transcript that is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import msgspec

from backchannel.core.foreign.writing import entry_of, header_of, line_of
from backchannel.core.keys import CallerKeys, Found, KeyScheme, SessionKey, Written
from backchannel.core.messages import decode_message
from backchannel.core.sessions import Session
from backchannel.errors import SessionNotFound
from backchannel.storage.foreign import STORE_FILE
from backchannel.storage.reading import Reader
from backchannel.storage.transactions import exports, sessions
from backchannel.storage.tx import Tx

PAGE = 500


@dataclass(frozen=True, slots=True)
class Exported:
    """A session that was written."""

    key: str
    session_id: str
    messages: int
    file: Path


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sessions are exported: those named, else all; of one agent, else of every one."""

    keys: frozenset[str] = field(default_factory=frozenset)
    agent: str | None = None
    archived: bool = False

    def has(self, listed: exports.Listed) -> bool:
        if listed.is_archived and not self.archived:
            return False
        is_named = not self.keys or listed.key in self.keys
        return is_named and self.agent in (None, SessionKey.stored(listed.key).agent)


def find_keys(tx: Tx, scheme: KeyScheme, texts: list[str]) -> frozenset[str]:
    """Find the sessions that a person named, by keys as people write them or by session ids.

    Raises:
        InvalidSessionKey, SessionIdReplaced
        SessionNotFound: there is none.
    """
    keys = CallerKeys(scheme, None)

    def look_up(written: Written) -> Found:
        entry = sessions.by_id(tx, written.session_id) if written.session_id else None
        return Found(
            key_exists=sessions.find(tx, str(written.key)) is not None,
            id_key=None if entry is None else SessionKey.stored(entry.key),
            id_is_current=entry is not None and entry.is_current,
        )

    found = {text: keys.resolve(text, look_up) for text in texts}
    for text, resolved in found.items():
        if not resolved.exists:
            raise SessionNotFound(f"there is no session {text!r}")
    return frozenset(str(resolved.key) for resolved in found.values())


class Exporting:
    """One export."""

    def __init__(self, reader: Reader, scheme: KeyScheme, folder: Path, wanted: Wanted) -> None:
        self._reader = reader
        self._scheme = scheme
        self._folder = folder
        self._wanted = wanted

    def run(self) -> Iterator[Exported]:
        """Write the sessions, and tell of each."""
        for agent, keys in groupby(self._keys(), lambda key: SessionKey.stored(key).agent):
            yield from self._write_agent(self._folder / "agents" / agent / "sessions", keys)

    def _keys(self) -> Iterator[str]:
        after = ""
        while True:
            with self._reader.snapshot() as tx:
                page = exports.listed_after(tx, after, PAGE)
            if not page:
                return
            after = page[-1].key
            yield from (listed.key for listed in page if self._wanted.has(listed) and self._is_shown(listed.key))

    def _is_shown(self, key: str) -> bool:
        return self._scheme.is_listed(SessionKey.stored(key))

    def _write_agent(self, folder: Path, keys: Iterator[str]) -> Iterator[Exported]:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _written(folder / STORE_FILE) as store:
            before = b"{"
            for key in keys:
                with self._reader.snapshot() as tx:
                    session = sessions.required_session(tx, key)
                    exported = _write_transcript(tx, folder, session)
                store.write(before + b"\n  " + _json(key) + b": " + _json(entry_of(session)))
                before = b","
                yield exported
            store.write(b"\n}\n")


def _write_transcript(tx: Tx, folder: Path, session: Session) -> Exported:
    path = folder / f"{session.session_id}.jsonl"
    parent: str | None = None
    count = 0
    with _written(path) as file:
        file.write(_json(header_of(session, _iso(session.created_at))) + b"\n")
        for body in exports.lines(tx, session.session_id):
            message = decode_message(body)
            file.write(_json(line_of(message, parent, _iso(message.timestamp))) + b"\n")
            parent, count = message.id, count + 1
    return Exported(session.key, session.session_id, count, path)


_json = msgspec.json.Encoder().encode


def _iso(at_ms: int) -> str:
    seconds, ms = divmod(at_ms, 1000)
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # no date has such a number; the message keeps it all the same
        at = datetime.fromtimestamp(0, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S") + f".{ms:03}Z"


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Write a file that only its owner can read, and that is there all at once or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
