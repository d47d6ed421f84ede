"""The output of a command: its ends in memory, and the whole in a file.

However much is written, little is kept in memory, and the file ends at `limits.outputKb`. The file is in the state
folder and not in the workspace, which may be a person's own folder that the session cannot write.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from backchannel.storage.ids import new_id

SHOWN_AT_EACH_END = 16 * 1024
_MOST_FILES = 64
"""How many outputs are kept of an agent's sessions; the oldest go first."""
THROTTLE_S = 0.01
"""How long a command that writes without end waits after each piece, once nothing of it is kept any more."""


class Output:
    """What a command has written so far."""

    def __init__(self, folder: Path, shown: str, most_bytes: int) -> None:
        self._folder = folder
        self._shown = shown
        self._most = most_bytes
        self._head, self._tail = bytearray(), bytearray()
        self._new = bytearray()
        self._new_dropped = 0
        self.total = 0
        self._file: _WholeFile | None = None
        self._has_file = True

    async def add(self, piece: bytes) -> None:
        """Take what was written."""
        before = bytes(self._head + self._tail) if self.total <= 2 * SHOWN_AT_EACH_END else b""
        self.total += len(piece)
        room = SHOWN_AT_EACH_END - len(self._head)
        self._head += piece[:room]
        self._tail += piece[max(room, 0) :]
        del self._tail[: max(len(self._tail) - SHOWN_AT_EACH_END, 0)]
        self._new += piece
        if (much := len(self._new) - 2 * SHOWN_AT_EACH_END) > 0:
            del self._new[:much]
            self._new_dropped += much
        if self.total > 2 * SHOWN_AT_EACH_END and self._has_file:
            await asyncio.to_thread(self._keep, piece if self._file else before + piece)
        if self.total > self._most:
            await asyncio.sleep(THROTTLE_S)

    def _keep(self, piece: bytes) -> None:
        try:
            if self._file is None:
                self._file = _WholeFile(self._folder, self._shown)
            self._file.add(piece[: max(self._most - self._file.size, 0)])
        except OSError:  # a full disk, or a folder that is none: the command goes on
            self._has_file = False

    def close(self) -> None:
        """Close its file; what was written is shown as before."""
        if self._file is not None:
            self._file.close()

    def text(self) -> str:
        """Show it, cut in the middle if it is long."""
        if self.total <= 2 * SHOWN_AT_EACH_END:
            return _decoded(self._head + self._tail)
        left_out = self.total - 2 * SHOWN_AT_EACH_END
        return f"{_decoded(self._head)}\n[{left_out} bytes left out{self._where()}]\n{_decoded(self._tail)}"

    def take_new(self) -> str:
        """Show what was written since this was last asked."""
        dropped = f"[{self._new_dropped} bytes left out{self._where()}]\n" if self._new_dropped else ""
        text = dropped + _decoded(self._new)
        self._new, self._new_dropped = bytearray(), 0
        return text

    def _where(self) -> str:
        if self._file is None or not self._has_file:
            return ", and not kept"
        whole = "all of it is" if self.total <= self._most else f"the first {self._most // 1024} KiB are"
        return f"; {whole} in {self._file.path}"


class _WholeFile:
    """A file in the state folder that a command's output goes to."""

    def __init__(self, folder: Path, shown: str) -> None:
        name = f"{new_id()}.log"
        self.path = f"{shown}/{name}"
        self.size = 0
        _drop_old(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._stream = os.fdopen(os.open(folder / name, flags, 0o600), "wb", buffering=0)

    def add(self, piece: bytes) -> None:
        self.size += self._stream.write(piece)

    def close(self) -> None:
        self._stream.close()


def _drop_old(folder: Path) -> None:
    """Make room for one more output among those of all sessions of the agent."""
    kept = sorted(folder.parent.glob("*/*.log"), key=lambda path: path.name)  # an id tells when it was made
    for old in kept[: 1 - _MOST_FILES] if len(kept) >= _MOST_FILES else ():
        old.unlink(missing_ok=True)
        with suppress(OSError):  # it has others
            old.parent.rmdir()


def _decoded(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
