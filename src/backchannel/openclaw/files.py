"""Files of another program's state folder: found, opened with care, read by lines.

Nothing outside the folder is ever read: not through a path in an entry, not through a symbolic link. A line that is too
long is skipped without being kept, so a transcript costs the same memory however large it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from backchannel.core.keys import normalise_agent_id
from backchannel.core.text import quoted
from backchannel.errors import UnknownAgent

STORE_FILE = "sessions.json"
LARGEST_STORE = 256 * 1024 * 1024
LONGEST_LINE = 16 * 1024 * 1024
PASSED_OVER = 64 * 1024
MAIN_AGENT = "main"

_BOM = b"\xef\xbb\xbf"


class UnreadableFile(Exception):
    """A file that will not be read; the message says why."""


@dataclass(frozen=True, slots=True)
class SessionsFolder:
    """A folder with a `sessions.json` and the transcripts beside it, all of one agent."""

    path: Path
    agent: str

    @property
    def store(self) -> Path:
        return self.path / STORE_FILE


class OpenTranscript(NamedTuple):
    """A transcript that was opened."""

    path: Path
    file: BinaryIO


class RawLine(NamedTuple):
    """One line of a transcript; without `data` it was too long to be held."""

    number: int
    data: bytes | None
    size: int
    is_whole: bool
    """Whether it ends with a line break; only the last one may not."""


def find_session_folders(root: Path) -> list[SessionsFolder]:
    """Find the folders with sessions: one for each agent, the older one at the top, or the one that is pointed at."""
    agents = [SessionsFolder(path, _agent(path.parent.name)) for path in sorted((root / "agents").glob("*/sessions"))]
    older, pointed_at = SessionsFolder(root / "sessions", _agent_of(root)), SessionsFolder(root, _agent_of(root.parent))
    return [folder for folder in (*agents, older, pointed_at) if _exists(folder.store)]


def _agent_of(folder: Path) -> str:
    """Find the agent whose folder it is, if it is one under `agents`."""
    folder = folder.absolute()
    return _agent(folder.name) if folder.parent.name == "agents" else MAIN_AGENT


def _agent(name: str) -> str:
    try:
        return normalise_agent_id(name)
    except UnknownAgent:
        return MAIN_AGENT


def load_store(root: Path, folder: SessionsFolder) -> str:
    """Read a `sessions.json`.

    Raises:
        UnreadableFile: it is outside the folder, too large, or cannot be read.
    """
    with _open(root, folder.store) as file:
        if os.fstat(file.fileno()).st_size > LARGEST_STORE:
            raise UnreadableFile(f"it is larger than {LARGEST_STORE // 2**20} MiB")
        return file.read().decode("utf-8", "replace").removeprefix("\ufeff")


def open_transcript(root: Path, folder: SessionsFolder, session_id: str, named: str | None) -> OpenTranscript:
    """Open a session's transcript: the file that its entry names, or the one named by its id.

    A folder that was moved has entries that name files where it was before: the same file beside `sessions.json` is
    taken then.

    Raises:
        UnreadableFile: there is none, it is outside the folder, or cannot be read.
    """
    path = _find_transcript(root, folder, session_id, named)
    return OpenTranscript(path, _open(root, path))


def _find_transcript(root: Path, folder: SessionsFolder, session_id: str, named: str | None) -> Path:
    usual = folder.path / f"{session_id}.jsonl"
    if named is not None:
        path = folder.path / named
        beside = folder.path / path.name
        if path.suffix == ".jsonl" and _is_inside(root, path) and _exists(path):
            return path
        if path.suffix == ".jsonl" and _exists(beside):
            return beside
        if path.suffix != ".jsonl" or not _is_inside(root, path):
            raise UnreadableFile(f"its sessionFile {quoted(named)} is not a transcript in this folder")
    topics = sorted(folder.path.glob(f"{session_id}-topic-*.jsonl"))
    return topics[0] if len(topics) == 1 and not _exists(usual) else usual


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have, or a folder that may not be looked into
        return False


def _is_inside(root: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError):  # the same, or a loop of links
        return False


def _open(root: Path, path: Path) -> BinaryIO:
    if not _is_inside(root, path):
        raise UnreadableFile(f"{path.name} leads out of the folder")
    try:
        # Resolved first, and then without following links; a pipe must not hold us up.
        number = os.open(path.resolve(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UnreadableFile(f"there is no {path.name}") from None
    except OSError as error:
        raise UnreadableFile(f"{path.name} cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise UnreadableFile(f"{path.name} is no file")
    return os.fdopen(number, "rb", buffering=1024 * 1024)


def read_lines(file: BinaryIO) -> Iterator[RawLine]:
    """Give the lines of a transcript one by one, without what separates them."""
    number = 0
    while data := file.readline(LONGEST_LINE):
        number += 1
        size = len(data)
        if size == LONGEST_LINE and not data.endswith(b"\n"):
            del data
            rest, is_whole = _pass_over(file)
            yield RawLine(number, None, size + rest, is_whole)
            continue
        text = data.removeprefix(_BOM) if number == 1 else data
        yield RawLine(number, text.strip(), size, data.endswith(b"\n"))


def _pass_over(file: BinaryIO) -> tuple[int, bool]:
    """Read on to the end of a line; returns how much that was, and whether the line has an end."""
    size = 0
    while data := file.readline(PASSED_OVER):
        size += len(data)
        if data.endswith(b"\n"):
            return size, True
    return size, False


def iso_time(at_ms: int) -> str:
    """Write a time as it stands in these files."""
    seconds, ms = divmod(at_ms, 1000)
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # no date has such a number; the message keeps it all the same
        at = datetime.fromtimestamp(0, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S") + f".{ms:03}Z"
