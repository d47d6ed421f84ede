"""An import: the sessions of another program's folder are read, offered to the store one after the other, and reported.

What the store makes of them is its own business (`storage/imports.py`); a `Rehearsal` takes its place when
nothing shall be written. Only one batch of messages is held at a time, however long a transcript is.
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
from backchannel.openclaw.entries import Broken, EntryReader, Foreign, Unfit, read_entries
from backchannel.openclaw.files import (
    LONGEST_LINE,
    Line,
    Shelf,
    Transcript,
    Unreachable,
    find_shelves,
    load_store,
    open_transcript,
    read_lines,
)
from backchannel.openclaw.lines import HEADER, Fault, Heard, Silent, read_line
from backchannel.storage.imports import Batch, Offered, Standing, Taken, rehearse
from backchannel.storage.reading import Reader
from backchannel.storage.store import Store

BATCH_BYTES = 1024 * 1024
BATCH_MESSAGES = 500
SETTLED_AT_ONCE = 100
"""Transcript files are written by one thread, which takes a while to begin: it is given many at a time."""
MOST_PROBLEMS = 50
"""How many lines of one file are named in a report; the others are only counted."""
MOST_TYPES = 20


class Action(StrEnum):
    """What was done with a session, or would be."""

    NEW = "new"
    MORE = "more"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"


@dataclass(slots=True)
class Result:
    """What became of one session."""

    name: str
    file: str
    line: int
    key: str | None = None
    session_id: str | None = None
    action: Action = Action.SKIPPED
    messages: int = 0
    written: int = 0
    reason: str | None = None
    remarks: list[str] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """Show it as JSON does; what is not known is absent."""
        told = {
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
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a file that was passed over."""

    file: str
    line: int
    what: str


@dataclass(slots=True)
class Report:
    """Everything there is to tell about an import."""

    results: list[Result] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unnamed: Counter[str] = field(default_factory=Counter)
    """Of each file, how many problems are not among the `problems`."""
    silent: Counter[str] = field(default_factory=Counter)
    """Lines that are no messages, by their type."""
    unknown: Counter[str] = field(default_factory=Counter)
    """The same, of types that nobody here has heard of."""
    blocks_left_out: int = 0
    strays: int = 0
    """Transcripts that no session points to."""

    def add_problem(self, problem: Problem) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.unnamed[problem.file] += 1

    def add_silent(self, type: str, *, is_known: bool) -> None:
        types = self.silent if is_known else self.unknown
        types[type if type in types or len(types) < MOST_TYPES else "of other types"] += 1

    def add_file(self, other: Report) -> None:
        """Add what was found in one file."""
        self.problems += other.problems
        for mine, others in (
            (self.unnamed, other.unnamed),
            (self.silent, other.silent),
            (self.unknown, other.unknown),
        ):
            mine.update(others)
        self.blocks_left_out += other.blocks_left_out

    def count(self, action: Action) -> int:
        return sum(result.action is action for result in self.results)

    @property
    def changed(self) -> int:
        """How many sessions are new, or have something new."""
        return self.count(Action.NEW) + self.count(Action.MORE)

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
        taken = (result for result in self.results if result.action is not Action.SKIPPED)
        return sorted({SessionKey.stored(result.key).agent for result in taken if result.key is not None})

    def told(self) -> dict[str, Any]:
        """Show it as JSON does."""
        return {
            "counts": {**{action.value: self.count(action) for action in Action}, "messages": self.messages},
            "sessions": [result.told() for result in self.results],
            "problems": [{"file": one.file, "line": one.line, "what": one.what} for one in self.problems],
            "moreProblems": dict(self.unnamed),
            "otherLines": dict(self.silent),
            "unknownLines": dict(self.unknown),
            "blocksLeftOut": self.blocks_left_out,
            "transcriptsWithoutSession": self.strays,
        }


class Target(Protocol):
    """Where sessions are taken to."""

    async def take(self, session: Session, batch: Batch) -> Taken:
        """Take some messages of a session, and with the last of them the session."""
        ...

    async def settle(self, keys: Sequence[str]) -> None:
        """Do what is left to do when sessions are there."""
        ...


class Taking:
    """Takes sessions into the store; `writes_files` says whether it keeps transcripts as files too."""

    def __init__(self, store: Store, *, writes_files: bool) -> None:
        self._store = store
        self._writes_files = writes_files

    async def take(self, session: Session, batch: Batch) -> Taken:
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


class Rehearsal:
    """Tells what would be taken; without a database, all of it."""

    def __init__(self, reader: Reader | None) -> None:
        self._reader = reader

    async def take(self, session: Session, batch: Batch) -> Taken:
        if self._reader is None:
            new = len(batch.offered)
            return Taken(standing=Standing.NEW, key=session.key, place=batch.place + new, written=new)
        with self._reader.snapshot() as tx:
            return rehearse(tx, session, batch)

    async def settle(self, keys: Sequence[str]) -> None: ...


@dataclass(slots=True)
class _Candidate:
    """A session that may be taken."""

    shelf: Shelf
    foreign: Foreign
    result: Result

    @property
    def key(self) -> str:
        return self.foreign.session.key

    def rank(self) -> tuple[bool, int]:
        """Tell who gets a key that several have: not one that can do without it, and then the newest."""
        return (self.foreign.spare is None, self.foreign.session.updated_at)

    def is_spawned(self) -> bool:
        return self.foreign.session.spawned_by is not None


class Importing:
    """One import."""

    def __init__(
        self, root: Path, scheme: KeyScheme, target: Target, on_bytes: Callable[[int], None] = lambda size: None
    ) -> None:
        self.report = Report()
        self._root = root
        self._scheme = scheme
        self._target = target
        self._on_bytes = on_bytes
        self._opened: set[Path] = set()
        self._unsettled: list[str] = []
        self._renamed: dict[str, str] = {}
        """The keys of sessions that got another one here."""

    async def run(self) -> Report:
        """Take every session of the folder that can be taken."""
        shelves = find_shelves(self._root)
        candidates = [candidate for shelf in shelves for candidate in self._read_shelf(shelf)]
        # A session comes before what it spawned, which is told the key that it got.
        for candidate in sorted(self._with_own_keys(candidates), key=_Candidate.is_spawned):
            await self._take(candidate)
            if len(self._unsettled) >= SETTLED_AT_ONCE:
                await self._settle()
        await self._settle()
        transcripts = {path for shelf in shelves for path in shelf.folder.glob("*.jsonl") if not path.is_symlink()}
        self.report.strays = sum(path.resolve() not in self._opened for path in transcripts)
        return self.report

    def _read_shelf(self, shelf: Shelf) -> Iterator[_Candidate]:
        name = self._name(shelf.store)
        try:
            text = load_store(self._root, shelf)
            seen_at = int(shelf.store.stat().st_mtime * 1000)
        except (Unreachable, OSError) as error:
            self.report.add_problem(Problem(name, 1, str(error)))
            return
        reader = EntryReader(self._scheme, shelf.agent)
        for entry in read_entries(text):
            if isinstance(entry, Broken):
                self.report.add_problem(Problem(name, entry.line, entry.reason))
                continue
            read = reader.read(entry, seen_at=seen_at)
            result = Result(entry.key, name, entry.line)
            self.report.results.append(result)
            if isinstance(read, Unfit):
                result.reason = read.reason
            else:
                yield _Candidate(shelf, read, result)

    def _with_own_keys(self, candidates: list[_Candidate]) -> Iterator[_Candidate]:
        """Leave one session to each key: of several, the newest; the others take their spare key or are skipped."""
        holders: dict[str, _Candidate] = {}
        for candidate in sorted(candidates, key=_Candidate.rank, reverse=True):
            if candidate.key in holders and candidate.foreign.spare is not None:
                _rename(candidate, candidate.foreign.spare, self._scheme)
            holder = holders.setdefault(candidate.key, candidate)
            if holder is not candidate:
                candidate.result.reason = f"{holder.foreign.name!r} is the same session ({holder.key}), and newer"
        yield from (candidate for candidate in candidates if holders[candidate.key] is candidate)

    async def _take(self, candidate: _Candidate) -> None:
        session, result = self._with_spawner(candidate.foreign.session), candidate.result
        result.key, result.session_id = session.key, session.session_id
        result.remarks = list(candidate.foreign.remarks)
        try:
            transcript = open_transcript(self._root, candidate.shelf, session.session_id, candidate.foreign.file)
        except Unreachable as error:
            result.reason = str(error)
            return
        self._opened.add(transcript.path.resolve())
        with transcript.file:
            await self._offer(session, transcript, result)
        if result.action is not Action.SKIPPED:
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

    async def _offer(self, session: Session, transcript: Transcript, result: Result) -> None:
        """Offer all messages of a session, a batch at a time."""
        reading = _Reading(transcript, session, self._name(transcript.path), self._on_bytes)
        standing: Standing | None = None
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
            place, written, standing = taken.place, written + taken.written, standing or taken.standing
            reading.add_without_id(taken.without_id)
            if taken.label_holder is not None:
                result.remarks.append(f"label {session.label!r} left out: {taken.label_holder} has it")
        result.action, result.messages, result.written = _action(standing, written), place, written
        self.report.add_file(reading.found)

    def _name(self, path: Path) -> str:
        shown = path.relative_to(self._root) if path.is_relative_to(self._root) else path
        return str(shown).encode("utf-8", "replace").decode()  # names of files are any bytes


def _action(standing: Standing | None, written: int) -> Action:
    if standing is not Standing.HERE:
        return Action.NEW
    return Action.MORE if written else Action.UNCHANGED


def _rename(candidate: _Candidate, key: str, scheme: KeyScheme) -> None:
    named = SessionKey.stored(key)
    session = msgspec.structs.replace(
        candidate.foreign.session, key=key, kind=scheme.kind(named).value, channel=named.channel
    )
    candidate.foreign = msgspec.structs.replace(candidate.foreign, session=session)


class _Reading:
    """One transcript on its way through: messages in batches, and what was found besides them."""

    def __init__(self, transcript: Transcript, session: Session, name: str, on_bytes: Callable[[int], None]) -> None:
        self.found = Report()
        self._file = transcript.file
        self._session_id = session.session_id
        self._name = name
        self._on_bytes = on_bytes
        self._before = session.created_at

    def batches(self) -> Iterator[tuple[list[Offered], bool]]:
        """Give the messages in batches, and tell which one is the last."""
        batch: list[Offered] = []
        size = read = 0
        for line in read_lines(self._file):
            read += line.size
            if read >= BATCH_BYTES:
                self._on_bytes(read)
                read = 0
            heard = self._read(line)
            if heard is None:
                continue
            if size >= BATCH_BYTES or len(batch) >= BATCH_MESSAGES:
                yield batch, False
                batch, size = [], 0
            batch.append(Offered(line.number, _ids(self._session_id, heard.id, line.number), heard.message))
            size += heard.size
        self._on_bytes(read)
        yield batch, True

    def add_without_id(self, lines: tuple[int, ...]) -> None:
        for line in lines:
            self._add_problem(line, "its id, and those that could be made of it, belong to other messages")

    def _read(self, line: Line) -> Heard | None:
        if line.data is None:
            self._add_problem(line.number, f"longer than {LONGEST_LINE // 2**20} MiB ({line.size} bytes)")
            return None
        if not line.data:
            return None
        match read_line(line.data, before=self._before):
            case Heard() as heard:
                self._before = heard.message.timestamp
                self.found.blocks_left_out += heard.left_out
                return heard
            case Silent(type, is_known) if type != HEADER:
                self.found.add_silent(type, is_known=is_known)
            case Fault(reason):
                self._add_problem(line.number, reason if line.is_whole else f"half-written last line ({reason})")
        return None

    def _add_problem(self, line: int, what: str) -> None:
        self.found.add_problem(Problem(self._name, line, what))


def _ids(session_id: str, id: str | None, line: int) -> tuple[str, ...]:
    """List the ids that a message may get: its own, if no other transcript has it, or one made of its place."""
    if id is None:
        return (f"{session_id}/{line}",)
    return (id, f"{session_id}/{id}", f"{session_id}/{id}/{line}")
