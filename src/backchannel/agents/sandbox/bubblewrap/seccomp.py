"""The filter of system calls in a sandbox, as a classic BPF program.

bubblewrap loads it before the program starts. The filter closes the ways to hold memory that belongs to no process and
no folder, because no limit counts such memory. These are shared segments, shared mappings without a file, memory files,
message queues, large pipes and file systems. Nested namespaces are closed because each would bring these ways again.
The filter also closes parts of the kernel that programs rarely need and that had many holes: `bpf`, `io_uring`,
`userfaultfd`, keys. A program sees an error, as on a kernel without them.

In a workspace that is full other filters come before it: see `build_full_filters`.

To add a call: its number on each architecture, from the kernel's tables, and which error it gets.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF: load a word at a fixed place; jump if equal, if greater or equal, if a bit is set; return."""
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_KILL, _ALLOW, _ERROR = 0x80000000, 0x7FFF0000, 0x00050000
_X32 = 0x40000000
"""Calls of x86_64 with 32-bit pointers have this bit: the same calls under other numbers."""

_NAMESPACES = 0x7E020000
"""Every flag of `clone` that makes a namespace."""
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_F_SETPIPE_SZ, _TIOCSTI, _TIOCLINUX = 1031, 0x5412, 0x541C


class _Machine(NamedTuple):
    architecture: int
    is_second: bool
    """Whether its numbers are the second of each pair."""


_MACHINES = {"x86_64": _Machine(0xC000003E, False), "aarch64": _Machine(0xC00000B7, True)}

_ABSENT = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "vmsplice": (278, 75),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),  # its flags are in memory, where no filter can look: programs then use `clone`
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
}
"""Answered as if the kernel did not have them."""
_FORBIDDEN = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "swapon": (167, 224),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
}
_CLONE, _FCNTL, _IOCTL, _MMAP = (56, 220), (72, 25), (16, 29), (9, 222)
_MAKE_FILES: dict[str, tuple[int, int | None]] = {
    "creat": (85, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "bind": (49, 200),  # a socket has a name in a folder
}
_OPEN: tuple[int, int | None] = (2, None)
_OPENAT, _OPENAT2, _FALLOCATE = (257, 56), (437, 437), (285, 47)
_O_CREAT = 0x40


def why_no_filter() -> str | None:
    """Say why system calls cannot be filtered here."""
    if platform.machine() not in _MACHINES:
        return f"there is no filter of system calls for {platform.machine()}"
    if not Path("/proc/sys/kernel/seccomp").exists():
        return "this kernel does not filter system calls (seccomp)"
    return None


@functools.cache
def build_filter(machine: str) -> bytes:
    """Write the filter for a kind of machine, as the kernel takes it."""
    architecture, is_second = _MACHINES[machine]
    body = [_step(_EQUAL, architecture, yes=1), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER_AT)]
    if machine == "x86_64":
        body += [_step(_AT_LEAST, _X32, no=1), _error(errno.ENOSYS)]
    for calls, error in ((_ABSENT, errno.ENOSYS), (_FORBIDDEN, errno.EPERM)):
        for numbers in calls.values():
            body += [_step(_EQUAL, numbers[is_second], no=1), _error(error)]
    body += _no_shared_memory(_MMAP[is_second])
    body += _unless(_CLONE[is_second], argument=0, test=_ANY_BIT, values=(_NAMESPACES,))
    body += _unless(_FCNTL[is_second], argument=1, test=_EQUAL, values=(_F_SETPIPE_SZ,))
    body += _unless(_IOCTL[is_second], argument=1, test=_EQUAL, values=(_TIOCSTI, _TIOCLINUX))
    return b"".join((_step(_LOAD, _ARCHITECTURE_AT), *body, _step(_RETURN, _ALLOW)))


@functools.cache
def build_full_filters(machine: str) -> tuple[bytes, bytes]:
    """Write what comes before the filter where a workspace is full: of bytes, and of files.

    A file that cannot get larger still takes space by `fallocate`, and by a shared mapping where it has holes. Where
    there are too many files no call makes one, also where it is there already: a filter sees no names.
    """
    _, is_second = _MACHINES[machine]
    no_bytes = [_step(_EQUAL, _FALLOCATE[is_second], no=1), _error(errno.EDQUOT)]
    no_bytes += _full_if(_MMAP[is_second], argument=3, bits=_MAP_SHARED)
    # Its flags are in memory: programs then use `openat`.
    no_files = [_step(_EQUAL, _OPENAT2[is_second], no=1), _error(errno.ENOSYS)]
    for numbers in _MAKE_FILES.values():
        if (number := numbers[is_second]) is not None:
            no_files += [_step(_EQUAL, number, no=1), _error(errno.EDQUOT)]
    for numbers, argument in ((_OPEN, 1), (_OPENAT, 2)):
        if (number := numbers[is_second]) is not None:
            no_files += _full_if(number, argument=argument, bits=_O_CREAT)
    load = _step(_LOAD, _NUMBER_AT)
    return b"".join((load, *no_bytes)), b"".join((load, *no_files))


def _full_if(number: int, *, argument: int, bits: int) -> Iterator[bytes]:
    """Answer a call whose argument has one of these bits as if a quota were used up; go on with all others."""
    yield _step(_EQUAL, number, no=4)
    yield _step(_LOAD, 16 + 8 * argument)
    yield _step(_ANY_BIT, bits, no=1)
    yield _error(errno.EDQUOT)
    yield _step(_LOAD, _NUMBER_AT)


def _unless(number: int, *, argument: int, test: int, values: tuple[int, ...]) -> Iterator[bytes]:
    """Forbid a call if its argument, of which the lower half counts, is one of these."""
    inner = [_step(_LOAD, 16 + 8 * argument)]
    for value in values:
        inner += [_step(test, value, no=1), _error(errno.EPERM)]
    inner.append(_step(_RETURN, _ALLOW))
    yield _step(_EQUAL, number, no=len(inner))
    yield from inner


def _no_shared_memory(number: int) -> Iterator[bytes]:
    """Forbid shared mappings without a file: all but a page can be unmapped, and all of it stays, seen by nobody."""
    yield _step(_EQUAL, number, no=5)
    yield _step(_LOAD, 16 + 8 * 3)
    yield _step(_ANY_BIT, _MAP_ANONYMOUS, no=2)
    yield _step(_ANY_BIT, _MAP_SHARED, no=1)
    yield _error(errno.EPERM)
    yield _step(_RETURN, _ALLOW)


def _error(number: int) -> bytes:
    return _step(_RETURN, _ERROR | number)


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)
