"""Staging: an export's files are written in a hidden folder, and put in place together.

One sync of the file system stores all files before the first one is visible. With a sync for each file, an export of
2,000 sessions took ten seconds instead of four. A process that is killed leaves only the hidden folder, and the next
export removes it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from backchannel.openclaw.files import STORE_FILE

PREFIX = ".unfinished-"


class StagingFolder:
    """Where an export is written until it is whole. It is made by the first file."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._own = target / f"{PREFIX}{os.getpid()}"

    def __enter__(self) -> Self:
        for left in self._target.glob(f"{PREFIX}*"):
            shutil.rmtree(left)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self._own, ignore_errors=True)

    @contextmanager
    def writing(self, path: Path) -> Iterator[BinaryIO]:
        """Write a file, named as it will be in the target. Only its owner can read it."""
        staged = self._own / path.relative_to(self._target)
        staged.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # O_EXCL: never through a planted link, since others may be able to write to the folder.
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file

    def publish(self) -> None:
        """Put all files in place, after they are stored.

        Into a new place all of them come at once. Where there are others already, each agent's `sessions.json` comes
        after its transcripts, so that it never names one that is missing.
        """
        if not self._own.exists():
            return
        _store_files(self._own)
        for top in sorted(self._own.iterdir()):
            _put(top, self._target / top.name)
        _store_names(self._target)


def is_left_over(path: Path) -> bool:
    """Whether a folder is what a killed export has left."""
    return path.name.startswith(PREFIX)


def _put(staged: Path, place: Path) -> None:
    if staged.is_file() or not place.exists():
        staged.replace(place)
        return
    for inner in sorted(staged.iterdir(), key=lambda path: (path.name == STORE_FILE, path.name)):
        _put(inner, place / inner.name)
    _store_names(place)


def _store_files(folder: Path) -> None:
    """Wait until everything on the folder's file system is stored."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:  # only Linux has it
            os.sync()
        elif syncfs(number) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(number)


def _store_names(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
