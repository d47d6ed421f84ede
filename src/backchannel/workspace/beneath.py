"""Paths that stay beneath one folder, whoever changes that folder meanwhile.

A path is walked name by name. Each name is opened relative to the folder before it and never through a link, so there
is no moment between a check and a use. No link is followed at all, not even one that leads back into the folder. A file
with a second hard link is not read, because the other name may lie outside. Devices, pipes and sockets are not opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest

LONGEST_PATH = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_REASONS = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of the path is no folder",
    errno.EISDIR: "it is a folder",
    errno.EACCES: "the gateway may not do that: it is not permitted to its user",
    errno.EPERM: "the gateway may not do that: it is not permitted to its user",
    errno.EROFS: "it lies on a disk that is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EMFILE: "too many files are open; try again",
    errno.ENFILE: "too many files are open; try again",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A workspace as one session has it."""

    root: Path
    shown: str
    """Its path where the session's commands run."""
    is_readable: bool = True
    is_writable: bool = True
    most_bytes: int | None = None
    most_files: int | None = None
    """What it may hold, where that is bounded."""
    outputs: Place | None = None
    """The outputs of the session's commands, which it may read beside the workspace."""

    def around(self, path: str) -> Place:
        """Give the place that a path to be read is in: the outputs, if it begins with theirs, or else this one."""
        theirs = self.outputs
        return theirs if theirs is not None and f"{path}/".startswith(f"{theirs.shown}/") else self

    def parts(self, path: str) -> tuple[str, ...]:
        """Take a path apart, as a model wrote it: relative to the workspace, or absolute and inside it.

        Raises:
            InvalidRequest: it leads elsewhere.
        """
        if not self.is_readable:
            raise InvalidRequest("this session runs in a sandbox that has no workspace (sandbox.workspaceAccess: none)")
        if path == self.shown or path.startswith(f"{self.shown}/"):
            path = path[len(self.shown) :].lstrip("/")
        names = tuple(name for name in path.split("/") if name not in ("", "."))
        if path.startswith(("/", "~")) or ".." in names:
            raise InvalidRequest(f"path: {quoted(path)} leads out of the workspace; paths are relative to it")
        if "\0" in path or len(_encoded(path)) > LONGEST_PATH:
            raise InvalidRequest(f"path: {quoted(path)} cannot be the path of a file")
        return names


def _encoded(path: str) -> bytes:
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidRequest(f"path: {quoted(path)} cannot be the path of a file") from None


@contextmanager
def words_for(path: str) -> Iterator[None]:
    """Say in words what went wrong with a file."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
        raise InvalidRequest(f"{quoted(path)}: {reason}") from None


@contextmanager
def opened_folder(place: Place, names: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
    """Open a folder of the workspace; the workspace itself is made when it is first used.

    Raises:
        InvalidRequest: a part of the path is a link, or no folder.
        OSError: it cannot be opened.
    """
    place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(place.root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for name in names:
            inner = _enter(folder, name, create=create)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _enter(folder: int, name: str, *, create: bool) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        _refuse_link(name, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        raise


def _refuse_link(name: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise InvalidRequest(f"{quoted(name)} is a symbolic link, and links are not followed: name what it points to")


def look(folder: int, name: str) -> os.stat_result | None:
    """Look at what a name is; None means that nothing has it."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def check_plain(name: str, found: os.stat_result) -> None:
    """Refuse what is no ordinary file.

    Raises:
        InvalidRequest: it says what it is instead.
    """
    _refuse_link(name, found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        raise InvalidRequest(f"{quoted(name)} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise InvalidRequest(f"{quoted(name)} is no ordinary file but a device, a pipe or a socket: it is not opened")


@contextmanager
def opened_file(folder: int, name: str) -> Iterator[int]:
    """Open an ordinary file for reading.

    Raises:
        InvalidRequest: it is a link, has a second hard link, or is no file.
        OSError: it cannot be opened.
    """
    check_plain(name, os.stat(name, dir_fd=folder, follow_symlinks=False))  # a device is not even opened
    file = os.open(name, _FILE, dir_fd=folder)
    try:
        found = os.fstat(file)
        check_plain(name, found)
        if found.st_nlink > 1:
            raise InvalidRequest(
                f"{quoted(name)} has {found.st_nlink} hard links, and the others may lie outside of the workspace: "
                "read a copy of it"
            )
        yield file
    finally:
        os.close(file)
