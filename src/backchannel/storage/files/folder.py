"""The state folder: its lock, its files, and the gateway's address.

Clients on this machine read the file `address` to find the gateway. A killed gateway leaves the file behind, and then
anybody may listen on that port: a client that trusted the file would send its token there. So the gateway locks the
file while it listens, and the kernel frees the lock when the gateway dies.

A client takes a shared lock for an instant. That never blocks a gateway that starts: each start locks a new file before
the file has its name.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TextIO

from backchannel.errors import StartupError, StateFolderInUse

_TRIES, _PAUSE_S = 5, 0.02


class StateFolder:
    """A folder locked by one process for as long as it runs; the kernel frees the lock when the process dies.

    Both the folder and the file `lock` in it are locked; the file names the holder. The file alone is not enough: if
    somebody deletes it, a second process would create and lock another.
    """

    def __init__(self, path: Path, *locks: int) -> None:
        self.path = path
        self._locks = list(locks)

    @classmethod
    def hold(cls, path: Path) -> Self:
        """Lock the folder, creating it if needed.

        Raises:
            StateFolderInUse: another process holds it.
            StartupError: it cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not (path / "lock").exists():
                _keep_out_of_git(path)
            return cls(path, *_lock_folder(path))
        except _Held as held:
            raise StateFolderInUse(
                f"{held} the state folder {path}: stop it first, or name another folder with --state"
            ) from None
        except OSError as error:
            raise _unwritable(path, error) from error

    def hold_database(self, file: Path) -> None:
        """Lock a database that lies elsewhere: gateways with different folders may name the same one.

        Raises:
            StateFolderInUse: another process holds it.
            StartupError: nothing can be written beside it.
        """
        file = file.resolve()
        if file == self.database.resolve():
            return
        try:
            if file.name == self.database.name:  # perhaps another gateway's own, which it holds with its folder
                self._locks += _lock_folder(file.parent)
            else:
                self._locks.append(_lock(file.with_name(f"{file.name}.lock")))
        except _Held as held:
            raise StateFolderInUse(
                f"{held} the database {file}: stop it first, or name another one in database.url"
            ) from None
        except OSError as error:
            raise StartupError(
                f"{file} cannot be written ({error.strerror}): check the folder's owner and free space"
            ) from error

    def release(self) -> None:
        for lock in self._locks:
            os.close(lock)

    @property
    def database(self) -> Path:
        return self.path / "backchannel.db"

    def has_transcripts(self) -> bool:
        """Whether any session has ever written a file here."""
        return any(self.agents.glob("*/sessions/*.jsonl*"))

    @property
    def agents(self) -> Path:
        """The folder with the files of each agent."""
        return self.path / "agents"

    @property
    def media(self) -> Path:
        """The folder of pictures that people sent."""
        return self.path / "media"

    def transcript(self, agent_id: str, session_id: str) -> Path:
        return self.agents / agent_id / "sessions" / f"{session_id}.jsonl"


def held_since(path: Path) -> float | None:
    """Return since when a folder is locked, in seconds since 1970; None if it is not."""
    try:
        return (path / "lock").stat().st_mtime if holder_of(path) else None
    except OSError:
        return None


def holder_of(path: Path) -> str | None:
    """Return the id of the process that has locked a folder; None if it is not locked."""
    if _is_locked(path / "lock"):
        return _number_in(path / "lock")
    return _locker_of(path) if _is_locked(path) else None


def _is_locked(path: Path) -> bool:
    try:
        looked = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(looked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(looked)
    return False


def _locker_of(path: Path) -> str:
    """Find the process that has locked a folder in the kernel's list: its number and its name."""
    with suppress(OSError):
        found = path.stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            if "FLOCK" in line and "->" not in line and f" {place} " in line:  # an arrow marks who waits
                number = line.split()[-4]
                return f"{number}, {Path('/proc', number, 'comm').read_text(encoding='utf-8').strip()}"
    return "unknown"


class _Held(Exception):
    """Another process holds a lock. The text names it, and ends with a verb."""

    @classmethod
    def by_gateway(cls, lock: Path) -> Self:
        return cls(f"another gateway (process {_number_in(lock)}) uses")

    @classmethod
    def by_somebody(cls, folder: Path) -> Self:
        """Say who has locked a folder. Only a gateway also locks the file in it; of others nothing is known."""
        if _is_locked(folder / "lock"):
            return cls.by_gateway(folder / "lock")
        return cls(f"another program (process {_locker_of(folder)}) has locked")


def _keep_out_of_git(folder: Path) -> None:
    """Make git ignore a new folder: it contains a token and whole conversations."""
    with suppress(FileExistsError), (folder / ".gitignore").open("x", encoding="utf-8") as file:
        file.write("# A state folder: a token and conversations. Nothing of it belongs into a repository.\n*\n")


def _lock_folder(path: Path) -> list[int]:
    """Lock a folder, and the file in it that names the holder."""
    locks = []
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock_soon(folder)
        locks.append(folder)
    except BlockingIOError:
        os.close(folder)
        raise _Held.by_somebody(path) from None
    except OSError:
        os.close(folder)  # there are file systems, such as NFS, where folders cannot be locked: the file has to do
    try:
        return [*locks, _lock(path / "lock")]
    except BaseException:  # whatever stopped it: the first lock is given back, and the error goes on
        for lock in locks:
            os.close(lock)
        raise


def _lock(file: Path) -> int:
    """Take a lock that the kernel frees when this process dies."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock_soon(lock)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        os.close(lock)
        raise _Held.by_gateway(file) from None
    except OSError:
        os.close(lock)
        raise
    return lock


def _lock_soon(lock: int) -> None:
    """Take a lock, retrying for a moment: `holder_of` holds it for an instant.

    Raises:
        BlockingIOError: somebody keeps it.
    """
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_PAUSE_S)
    return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _number_in(lock: Path) -> str:
    try:
        with lock.open("rb") as file:
            return file.read(20).decode(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def _unwritable(path: Path, error: OSError) -> StartupError:
    return StartupError(
        f"the state folder {path} cannot be written ({error.strerror}): check its owner, or name another with --state"
    )


def archived_path(path: Path, at_ms: int) -> Path:
    """Name the file of an archived session."""
    stamp = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    return path.with_name(f"{path.name}.deleted.{stamp}")


ADDRESS_FILE = "address"


class AddressFile:
    """The file with the gateway's address, locked while it listens."""

    def __init__(self, file: Path, held: TextIO) -> None:
        self._file = file
        self._held = held

    @classmethod
    def hold(cls, state: Path, url: str) -> Self:
        """Write the file. Only the holder of the state folder may.

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
    """Return the address of a state folder's gateway; None if none listens."""
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
