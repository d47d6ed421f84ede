"""`limits.memoryMb` bounds all memory of a sandbox, whoever holds it; and ordinary programs work in one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from backchannel.agents.programs import Program, ProgramLimits, environment, leashed
from tests.agents.inside import inside

pytestmark = pytest.mark.usefixtures("real_sandbox")
LIMIT = {"memoryMb": 128}
STOPPED = "stopped: more than 128 MiB of memory"

WAYS = {
    "files in both temporary folders": """
        import time
        for name in ("/tmp/a", "/dev/shm/a"):
            with open(name, "wb") as file:
                for _ in range(60): file.write(bytes(1 << 20))
        hold = bytearray(60 << 20)
        time.sleep(20)
        print("HELD")
    """,
    "deleted files in a temporary folder": """
        import os, tempfile, time
        held = [tempfile.TemporaryFile(dir=where) for where in ("/tmp", "/dev/shm") for _ in range(60)]
        for file in held:
            file.write(os.urandom(1 << 20)); file.flush()
        hold = bytearray(60 << 20)
        time.sleep(20)
        print("HELD")
    """,
    "empty files without end": """
        for number in range(1_000_000): open(f"/tmp/{number}", "w").close()
        print("HELD")
    """,
    "page tables": """
        import ctypes, mmap, time
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        size = 1 << 37
        place = libc.mmap(None, size, 1, 0x4022, -1, 0)  # to be read only: no limit of a process counts it
        libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(size), 15)  # no huge pages
        for at in range(place, place + size, 1 << 21): ctypes.string_at(at, 1)
        time.sleep(20)
        print("HELD")
    """,
    "heaps of many": """
        import os, time
        [os.fork() for _ in range(2)]
        hold = os.urandom(1 << 20) * 60
        time.sleep(20)
        print("HELD")
    """,
}
REFUSED = {
    "a shared mapping": "import mmap; mmap.mmap(-1, 4096)",
    "a shared mapping of zeros": "import mmap, os; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
    "a shared segment": "import ctypes; print(ctypes.CDLL(None).shmget(0, 100 << 20, 0o1600))",
    "a memory file": "import os; print(os.memfd_create('x'))",
    "a message queue": "import ctypes; print(ctypes.CDLL(None).msgget(0, 0o1600))",
    "semaphores": "import ctypes; print(ctypes.CDLL(None).semget(0, 30000, 0o1600))",
    "a large pipe": "import fcntl, os; print(fcntl.fcntl(os.pipe()[0], 1031, 1 << 20))",
    "a namespace": "import ctypes; print(ctypes.CDLL(None).unshare(0x10020000))",
    "a file system": "import ctypes; print(ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None))",
    "a key": "import ctypes; print(ctypes.CDLL(None).syscall(248, b'user', b'x', b'x' * 100, 100, -3))",
}

ERRORS = ("Function not implemented", "Operation not permitted", "No such device")


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_no_single_process_has_is_counted(tmp_path: Path, way: str) -> None:
    said = inside(tmp_path, limits=LIMIT).python(WAYS[way])
    assert STOPPED in said and "HELD" not in said


@pytest.mark.parametrize("way", REFUSED)
def test_memory_without_an_owner_is_not_to_be_had(tmp_path: Path, way: str) -> None:
    said = inside(tmp_path, limits=LIMIT).python(REFUSED[way])
    assert said == "-1\n" or any(error in said for error in ERRORS)


def test_zeros_can_be_read(tmp_path: Path) -> None:
    assert inside(tmp_path).says("head -c 3 /dev/zero | od -An -tx1") == " 00 00 00\n"


SHARING = """
import mmap, os, time
shared = mmap.mmap(-1, {mib} << 20)
for at in range(0, {mib} << 20, 4096): shared[at] = 1
pids = [os.fork() for _ in range(2)]
print(sum(shared[at] for at in range(0, {mib} << 20, 4096)), flush=True)
time.sleep(1)
"""


@pytest.mark.parametrize(("mib", "written"), [(70, "17920\n" * 4), (140, STOPPED)])
def test_where_calls_are_not_filtered_what_is_shared_is_counted_once(tmp_path: Path, mib: int, written: str) -> None:
    words = ("/usr/bin/python3", "-c", SHARING.format(mib=mib))
    program = leashed(Program(words, tmp_path, environment(), ProgramLimits(memory_bytes=128 << 20)))
    ran = subprocess.run(
        program.argv, env=program.env, cwd=program.cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert written in ran.stdout + ran.stderr


ORDINARY = {
    "python3": """
        import concurrent.futures, multiprocessing, sqlite3, subprocess, threading
        with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, [-1, -2]))
        with concurrent.futures.ThreadPoolExecutor(4) as pool: print(list(pool.map(abs, [-3])))
        print(sqlite3.connect(":memory:").execute("SELECT 4").fetchone())
        print(subprocess.run(["echo", "5"], capture_output=True, text=True).stdout)
    """,
    "node": 'node -e \'new (require("worker_threads").Worker)("console.log(6 * 7)", {eval: true})\'',
    "git": "git init -q . && git -c user.name=a -c user.email=a@b commit -qm x --allow-empty && git log --format=%s",
    "rg": "echo needle > hay && rg needle .",
    "gcc": "echo 'int main(void){return 7;}' > a.c && gcc -O2 a.c -o a && { ./a; echo $?; }",
    "pip": "python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix)'",
    "tar": "mkdir d && echo x > d/x && tar czf d.tgz d && tar tzf d.tgz | sort | xargs",
    "perl": "perl -e 'print 6*7'",
    "make": "printf 'all:\\n\\techo made\\n' > Makefile && make -s -j4",
}
WRITTEN = {
    "python3": "[1, 2]\n[3]\n(4,)\n5\n\n",
    "node": "42\n",
    "git": "x\n",
    "rg": "./hay:needle\n",
    "gcc": "7\n",
    "pip": "/workspace/v\n",
    "tar": "d/ d/x\n",
    "perl": "42",
    "make": "made\n",
}


@pytest.mark.parametrize("program", ORDINARY)
def test_ordinary_programs_work(tmp_path: Path, program: str) -> None:
    if shutil.which(program, path="/usr/bin:/bin") is None and program != "pip":
        pytest.skip(f"{program} is not installed")
    box = inside(tmp_path)
    said = box.python(ORDINARY[program]) if program == "python3" else box.says(ORDINARY[program])
    assert said == WRITTEN[program]
