"""Where the gateway of a state folder listens, as a file that only a running gateway holds.

Clients on this machine read the file `address` to find the gateway of their folder. A gateway that was killed leaves
the file behind, and by then anybody may listen on that port: a client that believed the file would hand over its
token. So the gateway keeps the file locked while it listens, and the kernel frees the lock when it dies.

To look, a client takes a shared lock for an instant. That cannot get in the way of a gateway that starts: each start
makes a new file and locks it before it has a name that a client could open.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO

ADDRESS_FILE = "address"


class AddressFile:
    """The file in which a gateway says where it listens, held for as long as it does."""

    def __init__(self, file: Path, held: TextIO) -> None:
        self._file = file
        self._held = held

    @classmethod
    def hold(cls, state: Path, url: str) -> Self:
        """Write the file; whoever holds the state folder is the one who may.

        Raises:
            OSError: it cannot be written.
        """
        file = state / ADDRESS_FILE
        draft = file.with_name(f".{ADDRESS_FILE}.{os.getpid()}")
        held = draft.open("w", encoding="utf-8")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.write(url + "\n")
            held.flush()
            draft.replace(file)
        except OSError:
            draft.unlink(missing_ok=True)
            with suppress(OSError):
                held.close()
            raise
        return cls(file, held)

    def release(self) -> None:
        with suppress(OSError):
            self._file.unlink()
        self._held.close()


def load_address(state: Path) -> str | None:
    """Tell where the gateway of a state folder listens; None means that none does."""
    try:
        with (state / ADDRESS_FILE).open(encoding="utf-8") as file:
            return file.read().strip() if _is_held(file) else None
    except OSError:
        return None


def _is_held(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
