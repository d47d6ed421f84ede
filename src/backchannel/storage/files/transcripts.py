"""Transcript files: one JSON line a message, written after each commit.

The files are for `tail -f` and grep; the database is the truth. One thread appends and rebuilds, so each file has one
writer. It checks a file before its first append, and whenever the file is not as it left it. A torn last line is cut,
missing lines are filled in from the database, and a file that is not ours is rewritten. A note beside the database says
how far the files are. So a start fills in what a killed process had not written, also for ended sessions, and checks no
other files. A file that cannot be written is logged once and tried again with the next message; no run fails.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

import msgspec
import structlog

from backchannel.core.facts import Fact, MessageAppended, TranscriptClosed
from backchannel.core.keys import SessionKey
from backchannel.core.sessions import SessionIdEntry
from backchannel.core.stored import StoredForm
from backchannel.errors import DatabaseUnusable, Unavailable
from backchannel.storage.driver import Reader
from backchannel.storage.files.folder import archived_path
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import messages
from backchannel.storage.views import exports

log = structlog.get_logger(__name__)

PathOf = Callable[[str, str], Path]
LARGEST_READ = 1000
MOST_ENDS = 10_000
OVERLAP = 1000
"""How many messages before the noted one are checked too: a power cut may keep the note and lose a line."""
_MOST_LOOKED_AT = 100_000
TAIL = 65_536
_NOTE = "the note of how far the files are"
NOTE_EVERY_S = 1.0
MOST_UNNOTED = 500
_PATIENCE_S = 0.2
"""How long lines are collected: the messages of a run, or of several, are then mostly one append."""
AWAY_PAUSE_S = 1.0


class _End(NamedTuple):
    """The end of a file: the number of its next message, its size, and its path."""

    seq: int
    size: int
    path: str


class _Rebuild(NamedTuple):
    session_id: str
    path: Path
    done: Future[int]


class _Line(msgspec.Struct):
    """The part of a line that is checked."""

    id: str


_STORED_LINE: StoredForm[_Line] = StoredForm(_Line)


class Transcripts:
    """Follows the commits of one database with files."""

    def __init__(self, open_reader: Callable[[], AbstractContextManager[Reader]], note: Path, path_of: PathOf) -> None:
        """Begin to follow. The file `note` says how far the files are."""
        self._open_reader = open_reader
        self._path_of = path_of
        self._queue: SimpleQueue[Sequence[Fact | _Rebuild] | None] = SimpleQueue()
        self._note = note
        self._ends: dict[str, _End] = {}
        self._failed: set[str] = set()
        self._newest: MessageAppended | None = None
        """The last message that is in its file but not noted yet."""
        self._unnoted = 0
        self._note_at = 0.0
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="transcripts", daemon=True)
        self._thread.start()

    def committed(self, facts: Sequence[Fact]) -> None:
        """Take the facts of a commit; returns at once."""
        wanted = [fact for fact in facts if isinstance(fact, MessageAppended | TranscriptClosed)]
        if wanted:
            self._queue.put(wanted)

    def rebuild(self, session_id: str, path: Path) -> Future[int]:
        """Rewrite a file from the database; the result is the number of its lines."""
        if not self._thread.is_alive():
            raise Unavailable("the transcript files are closed")
        wanted = _Rebuild(session_id, path, Future())
        self._queue.put([wanted])
        return wanted.done

    def close(self) -> None:
        """Write the waiting lines, then stop."""
        self._is_closing.set()
        self._queue.put(None)
        self._thread.join()

    def _follow(self) -> None:
        while True:
            try:
                with self._open_reader() as reader:
                    self._follow_with(reader.newest)
                return
            except (Unavailable, DatabaseUnusable) as error:  # it is away, or not ours any more: the gateway ends then
                log.warning("the transcript files wait", error=error.message)
                if self._is_closing.wait(AWAY_PAUSE_S):
                    return

    def _follow_with(self, tx: Tx) -> None:
        for closed in _closed_lately(tx):
            self._guarded(closed.session_id, lambda closed=closed: self._archive(closed))  # type: ignore[misc]
        for entry in _written_lately(tx, _read_note(self._note)):
            self._guarded(entry.session_id, lambda entry=entry: self._fill(tx, entry))  # type: ignore[misc]
        while (facts := self._queue.get()) is not None:
            self._is_closing.wait(_PATIENCE_S)
            self._write(tx, self._with_waiting(facts))
        self._write_note(tx)

    def _with_waiting(self, facts: Sequence[Fact | _Rebuild]) -> list[Fact | _Rebuild]:
        batch = list(facts)
        try:
            while (more := self._queue.get_nowait()) is not None:
                batch += more
            self._queue.put(None)
        except Empty:
            pass
        return batch

    def _write(self, tx: Tx, batch: Iterable[Fact | _Rebuild]) -> None:
        lines: dict[str, list[MessageAppended]] = {}
        closed, rebuilds = [], []
        newest: MessageAppended | None = None
        for entry in batch:
            if isinstance(entry, MessageAppended):
                newest = entry
                lines.setdefault(entry.session_id, []).append(entry)
            elif isinstance(entry, TranscriptClosed):
                closed.append(entry)
            elif isinstance(entry, _Rebuild):
                rebuilds.append(entry)
        for appended in lines.values():
            self._guarded(appended[0].session_id, lambda appended=appended: self._append(tx, appended))  # type: ignore[misc]
        for fact in closed:
            self._guarded(fact.session_id, lambda fact=fact: self._archive(fact))  # type: ignore[misc]
        self._newest = newest or self._newest
        self._unnoted += sum(map(len, lines.values()))
        self._write_note(tx)
        for wanted in rebuilds:
            self._rebuild(tx, wanted)

    def _write_note(self, tx: Tx) -> None:
        """Note how far the files are, from time to time. With an older note a start checks a few more files."""
        newest = self._newest
        is_due = self._unnoted >= MOST_UNNOTED or monotonic() >= self._note_at or self._is_closing.is_set()
        if newest is not None and is_due and not self._failed - {_NOTE}:
            self._newest, self._unnoted, self._note_at = None, 0, monotonic() + NOTE_EVERY_S
            self._guarded(_NOTE, lambda: _write_note(self._note, tx, newest))

    def _guarded(self, session_id: str, write: Callable[[], None]) -> None:
        try:
            write()
            self._failed.discard(session_id)
        except (OSError, Unavailable) as error:
            self._ends.pop(session_id, None)  # look at the file again before the next append
            if session_id not in self._failed:
                self._failed.add(session_id)
                log.warning("transcript file not written", session_id=session_id, error=str(error))

    def _append(self, tx: Tx, appended: list[MessageAppended]) -> None:
        session_id, last = appended[0].session_id, appended[-1]
        end = self._ends.get(session_id)
        added = b"".join([fact.line + b"\n" for fact in appended])
        if end is not None and end.seq == appended[0].seq and _append_at(end, added):
            self._ends[session_id] = _End(last.seq + 1, end.size + len(added), end.path)
            return
        path = self._path(last.key, session_id)
        end = _mend(tx, path, session_id)
        if end.seq <= last.seq:  # else it was written anew just now, with all that the database has
            is_next = end.seq == appended[0].seq
            lines = (fact.line for fact in appended) if is_next else _lines(tx, session_id, end.seq, last.seq)
            size = _append_lines(path, lines)
            end = _End(last.seq + 1, size, end.path)
        self._ends[session_id] = end
        if len(self._ends) > MOST_ENDS:
            self._ends.pop(next(iter(self._ends)))

    def _archive(self, closed: TranscriptClosed) -> None:
        path = self._path(closed.key, closed.session_id)
        archived = archived_path(path, closed.at)
        self._ends.pop(closed.session_id, None)
        if path.exists() and not path.is_symlink():
            path.rename(archived)
        if closed.is_named and archived.exists() and not os.path.lexists(path):
            path.symlink_to(archived.name)

    def _fill(self, tx: Tx, entry: SessionIdEntry) -> None:
        """Append what the previous process had committed but not written."""
        path = self.path_of(entry)
        if not _ends_with_newest(tx, path, entry.session_id):
            end = _mend(tx, path, entry.session_id)
            _append_lines(path, _lines(tx, entry.session_id, end.seq, sys.maxsize - 1))

    def path_of(self, entry: SessionIdEntry) -> Path:
        """Return the path of a transcript's file, also of an archived session."""
        path = self._path(entry.key, entry.session_id)
        is_archived = entry.end_reason == "deleted" and entry.ended_at is not None
        return archived_path(path, entry.ended_at or 0) if is_archived else path

    def _rebuild(self, tx: Tx, wanted: _Rebuild) -> None:
        if not wanted.done.set_running_or_notify_cancel():
            return
        self._ends.pop(wanted.session_id, None)
        try:
            wanted.done.set_result(_write_anew(tx, wanted.session_id, wanted.path).seq)
        except OSError as error:
            wanted.done.set_exception(Unavailable(f"{wanted.path} cannot be written ({error.strerror})"))
        except Unavailable as error:
            wanted.done.set_exception(error)

    def _path(self, key: str, session_id: str) -> Path:
        return self._path_of(SessionKey.stored(key).agent, session_id)


def _closed_lately(tx: Tx) -> list[TranscriptClosed]:
    """List the transcripts that the previous process closed: it may have died before it renamed their files."""
    rows = tx.all(
        "WITH last(start) AS (SELECT coalesce(max(started_at), 0) FROM processes "
        "WHERE number < (SELECT max(number) FROM processes)) "
        "SELECT key, session_id, ended_at, 0 FROM session_ids, last WHERE end_reason = 'deleted' AND ended_at >= start "
        # One that was archived as of an earlier time is known by its row.
        "UNION SELECT key, session_id, archived_at, "
        "CASE WHEN spawned_by IS NOT NULL AND archived_at = updated_at THEN 1 ELSE 0 END "
        "FROM sessions, last WHERE archived_at IS NOT NULL AND updated_at >= start"
    )
    return [TranscriptClosed(key, session_id, at, bool(is_named)) for key, session_id, at, is_named in rows]


def _written_lately(tx: Tx, noted: int) -> list[SessionIdEntry]:
    """List the transcripts with messages after the noted one, or shortly before it."""
    (newest,) = required(tx.one("SELECT coalesce(max(position), 0) FROM message_order"))
    since = max(min(noted, newest) - OVERLAP, newest - _MOST_LOOKED_AT)
    rows = tx.all(
        "SELECT session_id, key, mark, ended_at, end_reason FROM session_ids WHERE session_id IN "
        "(SELECT session_id FROM message_order WHERE position > ?) AND coalesce(end_reason, '') <> 'importing'",
        since,
    )
    return [SessionIdEntry(*row) for row in rows]


def _read_note(file: Path) -> int:
    """Read how far the files are, as a place in `message_order`; unknown without a note."""
    try:
        return int(file.read_bytes()[:20])
    except (OSError, ValueError):
        return sys.maxsize  # only the overlap is looked at


def _write_note(file: Path, tx: Tx, newest: MessageAppended) -> None:
    row = tx.one("SELECT position FROM message_order WHERE session_id = ? AND seq = ?", newest.session_id, newest.seq)
    if row is not None:
        note = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(note, f"{row[0]:<20}".encode(), 0)  # always as long: nothing of an older one is left behind it
        finally:
            os.close(note)


def _ends_with_newest(tx: Tx, path: Path, session_id: str) -> bool:
    """Whether a file ends with the transcript's newest message, without reading all of it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, _size(path) - TAIL))
            tail = file.read()
    except FileNotFoundError:
        return False
    row = tx.one("SELECT max(seq) FROM messages WHERE session_id = ?", session_id)
    line = tail.removesuffix(b"\n").rpartition(b"\n")[2]
    return tail.endswith(b"\n") and row is not None and _seq_of(tx, session_id, line) == row[0]


def _write_anew(tx: Tx, session_id: str, path: Path) -> _End:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(path.name + ".new")
    count = 0
    with fresh.open("wb") as file:
        for line in exports.lines(tx, session_id):
            file.write(line.encode() + b"\n")
            count += 1
        size = file.tell()
    fresh.replace(path)
    return _End(count, size, str(path))


def _lines(tx: Tx, session_id: str, start: int, last: int) -> Iterator[bytes]:
    while rows := messages.read_from(tx, session_id, start, min(LARGEST_READ, last + 1 - start)):
        yield from (body.encode() for _, body in rows)
        start = rows[-1][0] + 1


def _append_at(end: _End, added: bytes) -> bool:
    """Append to a file that is as it was left; False if it is not, and must be looked at first."""
    try:
        file = os.open(end.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)  # a Path would take six times as long
    except FileNotFoundError:
        return False
    try:
        if os.fstat(file).st_size != end.size:
            return False
        if os.write(file, added) != len(added):
            raise OSError(errno.ENOSPC, "the file cannot grow")
        return True
    finally:
        os.close(file)


def _append_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Append whole lines; returns the file's new size."""
    try:
        file = path.open("ab")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = path.open("ab")
    with file:
        file.writelines(line + b"\n" for line in lines)
        return file.tell()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _mend(tx: Tx, path: Path, session_id: str) -> _End:
    """Cut a torn last line; returns which message comes next in the file."""
    count, last, size = _cut_torn_line(path)
    if count and _seq_of(tx, session_id, last) != count - 1:
        return _write_anew(tx, session_id, path)  # lines are missing in between, or are not ours
    return _End(count, size, str(path))


def _seq_of(tx: Tx, session_id: str, line: bytes) -> int | None:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message_id = _STORED_LINE.read(line).id
        row = tx.one("SELECT seq FROM messages WHERE id = ? AND session_id = ?", message_id, session_id)
        return None if row is None else int(row[0])
    return None


def _cut_torn_line(path: Path) -> tuple[int, bytes, int]:
    """Remove the rest after the last line break; returns how many lines are left, the last one, and the size."""
    count, last, size = 0, b"", 0
    with suppress(FileNotFoundError), path.open("r+b") as file:
        for line in file:
            if not line.endswith(b"\n"):
                file.truncate(size)
                break
            count, last, size = count + 1, line, size + len(line)
    return count, last, size
