"""The state folder: who holds it, and what lies in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

from backchannel.errors import StartupError, StateFolderInUse


class StateFolder:
    """A folder held by one process for as long as it runs; the kernel frees it when the process dies."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def hold(cls, path: Path) -> Self:
        """Take the folder, creating it if needed.

        Raises:
            StateFolderInUse: another process holds it.
            StartupError: it cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise StateFolderInUse(
                f"another gateway (process {holder}) uses the state folder {path}: "
                "stop it first, or name another folder with --state"
            ) from None
        except OSError as error:
            os.close(lock)
            raise _unwritable(path, error) from error
        return cls(path, lock)

    def release(self) -> None:
        os.close(self._lock)

    @property
    def database(self) -> Path:
        return self.path / "backchannel.db"

    @property
    def agents(self) -> Path:
        """What is kept as files, a folder for each agent."""
        return self.path / "agents"

    def transcript(self, agent_id: str, session_id: str) -> Path:
        return self.agents / agent_id / "sessions" / f"{session_id}.jsonl"


def database_file(url: str) -> Path:
    """Tell which file the store is.

    Raises:
        StartupError: it is not a SQLite file, the one kind of store there is.
    """
    if not url.startswith("sqlite:///"):
        kind = url.partition(":")[0]
        raise StartupError(
            f"database.url: this version has no store for {kind}: (use sqlite:///<path>, or leave it out)"
        )
    return Path(url.removeprefix("sqlite:///"))


def _unwritable(path: Path, error: OSError) -> StartupError:
    return StartupError(
        f"the state folder {path} cannot be written ({error.strerror}): check its owner, or name another with --state"
    )
