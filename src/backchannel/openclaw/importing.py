"""An import: the sessions of another program's folder, read and offered to the store.

The store decides what becomes of them (`storage/units/imports.py`); a `DryRun` stands in for it when nothing is to be
written. Only one batch of messages is in memory at a time, however long a transcript is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.sessions import Session
from backchannel.openclaw.entries import EntryReader, ReadSession, UnreadableRest, UnusableEntry, read_entries
from backchannel.openclaw.files import (
    LONGEST_LINE,
    OpenTranscript,
    RawLine,
    SessionsFolder,
    UnreadableFile,
    find_session_folders,
    load_store,
    open_transcript,
    read_lines,
)
from backchannel.openclaw.lines import HEADER, OtherLine, ReadMessage, UnreadableLine, read_line
from backchannel.storage.driver import Reader
from backchannel.storage.store import Store
from backchannel.storage.units.imports import Batch, ImportState, MessageOffered, TakenBatch, rehearse

BATCH_BYTES = 1024 * 1024
BATCH_MESSAGES = 500
SETTLED_AT_ONCE = 100
"""Transcript files are written by one thread, which takes a while to begin: it is given many at a time."""
MOST_PROBLEMS = 50
"""How many lines of one file are named in a report; the others are only counted."""
MOST_TYPES = 20


class ImportAction(StrEnum):
    """What was done with a session, or would be."""

    NEW = "new"
    MORE = "more"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"


@dataclass(slots=True)
class SessionResult:
    """What became of one session."""

    name: str
    file: str
    line: int
    key: str | None = None
    session_id: str | None = None
    action: ImportAction = ImportAction.SKIPPED
    messages: int = 0
    written: int = 0
    reason: str | None = None
    remarks: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON; what is not known is absent."""
        shown = {
            "from": self.name,
            "where": f"{self.file}:{self.line}",
            "key": self.key,
            "sessionId": self.session_id,
            "action": self.action.value,
            "messages": self.messages,
            "written": self.written,
            "reason": self.reason,
            "remarks": self.remarks,
        }
        return {name: value for name, value in shown.items() if value is not None}


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Something in a file that was passed over."""

    file: str
    line: int
    what: str


@dataclass(slots=True)
class ImportReport:
    """What became of an import: of each session, and of everything that was not as it should be."""

    results: list[SessionResult] = field(default_factory=list)
    problems: list[FileProblem] = field(default_factory=list)
    unnamed: Counter[str] = field(default_factory=Counter)
    """Of each file, how many problems are not among the `problems`."""
    other_lines: Counter[str] = field(default_factory=Counter)
    """Lines that are no messages, by their type."""
    unknown_lines: Counter[str] = field(default_factory=Counter)
    """The same, of unknown types."""
    blocks_left_out: int = 0
    strays: int = 0
    """Transcripts that no session points to."""

    def add_problem(self, problem: FileProblem) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.unnamed[problem.file] += 1

    def add_other_line(self, type: str, *, is_known: bool) -> None:
        types = self.other_lines if is_known else self.unknown_lines
        types[type if type in types or len(types) < MOST_TYPES else "of other types"] += 1

    def add_file(self, other: ImportReport) -> None:
        """Add what was found in one file."""
        self.problems += other.problems
        for mine, others in (
            (self.unnamed, other.unnamed),
            (self.other_lines, other.other_lines),
            (self.unknown_lines, other.unknown_lines),
        ):
            mine.update(others)
        self.blocks_left_out += other.blocks_left_out

    def count(self, action: ImportAction) -> int:
        return sum(result.action is action for result in self.results)

    @property
    def changed(self) -> int:
        """How many sessions are new, or have something new."""
        return self.count(ImportAction.NEW) + self.count(ImportAction.MORE)

    @property
    def has_work(self) -> bool:
        """Whether anything is new."""
        return self.changed > 0

    @property
    def messages(self) -> int:
        return sum(result.written for result in self.results)

    @property
    def agents(self) -> list[str]:
        """The agents whose sessions are taken."""
        taken = (result for result in self.results if result.action is not ImportAction.SKIPPED)
        return sorted({SessionKey.stored(result.key).agent for result in taken if result.key is not None})

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON."""
        return {
            "counts": {**{action.value: self.count(action) for action in ImportAction}, "messages": self.messages},
            "sessions": [result.as_json() for result in self.results],
            "problems": [{"file": one.file, "line": one.line, "what": one.what} for one in self.problems],
            "moreProblems": dict(self.unnamed),
            "otherLines": dict(self.other_lines),
            "unknownLines": dict(self.unknown_lines),
            "blocksLeftOut": self.blocks_left_out,
            "transcriptsWithoutSession": self.strays,
        }


class ImportTarget(Protocol):
    """Where sessions are imported to: the store, or nowhere in a dry run."""

    async def take(self, session: Session, batch: Batch) -> TakenBatch:
        """Take some messages of a session, and with the last of them the session."""
        ...

    async def settle(self, keys: Sequence[str]) -> None:
        """Finish sessions that are stored, some at a time."""
        ...


class StoreTarget:
    """Imports sessions into the store; `writes_files` says whether it keeps transcripts as files too."""

    def __init__(self, store: Store, *, writes_files: bool) -> None:
        self._store = store
        self._writes_files = writes_files

    async def take(self, session: Session, batch: Batch) -> TakenBatch:
        return await self._store.take_session(session, batch)

    async def settle(self, keys: Sequence[str]) -> None:
        """Bring transcript files up to date."""
        if self._writes_files:
            await asyncio.gather(*(self._settle_file(key) for key in keys))

    async def _settle_file(self, key: str) -> None:
        """Write a file anew if it is not as large as it should be: it is missing, or a crash left it behind."""
        here = await self._store.session(key)
        if here is None:
            return
        path = self._store.transcript_file(here)
        size = path.stat().st_size if path.exists() else None
        if size != await self._store.transcript_bytes(here.session_id):
            await self._store.rebuild_transcript(here.session_id)


class DryRun:
    """Finds out what would be imported, and writes nothing; without a database, that is everything."""

    def __init__(self, reader: Reader | None) -> None:
        self._reader = reader

    async def take(self, session: Session, batch: Batch) -> TakenBatch:
        if self._reader is None:
            new = len(batch.offered)
            return TakenBatch(state=ImportState.NEW, key=session.key, place=batch.place + new, written=new)
        with self._reader.snapshot() as tx:
            return rehearse(tx, session, batch)

    async def settle(self, keys: Sequence[str]) -> None: ...


@dataclass(slots=True)
class _Candidate:
    """A session that may be taken."""

    folder: SessionsFolder
    read: ReadSession
    result: SessionResult

    @property
    def key(self) -> str:
        return self.read.session.key

    def rank(self) -> tuple[bool, int]:
        """Order those that have the same key: first those without a spare key, then the newest."""
        return (self.read.spare is None, self.read.session.updated_at)

    def is_spawned(self) -> bool:
        return self.read.session.spawned_by is not None


class SessionImport:
    """One import."""

    def __init__(
        self, root: Path, scheme: KeyScheme, target: ImportTarget, on_bytes: Callable[[int], None] = lambda size: None
    ) -> None:
        self.report = ImportReport()
        self._root = root
        self._scheme = scheme
        self._target = target
        self._on_bytes = on_bytes
        self._opened: set[Path] = set()
        self._unsettled: list[str] = []
        self._renamed: dict[str, str] = {}
        """The keys of sessions that got another one here."""

    async def run(self) -> ImportReport:
        """Take every session of the folder that can be taken."""
        folders = find_session_folders(self._root)
        candidates = [candidate for folder in folders for candidate in self._read_folder(folder)]
        # A session comes before what it spawned, which refers to it by the key that it got.
        for candidate in sorted(self._with_own_keys(candidates), key=_Candidate.is_spawned):
            await self._take(candidate)
            if len(self._unsettled) >= SETTLED_AT_ONCE:
                await self._settle()
        await self._settle()
        transcripts = {path for folder in folders for path in folder.path.glob("*.jsonl") if not path.is_symlink()}
        self.report.strays = sum(path.resolve() not in self._opened for path in transcripts)
        return self.report

    def _read_folder(self, folder: SessionsFolder) -> Iterator[_Candidate]:
        name = self._name(folder.store)
        try:
            text = load_store(self._root, folder)
            seen_at = int(folder.store.stat().st_mtime * 1000)
        except (UnreadableFile, OSError) as error:
            self.report.add_problem(FileProblem(name, 1, str(error)))
            return
        reader = EntryReader(self._scheme, folder.agent)
        for entry in read_entries(text):
            if isinstance(entry, UnreadableRest):
                self.report.add_problem(FileProblem(name, entry.line, entry.reason))
                continue
            read = reader.read(entry, seen_at=seen_at)
            result = SessionResult(entry.key, name, entry.line)
            self.report.results.append(result)
            if isinstance(read, UnusableEntry):
                result.reason = read.reason
            else:
                yield _Candidate(folder, read, result)

    def _with_own_keys(self, candidates: list[_Candidate]) -> Iterator[_Candidate]:
        """Leave one session to each key: of several, the newest; the others take their spare key or are skipped."""
        holders: dict[str, _Candidate] = {}
        for candidate in sorted(candidates, key=_Candidate.rank, reverse=True):
            if candidate.key in holders and candidate.read.spare is not None:
                _rename(candidate, candidate.read.spare, self._scheme)
            holder = holders.setdefault(candidate.key, candidate)
            if holder is not candidate:
                candidate.result.reason = f"{holder.read.name!r} is the same session ({holder.key}), and newer"
        yield from (candidate for candidate in candidates if holders[candidate.key] is candidate)

    async def _take(self, candidate: _Candidate) -> None:
        session, result = self._with_spawner(candidate.read.session), candidate.result
        result.key, result.session_id = session.key, session.session_id
        result.remarks = list(candidate.read.remarks)
        try:
            transcript = open_transcript(self._root, candidate.folder, session.session_id, candidate.read.file)
        except UnreadableFile as error:
            result.reason = str(error)
            return
        self._opened.add(transcript.path.resolve())
        with transcript.file:
            await self._offer(session, transcript, result)
        if result.action is not ImportAction.SKIPPED:
            self._unsettled.append(result.key)
            if result.key != session.key:
                self._renamed[session.key] = result.key
                result.remarks.append(f"another session here has {session.key}")

    def _with_spawner(self, session: Session) -> Session:
        spawner = self._renamed.get(session.spawned_by or "")
        return session if spawner is None else msgspec.structs.replace(session, spawned_by=spawner)

    async def _settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, []
        await self._target.settle(unsettled)

    async def _offer(self, session: Session, transcript: OpenTranscript, result: SessionResult) -> None:
        """Offer all messages of a session, a batch at a time."""
        reading = _Reading(transcript, session, self._name(transcript.path), self._on_bytes)
        state: ImportState | None = None
        place = written = 0
        for offered, is_last in reading.batches():
            taken = await self._target.take(session, Batch(place, offered, is_last))
            if taken.starts_over:
                transcript.file.seek(0)
                await self._offer(session, transcript, result)
                return
            if taken.refusal is not None:
                result.reason = taken.refusal
                return
            result.key = taken.key
            place, written, state = taken.place, written + taken.written, state or taken.state
            reading.add_without_id(taken.without_id)
            if taken.label_holder is not None:
                result.remarks.append(f"label {session.label!r} left out: {taken.label_holder} has it")
        result.action, result.messages, result.written = _action(state, written), place, written
        self.report.add_file(reading.found)

    def _name(self, path: Path) -> str:
        shown = path.relative_to(self._root) if path.is_relative_to(self._root) else path
        return str(shown).encode("utf-8", "replace").decode()  # names of files are any bytes


def _action(state: ImportState | None, written: int) -> ImportAction:
    if state is not ImportState.HERE:
        return ImportAction.NEW
    return ImportAction.MORE if written else ImportAction.UNCHANGED


def _rename(candidate: _Candidate, key: str, scheme: KeyScheme) -> None:
    named = SessionKey.stored(key)
    session = msgspec.structs.replace(
        candidate.read.session, key=key, kind=scheme.kind(named).value, channel=named.channel
    )
    candidate.read = msgspec.structs.replace(candidate.read, session=session)


class _Reading:
    """Reads one transcript: messages in batches, and what was found besides them."""

    def __init__(
        self, transcript: OpenTranscript, session: Session, name: str, on_bytes: Callable[[int], None]
    ) -> None:
        self.found = ImportReport()
        self._file = transcript.file
        self._session_id = session.session_id
        self._name = name
        self._on_bytes = on_bytes
        self._before = session.created_at
        self._last: tuple[str | None, int] = (None, 0)
        """The id of the last message, and how many there are."""
        self._places: dict[str, tuple[str | None, int]] = {}
        """The same as it was before each message, by its id."""

    def batches(self) -> Iterator[tuple[list[MessageOffered], bool]]:
        """Give the messages in batches, each with whether it is the last."""
        batch: list[MessageOffered] = []
        size = read = 0
        for line in read_lines(self._file):
            read += line.size
            if read >= BATCH_BYTES:
                self._on_bytes(read)
                read = 0
            message = self._read(line)
            if message is None:
                continue
            if size >= BATCH_BYTES or len(batch) >= BATCH_MESSAGES:
                yield batch, False
                batch, size = [], 0
            batch.append(MessageOffered(line.number, _ids(self._session_id, message.id, line.number), message.message))
            size += message.size
        self._on_bytes(read)
        yield batch, True

    def add_without_id(self, lines: tuple[int, ...]) -> None:
        for line in lines:
            self._add_problem(line, "its id, and those that could be made of it, belong to other messages")

    def _read(self, line: RawLine) -> ReadMessage | None:
        if line.data is None:
            self._add_problem(line.number, f"longer than {LONGEST_LINE // 2**20} MiB ({line.size} bytes)")
            return None
        if not line.data:
            return None
        match read_line(line.data, before=self._before):
            case ReadMessage() as message:
                self._before = message.message.timestamp
                self.found.blocks_left_out += message.left_out
                return self._placed(message)
            case OtherLine(type, is_known) if type != HEADER:
                self.found.add_other_line(type, is_known=is_known)
            case UnreadableLine(reason):
                self._add_problem(line.number, reason if line.is_whole else f"half-written last line ({reason})")
        return None

    def _placed(self, read: ReadMessage) -> ReadMessage:
        """Find what a compaction of OpenClaw covers; one that names no message here is a note."""
        entry, id = read.message.compaction, read.id
        if entry is not None and not entry.through_message_id:
            before, count = self._places.get(read.first_kept or "", (None, 0))
            covers = before and msgspec.structs.replace(entry, through_message_id=before, messages=count)
            read = msgspec.structs.replace(read, message=msgspec.structs.replace(read.message, compaction=covers))
        if id is not None:
            self._places[id] = self._last
        self._last = id or self._last[0], self._last[1] + (entry is None)
        return read

    def _add_problem(self, line: int, what: str) -> None:
        self.found.add_problem(FileProblem(self._name, line, what))


def _ids(session_id: str, id: str | None, line: int) -> tuple[str, ...]:
    """List the ids that a message may get: its own, if no other transcript has it, or one made of its place."""
    if id is None:
        return (f"{session_id}/{line}",)
    return (id, f"{session_id}/{id}", f"{session_id}/{id}/{line}")
