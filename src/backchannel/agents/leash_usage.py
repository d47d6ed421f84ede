"""Usage of a program and all its children together, as the leash measures it.

Memory is counted where it is held, so that shared memory counts once. That is what each process has for itself, also in
swap and for its page tables. Shared mappings without a file count by their size. Files in the temporary folders of a
sandbox count too. A sandbox cannot make other memory without an owner (`seccomp.py`).

Like the leash this uses little of the standard library, and nothing of the package.
"""

import errno
import os
import stat
import time

KIB, MIB = 1024, 1024 * 1024
FOLDER = ("folder-bytes", "folder-files")
"""The limits of a folder."""
DENIED = {
    "folder-bytes": ", until then commands write nothing, in /tmp neither",
    "folder-files": ", until then commands make no files, and open none with `>`, nor /dev/null",
}
"""What follows for commands where a folder is full, and their files are bounded."""
EVERY_S, GROWTH_S = 0.25, 0.02
"""How often it is looked, and how often while there are more of them, or more memory, at each look."""
FILES_LEFT = 10_000
"""How many files must still fit on a disk that counts them."""
TEMPORARY = ("tmp", "dev/shm")
"""The folders of a sandbox that are memory."""
ENTRY_BYTES = KIB
"""What the kernel needs for a file in one of them, however small."""
MOST_OPEN = 20_000
"""How many descriptors all processes may have together where they are looked at for files that have lost their name."""
CLOSED_PASSES = 4
"""How often in a row a folder may be found that cannot be looked into: some programs try such for a moment."""
NO_FILE = (b"/dev/zero", b"/memfd:", b"/SYSV")
"""What shared memory without a file is called among the mappings of a process."""
_COUNTED = (b"RssAnon:", b"VmSwap:", b"VmPTE:")
_SHOWN = 80
"""How much of a folder's name is shown."""
WHOLE_S = 0.1
"""How long a folder is counted at once, before a program starts and after its end; a larger one is not known then."""
CLOCK_S = 0.01
"""How far the time of a file may be behind the clock."""
STEP_S, REST_FACTOR = 0.02, 10
"""How long a folder is counted at a time; and for how many times the time that it took it is then left alone."""


class UsageWatch:
    """Looks whether a program and all that it started use more than they may."""

    def __init__(self, limits: dict[str, int], folder: str) -> None:
        self._limits = limits
        self._folder = _Folder(folder) if "folder-bytes" in limits or "folder-files" in limits else None
        self._disk = folder
        self._began = time.time()
        if self._folder is not None:
            self._folder.counted([], WHOLE_S)
        self._threads = self._memory = 0
        self.pause_s = GROWTH_S
        """When to look again."""

    def is_full(self, name: str) -> bool:
        """Whether the folder had all that it may have of this before the program started, as far as that is known."""
        return any(limit == name and before >= most for limit, before, most in self._before())

    def most_of_file(self, usual: int) -> int:
        """Tell how large a file may get: at most what the folder had left."""
        left = [max(most - before, 0) for limit, before, most in self._before() if limit == "folder-bytes"]
        return min([usual, *left])

    def remarks(self, most_of_file: int | None, *, is_cut: bool) -> list[str]:
        """Say at the end what the program should know: that a file was cut off, and that the folder is full."""
        found = None
        if self._folder is not None and self._folder.first is not None:
            found = FolderCount(self._disk, (most_of_file, self._began - CLOCK_S))
            if not found.go_on(time.monotonic() + WHOLE_S):
                found = None
        counts = () if found is None else (found.bytes, found.files)
        full = [
            f"{why}: delete something{DENIED[name] if most_of_file is not None else ''}"
            for name, now in zip(FOLDER, counts)  # noqa: B905
            if (why := why_full(name, now, self._limits.get(name))) is not None
        ]
        if most_of_file is None or not (is_cut or (found is not None and found.has_cut)) or (full and not most_of_file):
            return full
        return [f"a file was cut off at {_describe_size(most_of_file)}: there was no room for more", *full]

    def _before(self) -> list[tuple[str, int, int]]:
        """Tell what the folder had at first, with its limits."""
        first = self._folder.first if self._folder is not None else None
        both = zip(FOLDER, first or ())  # noqa: B905
        return [(name, before, self._limits[name]) for name, before in both if name in self._limits]

    def why_too_much(self, tree: list[tuple[int, int]]) -> str | None:
        """Say what of these processes is too much, each given with its number of threads."""
        pids, threads = [pid for pid, _ in tree], sum(threads for _, threads in tree)
        is_growing = threads > self._threads
        self._threads = threads
        most = self._limits.get("processes")
        if most is not None and threads > most:
            return f"more than {most} processes and threads"
        most = self._limits.get("memory-bytes")
        if most is not None:
            memory = _memory_bytes(pids, self._limits.get("temporary-bytes", 0))
            is_growing |= memory - self._memory > most // 16
            self._memory = memory
            if memory > most:
                return f"more than {most // MIB} MiB of memory"
        is_counting = self._folder is not None and self._folder.is_counting
        self.pause_s = GROWTH_S if is_growing or is_counting else EVERY_S
        return self._why_too_full(pids)

    def _why_too_full(self, pids: list[int]) -> str | None:
        reserve = self._limits.get("disk-bytes", 0)
        disk = os.statvfs(self._disk)
        if disk.f_bavail * disk.f_frsize < reserve:
            return f"less than {reserve // MIB} MiB are left on the disk"
        if reserve and disk.f_files and disk.f_favail < FILES_LEFT:
            return f"fewer than {FILES_LEFT} files more fit on the disk"
        found = None if self._folder is None else self._folder.counted(pids)
        if found is None or self._folder is None or self._folder.first is None:
            return None
        if self._folder.closed_passes >= CLOSED_PASSES:
            return f"a folder in the workspace cannot be looked into or lies too deep: {self._folder.closed}"
        if self._folder.has_many_open:
            return f"more than {MOST_OPEN} open files"
        # What was there before may be more than is permitted: then it may not become more.
        for name, now, before in zip(FOLDER, found, self._folder.first):  # noqa: B905
            most = self._limits.get(name)
            if most is not None and now > max(most, before):
                what = f"{most // MIB} MiB" if name == "folder-bytes" else f"{most} files and folders"
                return f"more than {what} in the workspace"
        return None


def why_full(name: str, now: int, most: int | None) -> str | None:
    """Say what a workspace holds if that is all that it may hold, or more; `name` is one of `FOLDER`."""
    if most is None or now < most:
        return None
    if name == "folder-bytes":
        return f"the workspace holds {round(now / MIB)} MiB, and may hold {most // MIB}"
    return f"the workspace holds {now} files and folders, and may hold {most}"


def _describe_size(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size} bytes"


def _memory_bytes(pids: list[int], temporary_bytes: int) -> int:
    """Add up the memory of processes, and of what they share."""
    own = 0
    shared: dict[bytes, int] = {}
    for pid in pids:
        own += _own_bytes(pid)
        shared.update(_shared_mappings(pid))
    return own + sum(shared.values()) + (_temporary_bytes(pids, temporary_bytes) if temporary_bytes else 0)


def _temporary_bytes(pids: list[int], size: int) -> int:
    """Tell how much lies in the temporary folders of a sandbox, each of which has this size."""
    for pid in reversed(pids):  # the last was started last, and is in the sandbox
        used = [found for name in TEMPORARY if (found := _used(f"/proc/{pid}/root/{name}", size)) is not None]
        if len(used) == len(TEMPORARY):
            return sum(used)
    return 0


class _Folder:
    """Counts what is in a folder again and again, a little at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._count: FolderCount | None = None
        self._took_s = self._next = 0.0
        self.first: tuple[int, int] | None = None
        """Bytes and files when it was first counted."""
        self.is_counting = True
        self.closed = ""
        self.closed_passes = 0
        """How often in a row a folder was found that cannot be looked into, and which."""
        self.has_many_open = False

    def counted(self, pids: list[int], limit_s: float = STEP_S) -> tuple[int, int] | None:
        """Go on counting: gives bytes and files when all of it is counted, and else None."""
        now = time.monotonic()
        if self._count is None:
            if now < self._next:
                return None
            self._count = FolderCount(self._path)
        self.is_counting = not self._count.go_on(now + limit_s)
        self._took_s += time.monotonic() - now
        if self.is_counting:
            return None
        nameless = _nameless_bytes(pids, self._count.device)
        self.has_many_open = nameless is None
        self.closed_passes = self.closed_passes + 1 if self._count.closed else 0
        self.closed = self._count.closed or ""
        found = self._count.bytes + (nameless or 0), self._count.files
        self._next = time.monotonic() + max(EVERY_S, self._took_s * REST_FACTOR)
        self._count, self._took_s = None, 0.0
        self.first = self.first or found
        return found


class FolderCount:
    """What one folder holds: bytes on the disk, and files and folders, counted a little at a time."""

    def __init__(self, folder: str, cut: tuple[int | None, float] = (None, 0.0)) -> None:
        self.bytes = self.files = 0
        self.has_cut = False
        """Whether a file has the very size at which files end, and was written after this time."""
        self._cut_at, self._cut_since = cut
        self.device = os.stat(folder).st_dev  # noqa: PTH116
        self.closed: str | None = None
        """A folder of our own that cannot be looked into: whoever is in it already could fill it."""
        self._root = folder
        self._todo = [folder]

    def go_on(self, until: float) -> bool:
        """Count until it is done, which is told, or the time is over."""
        while self._todo:
            if time.monotonic() > until:
                return False
            folder = self._todo.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self._add(entry)
            except FileNotFoundError:
                pass  # gone
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG or _is_ours(folder):
                    self.closed = ascii(folder.removeprefix(f"{self._root}/")[:_SHOWN])
        return True

    def _add(self, entry: "os.DirEntry[str]") -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # gone
        self.files += 1
        self.bytes += found.st_blocks * 512
        if entry.is_dir(follow_symlinks=False):
            self._todo.append(entry.path)
        elif found.st_size == self._cut_at and found.st_size and found.st_mtime >= self._cut_since:
            self.has_cut = True


def _is_ours(folder: str) -> bool:
    try:
        return os.lstat(folder).st_uid == os.geteuid()
    except OSError:
        return False


def _own_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
            return sum(int(line.split()[1]) for line in file if line.startswith(_COUNTED)) * KIB
    except (OSError, ValueError, IndexError):
        return 0  # it has ended


def _shared_mappings(pid: int) -> dict[bytes, int]:
    """Find the shared mappings of a process that have no file, by their number in the kernel."""
    found: dict[bytes, int] = {}
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.endswith(b" (deleted)\n") and any(name in line for name in NO_FILE):
                    # from-to permissions offset device inode path
                    place, _, offset, _, inode, *_ = line.split()
                    start, _, end = place.partition(b"-")
                    size = int(offset, 16) + int(end, 16) - int(start, 16)
                    found[inode] = max(found.get(inode, 0), size)
    except (OSError, ValueError):
        pass
    return found


def _used(folder: str, size: int) -> int | None:
    """Tell how much lies in a temporary folder; None if it is another, which only its size tells from outside."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    if abs(found.f_blocks * found.f_frsize - size) > found.f_frsize:
        return None
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * ENTRY_BYTES


def _nameless_bytes(pids: list[int], device: int) -> int | None:
    """Add up the open files of a disk that have no name any more; None if too many are open to look at."""
    found: dict[int, int] = {}
    looked = 0
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
        except OSError:
            continue
        for number in numbers:
            looked += 1
            if looked > MOST_OPEN:
                return None
            try:
                seen = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116
            except OSError:
                continue
            if seen.st_nlink == 0 and seen.st_dev == device and stat.S_ISREG(seen.st_mode):
                found[seen.st_ino] = seen.st_blocks * 512
    return sum(found.values())
