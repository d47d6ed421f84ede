"""The filter of system calls: what it decides on each kind of machine, and what the real kernel makes of it."""

from __future__ import annotations

import errno
import platform
import re
import struct
from pathlib import Path

import pytest

from backchannel.agents.sandbox.bubblewrap import seccomp
from backchannel.agents.sandbox.bubblewrap.seccomp import build_filter, build_full_filters
from tests.agents.inside import inside

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
ALLOWED, KILLED = "allowed", "killed"
HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
CLOSED = {**dict.fromkeys(seccomp._ABSENT, errno.ENOSYS), **dict.fromkeys(seccomp._FORBIDDEN, errno.EPERM)}
MACHINES = tuple(ARCHITECTURES)


def decided(program: bytes, architecture: int, number: int, *arguments: int) -> str | int:
    """Run the filter as the kernel does; gives the error, or another end."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *([0] * (6 - len(arguments))))
    steps = list(struct.iter_unpack("<HBBI", program))
    at, loaded = 0, 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            kind, detail = value & 0xFFFF0000, value & 0xFFFF
            return detail if kind == 0x50000 else {0x7FFF0000: ALLOWED, 0x80000000: KILLED}[kind]
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            at += yes if holds else no


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_that_is_closed_gets_its_error_and_the_rest_goes_through(machine: str) -> None:
    program, architecture = build_filter(machine), ARCHITECTURES[machine]
    second = machine == "aarch64"
    numbers = {pair[second]: name for name, pair in {**seccomp._ABSENT, **seccomp._FORBIDDEN}.items()}
    for number in range(600):
        expected = CLOSED[numbers[number]] if number in numbers else ALLOWED
        assert decided(program, architecture, number) == expected, number
    clone, fcntl, ioctl = seccomp._CLONE[second], seccomp._FCNTL[second], seccomp._IOCTL[second]
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decided(program, architecture, clone, flag | 17) == errno.EPERM
        assert decided(program, architecture, clone, 1 << 40 | flag) == errno.EPERM
    assert decided(program, architecture, clone, 0x3D0F00) == ALLOWED  # a thread
    assert decided(program, architecture, fcntl, 0, 1031) == errno.EPERM
    assert decided(program, architecture, fcntl, 0, 1030) == ALLOWED
    assert decided(program, architecture, ioctl, 0, 0x5412) == decided(program, architecture, ioctl, 0, 0x541C) == 1
    assert decided(program, architecture, ioctl, 0, 0xFFFFFFFF00005412) == errno.EPERM  # the kernel takes 32 bits
    assert decided(program, architecture, ioctl, 0, 0x5401) == ALLOWED
    mmap = seccomp._MMAP[second]
    for flags in (0x21, 0x23, 0x8021, 1 << 32 | 0x21):  # shared and without a file
        assert decided(program, architecture, mmap, 0, 0, 0, flags) == errno.EPERM
    for flags in (0x22, 0x20022, 0x01, 0x02):
        assert decided(program, architecture, mmap, 0, 0, 0, flags) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_in_a_full_workspace_calls_that_fill_it_get_an_error_and_the_rest_is_decided_as_ever(machine: str) -> None:
    usual, architecture, second = build_filter(machine), ARCHITECTURES[machine], machine == "aarch64"
    no_bytes, no_files = build_full_filters(machine)
    makes = {pair[second] for pair in seccomp._MAKE_FILES.values()} - {None}
    plain = {seccomp._FALLOCATE[second]: errno.EDQUOT, **dict.fromkeys(makes, errno.EDQUOT)}
    plain[seccomp._OPENAT2[second]] = errno.ENOSYS
    full = no_bytes + no_files + usual
    for number in range(600):
        assert decided(full, architecture, number) == plain.get(number, decided(usual, architecture, number)), number
    opens: list[tuple[tuple[int, int | None], int]] = [(seccomp._OPEN, 1), (seccomp._OPENAT, 2)]
    for (first, other), at in opens:
        if (opening := other if second else first) is not None:
            assert decided(full, architecture, opening, *[0] * at, 0o101) == errno.EDQUOT
            assert decided(no_bytes + usual, architecture, opening, *[0] * at, 0o101) == ALLOWED
            assert decided(full, architecture, opening, *[0] * at, 0o1002) == ALLOWED
    mmap = seccomp._MMAP[second]
    for flags in (0x01, 0x03):
        assert decided(full, architecture, mmap, 0, 0, 0, flags) == errno.EDQUOT
        assert decided(no_files + usual, architecture, mmap, 0, 0, 0, flags) == ALLOWED
    assert decided(full, architecture, mmap, 0, 0, 0, 0x22) == ALLOWED
    assert decided(full, I386, 600) == KILLED


def test_calls_of_another_architecture_end_the_program_and_x32_is_absent() -> None:
    for machine in MACHINES:
        other = next(number for name, number in ARCHITECTURES.items() if name != machine)
        assert decided(build_filter(machine), other, 0) == decided(build_filter(machine), I386, 20) == KILLED
    for number in (0x40000000, 0x40000000 + 319, 0xFFFFFFFF):
        assert decided(build_filter("x86_64"), ARCHITECTURES["x86_64"], number) == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_the_kernels(machine: str) -> None:
    header = Path("/usr/include", HEADERS[machine])
    if not header.exists():
        pytest.skip(f"{header} is not installed (linux-libc-dev)")
    found = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", header.read_text())}
    pairs = {**seccomp._ABSENT, **seccomp._FORBIDDEN, "clone": seccomp._CLONE, "ioctl": seccomp._IOCTL}
    pairs |= {"fcntl": seccomp._FCNTL, "mmap": seccomp._MMAP}
    pairs |= {"openat": seccomp._OPENAT, "openat2": seccomp._OPENAT2, "fallocate": seccomp._FALLOCATE}
    second = machine == "aarch64"
    known = {name: pair[second] for name, pair in pairs.items() if name in found}
    makes = {**seccomp._MAKE_FILES, "open": seccomp._OPEN}.items()
    known |= {name: number for name, pair in makes if (number := pair[second]) is not None}
    assert len(known) >= len(pairs) - 3  # headers are older than the newest calls
    assert known == {name: found[name] for name in known}


def test_a_machine_without_a_filter_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert seccomp.why_no_filter() == "there is no filter of system calls for riscv64"


@pytest.mark.usefixtures("real_sandbox")
def test_the_kernel_refuses_each_of_them_in_a_sandbox(tmp_path: Path) -> None:
    second = platform.machine() == "aarch64"
    pairs = {**seccomp._ABSENT, **seccomp._FORBIDDEN}
    numbers = {name: pair[second] for name, pair in pairs.items()}
    said = inside(tmp_path).python(
        f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        for name, number in {numbers!r}.items():
            ctypes.set_errno(0)
            print(name, libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno())
        """
    )
    assert said.splitlines() == [f"{name} -1 {CLOSED[name]}" for name in numbers]


@pytest.mark.usefixtures("real_sandbox")
def test_no_words_are_put_into_a_terminal(tmp_path: Path) -> None:
    """Also not into one of its own, as a program that was given one of ours would try."""
    said = inside(tmp_path).python(
        """
        import fcntl, os, pty, termios
        pid, master = pty.fork()
        if pid == 0:
            for request in (termios.TIOCSTI, 0x541C):
                try: fcntl.ioctl(0, request, b"x"); print("PUT", flush=True)
                except OSError as error: print("refused", error.errno, flush=True)
            os._exit(0)
        os.wait()
        try:
            while True: print(os.read(master, 1000).decode())  # a line at a time, as it was written
        except OSError: pass
        """
    )
    assert said.count("refused 1") == 2 and "PUT" not in said


@pytest.mark.usefixtures("real_sandbox")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit calls are of x86_64")
def test_a_call_by_the_old_gate_ends_the_program(tmp_path: Path) -> None:
    said = inside(tmp_path).says(
        '/usr/bin/python3 -c "$@"; echo ended $?',
        "import ctypes, mmap\n"
        "code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE, prot=7)\n"
        "code.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, getpid; int 0x80; ret
        "call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))\n"
        "print('PASSED', call())\n",
    )
    assert "PASSED" not in said and re.search(r"ended (159|139)", said)
