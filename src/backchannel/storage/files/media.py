"""Pictures that people sent, and files that agents send: named by their content.

The same picture is stored once. A picture is on the disk before the message that names it is committed. If the process
dies between the two, the message comes again and finds its picture. The folder blocks, so it is used in threads.

For several gateways, the picture is also in the database, in parts of one unit each: 10 MB at once would block other
writes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

from backchannel.core.delivery.received import EXTENSIONS, OTHER_ENDING, is_media_name
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.tables import MEDIA
from backchannel.storage.tx import Tx

PART_BYTES = 512 * 1024
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class MediaFolder:
    """The folder `media` of a state folder, created at its first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()
        """One writer at a time: two copies of one picture use the same temporary file."""

    def store(self, content: bytes, mime_type: str) -> str:
        """Keep a picture; returns the name that messages refer to it by.

        Raises:
            Unavailable: it cannot be written now.
        """
        name = f"{hashlib.sha256(content).hexdigest()}.{EXTENSIONS.get(mime_type, OTHER_ENDING)}"
        self.keep(name, content)
        return name

    def keep(self, name: str, content: bytes) -> None:
        """Keep a picture that has a name.

        Raises:
            Unavailable: it cannot be written now.
        """
        try:
            with self._writing:
                if not self._is_there(name, len(content)):
                    self._write(name, content)
        except OSError as error:
            failure = StorageFull if error.errno in _FULL else Unavailable
            raise failure(f"a picture cannot be written to {self.path} ({error.strerror})") from error

    def load(self, name: str, limit: int) -> bytes | None:
        """Read a picture; None when it is not there, cannot be read, or has more than `limit` bytes."""
        if not is_media_name(name):
            return None  # a message may come from elsewhere, and name anything
        try:
            with os.fdopen(os.open(self.path / name, _READ), "rb") as file:
                content = file.read(limit + 1)
        except OSError:
            return None
        return content if 0 < len(content) <= limit else None

    def _is_there(self, name: str, size: int) -> bool:
        try:
            return (self.path / name).stat(follow_symlinks=False).st_size == size
        except FileNotFoundError:
            return False

    def _write(self, name: str, content: bytes) -> None:
        if not self.path.exists():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync_folder(self.path.parent)
        beside, place = self.path / f"{name}.part", self.path / name
        with os.fdopen(os.open(beside, _WRITE, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(place)
        _sync_folder(self.path)


def _sync_folder(path: Path) -> None:
    """Sync the names in a folder to the disk. Else a power cut may keep the message and lose its picture."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def store_part(tx: Tx, name: str, part: int, parts: int, content: bytes) -> None:
    """Store a part of a picture, unless it is there."""
    tx.insert(MEDIA, MEDIA.or_skip, name=name, part=part, parts=parts, content=content)


def load_parts(tx: Tx, name: str) -> bytes | None:
    """Read a picture; None while a part of it is missing."""
    rows = tx.all("SELECT parts, content FROM media WHERE name = ? ORDER BY part", name)
    return b"".join(content for _, content in rows) if rows and len(rows) == rows[0][0] else None


def is_complete(tx: Tx, name: str) -> bool:
    """Whether all parts of a picture are there."""
    row = tx.one("SELECT count(*), max(parts) FROM media WHERE name = ?", name)
    return row is not None and row[0] > 0 and row[0] == row[1]
