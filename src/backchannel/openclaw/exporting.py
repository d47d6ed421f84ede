"""An export: sessions and transcripts in OpenClaw's form, as `backchannel import` reads it.

The gateway is asked a page at a time, and asked again where it was restarted in between. Each session is written as
it was when it was listed. All files come into place together when the last one is stored: see `staging`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from backchannel.cli.client import ANSWER_S, GatewayClient, Link, Payload, decode
from backchannel.cli.options import CommandFailed
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message
from backchannel.core.text import quoted
from backchannel.errors import InvalidSessionKey
from backchannel.openclaw.entries import SESSION_ID
from backchannel.openclaw.files import STORE_FILE, iso_time
from backchannel.openclaw.staging import StagingFolder
from backchannel.openclaw.writing import line_of

T = TypeVar("T")
READ_AHEAD = 8
"""How many transcripts are begun at a time: most are short, and a far gateway takes a while to answer."""


@dataclass(frozen=True, slots=True)
class SessionExported:
    """A session that was written."""

    key: str
    session_id: str
    messages: int
    file: Path


class ListedSession(msgspec.Struct, frozen=True, rename="camel"):
    """A session as `sessions.export` lists it."""

    key: str
    session_id: str
    length: int
    entry: dict[str, Any]
    header: dict[str, Any]

    @property
    def agent(self) -> str:
        """The agent whose folder it goes to.

        Raises:
            CommandFailed: its names would lead out of the folder; no gateway of ours says such a thing.
        """
        try:
            key = SessionKey.parse(self.key)
        except InvalidSessionKey as error:
            raise CommandFailed(f"the gateway tells of a session that cannot be written: {error}") from error
        if not SESSION_ID.fullmatch(self.session_id):
            raise CommandFailed(
                f"the gateway tells of a session that cannot be written: {quoted(self.session_id)} is no name of a file"
            )
        return key.agent


class _Listing(msgspec.Struct, frozen=True):
    sessions: list[ListedSession]
    next: str | None = None


class _Passage(msgspec.Struct, frozen=True):
    """Some of a transcript: whole messages, or a part of one, which `offset` says is not the last."""

    lines: list[Message]
    part: str | None = None
    next: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ExportFilter:
    """Which sessions are exported: those named, else all; of one agent, else of every one."""

    keys: tuple[str, ...] = ()
    agent: str | None = None
    archived: bool = False


class SessionExport:
    """One export."""

    def __init__(self, link: Link, folder: Path, wanted: ExportFilter) -> None:
        self._link = link
        self._folder = folder
        self._wanted = wanted

    def run(self) -> Iterator[SessionExported]:
        """Write the sessions, and give each one that is written. They are in place when the last one was given."""
        with StagingFolder(self._folder) as staging:
            for agent, listed in groupby(self._sessions(), lambda one: one.agent):
                yield from self._write_agent(staging, self._folder / "agents" / agent / "sessions", listed)
            staging.publish()

    def _sessions(self) -> Iterator[ListedSession]:
        wanted = self._wanted
        after: str | None = None
        asked = {"keys": wanted.keys or None, "agentId": wanted.agent, "archived": wanted.archived}
        while True:
            (listing,) = self._ask("sessions.export", _Listing, [{**asked, "after": after}])
            yield from listing.sessions
            if listing.next is None:
                return
            after = listing.next

    def _write_agent(
        self, staging: StagingFolder, folder: Path, sessions: Iterator[ListedSession]
    ) -> Iterator[SessionExported]:
        with staging.writing(folder / STORE_FILE) as store:
            before = b"{"
            while some := list(islice(sessions, READ_AHEAD)):
                begun = self._ask("transcripts.read", _Passage, [_beginning(one) for one in some])
                for one, page in zip(some, begun, strict=True):
                    written = self._write_transcript(staging, folder / f"{one.session_id}.jsonl", one, page)
                    store.write(before + b"\n  " + _json(one.key) + b": " + _json(one.entry))
                    before = b","
                    yield written
            store.write(b"\n}\n")

    def _write_transcript(
        self, staging: StagingFolder, path: Path, one: ListedSession, begun: _Passage
    ) -> SessionExported:
        parent: str | None = None
        count, followers = 0, dict[str | None, str]()
        with staging.writing(path) as file:
            file.write(_json(one.header) + b"\n")
            for message in self._messages(one, begun):
                entry = message.compaction
                first_kept = None if entry is None else followers.get(entry.through_message_id)
                file.write(_json(line_of(message, parent, iso_time(message.timestamp), first_kept)) + b"\n")
                followers[parent] = message.id
                parent, count = message.id, count + 1
        return SessionExported(one.key, one.session_id, count, path)

    def _messages(self, one: ListedSession, passage: _Passage) -> Iterator[Message]:
        parts: list[str] = []
        while True:
            yield from passage.lines
            if passage.part is not None:
                parts.append(passage.part)
            if parts and passage.offset is None:  # the message is whole
                yield decode("".join(parts), Message)
                parts.clear()
            if passage.next is None:
                return
            asked = {**_beginning(one), "from": passage.next, "offset": passage.offset}
            (passage,) = self._ask("transcripts.read", _Passage, [asked])

    def _ask(self, method: str, shape: type[T], each: list[Payload]) -> list[T]:
        def ask(client: GatewayClient) -> list[T]:
            requests = [client.ask(method, **params) for params in each]
            return [client.wait(request, shape, ANSWER_S) for request in requests]

        return self._link.ask(ask)


def _beginning(one: ListedSession) -> Payload:
    return {"sessionId": one.session_id, "until": one.length}


_json = msgspec.json.Encoder().encode
