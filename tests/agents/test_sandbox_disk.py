"""`limits.diskMb` and `limits.files` bound what commands of a sandbox put into the workspace."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import pytest

from tests.agents.inside import Inside, inside

pytestmark = pytest.mark.usefixtures("real_sandbox")
NO_BYTES = (
    "the workspace holds 20 MiB, and may hold 20: delete something, until then commands write nothing, in /tmp neither"
)
NO_FILES = (
    "the workspace holds {} files and folders, and may hold 300: delete something, "
    "until then commands make no files, and open none with `>`, nor /dev/null"
)
DISK, FILES = "stopped: more than 20 MiB in the workspace", "stopped: more than 300 files and folders in the workspace"

TOO_MUCH = {
    "many files": "for i in $(seq 40); do head -c 1000000 /dev/zero > f$i; done; sleep 30",
    "a deep folder": "for i in $(seq 40); do mkdir d; cd d; head -c 1000000 /dev/zero > f; done; sleep 30",
    "files without a name": 'for i in $(seq 4 44); do eval "exec $i>x"; rm x; head -c 1000000 /dev/zero >&$i; done; '
    "sleep 30",
}
HIDDEN = {
    "a path that is too long to be named": """
        import os
        for _ in range(30):
            os.mkdir("x" * 200); os.chdir("x" * 200)
    """,
    "a folder that nobody may look into": """
        import os
        os.makedirs("p/c"); os.chdir("p/c"); os.chmod("..", 0)
    """,
    "files without a name behind many open ones": """
        import os, time
        readable, writable = os.pipe()
        for _ in range(5):
            if os.fork() == 0:
                held = [os.open("/dev/null", os.O_RDONLY) for _ in range(900)]
                os.write(writable, b"x"); time.sleep(30); os._exit(0)
            os.read(readable, 1)
        if os.fork(): os.wait()
    """,
}
FILL = """
import os, time
time.sleep(0.5)  # what was there before is counted
files = [os.open(".", os.O_TMPFILE | os.O_RDWR) for _ in range(5)] if os.getcwd() == "/workspace" else []
for number in range(5):
    file = files[number] if files else os.open(f"f{number}", os.O_CREAT | os.O_WRONLY)
    for _ in range(10): os.write(file, bytes(1_000_000))
time.sleep(20)
print("FILLED")
"""
TOO_MANY = {
    "files": "for i in $(seq 400); do : > f$i; done; sleep 30",
    "folders": "mkdir -p $(seq 400); sleep 30",
    "links": "for i in $(seq 400); do ln -s x l$i; done; sleep 30",
    "second names": ": > f; for i in $(seq 400); do ln f l$i; done; sleep 30",
}


def small(tmp_path: Path) -> Inside:
    return inside(tmp_path, limits={"diskMb": 20, "files": 300})


@pytest.mark.parametrize("way", TOO_MUCH)
def test_a_command_that_fills_the_workspace_is_ended(tmp_path: Path, way: str) -> None:
    said = small(tmp_path).says(TOO_MUCH[way])
    assert DISK in said


@pytest.mark.parametrize("way", HIDDEN)
def test_a_command_that_fills_the_workspace_where_it_is_hard_to_count_is_ended(tmp_path: Path, way: str) -> None:
    if "may look" in way and os.geteuid() == 0:
        pytest.skip("root may look into every folder")
    said = small(tmp_path).python(textwrap.dedent(HIDDEN[way]) + FILL)
    assert "FILLED" not in said
    assert DISK in said or re.search(r"stopped: a folder in the workspace cannot be .* too deep: '(x+|p)", said)


@pytest.mark.parametrize("way", TOO_MANY)
def test_a_command_that_makes_too_many_files_is_ended(tmp_path: Path, way: str) -> None:
    assert FILES in small(tmp_path).says(TOO_MANY[way])


def test_what_is_within_the_limits_or_only_looks_large_is_left_alone(tmp_path: Path) -> None:
    box = small(tmp_path)
    assert box.says("head -c 10000000 /dev/zero > a; truncate -s 15M sparse; sleep 1; echo end") == "end\n"


def test_a_workspace_that_was_too_full_before_can_be_made_smaller_and_not_larger(tmp_path: Path) -> None:
    box = small(tmp_path)
    for number in range(30):
        (box.sandbox.workspace / f"old{number}").write_bytes(bytes(1_000_000))
    assert box.says("rm old1*; echo smaller") == "smaller\n"
    for number in range(30):
        (box.sandbox.workspace / f"old{number}").write_bytes(bytes(1_000_000))
    said = box.says("head -c 10000000 /dev/zero > more")
    assert said.splitlines()[-1].startswith("the workspace holds 29 MiB, and may hold 20: delete something")
    assert (box.sandbox.workspace / "more").stat().st_size == 0


def held(box: Inside) -> tuple[int, int]:
    """Tell what the workspace holds: bytes, and files and folders."""
    found = [path.lstat() for path in box.sandbox.workspace.rglob("*")]
    return sum(each.st_blocks * 512 for each in found), len(found)


def last_line(said: str) -> str:
    return said.splitlines()[-1]


def test_short_commands_that_each_write_a_file_fill_the_workspace_no_further_than_it_may_be(tmp_path: Path) -> None:
    box = small(tmp_path)
    assert box.says("head -c 15000000 /dev/zero > big0") == ""
    for number in range(1, 4):
        said = box.says(f"head -c 15000000 /dev/zero > big{number}; echo on")
        assert last_line(said) == NO_BYTES
        assert ("a file was cut off at 5.7 MiB: there was no room for more" in said) == (number == 1)
    assert held(box)[0] <= (20 << 20) + 65536  # what the file system takes for itself


def test_short_commands_that_each_write_many_files_go_above_the_limit_once(tmp_path: Path) -> None:
    box = small(tmp_path)
    once = "for j in $(seq 9); do head -c 6000000 /dev/zero > z%d$j; done"
    said = box.says(once % 0)
    assert "the workspace holds" in last_line(said)
    above = held(box)[0]
    assert 20 << 20 < above <= (20 << 20) + 9 * 6_001_000
    for number in range(1, 4):
        assert last_line(box.says(once % number)) == last_line(said)
    assert held(box)[0] == above


GROW = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("sparse", os.O_RDWR)
print(libc.fallocate(file, 1, ctypes.c_long(0), ctypes.c_long(4 << 20)), os.strerror(ctypes.get_errno()))
try: mmap.mmap(file, 4 << 20)[:] = bytes(4 << 20)
except OSError as error: print(error.strerror)
try: os.pwrite(file, b"x", 0)
except OSError as error: print(error.strerror)
"""


def test_a_full_workspace_does_not_grow_where_its_files_have_holes(tmp_path: Path) -> None:
    box = small(tmp_path)
    box.says("truncate -s 4M sparse; head -c 30000000 /dev/zero > a")
    before = held(box)
    said = box.python(GROW)
    assert said.splitlines()[:3] == ["-1 Disk quota exceeded", "Disk quota exceeded", "File too large"]
    assert last_line(said) == NO_BYTES
    assert held(box) == before


def test_a_file_that_is_cut_off_is_told_also_when_the_shell_ends_well(tmp_path: Path) -> None:
    box = small(tmp_path)
    box.says("head -c 15000000 /dev/zero > old")
    ran = box.run("head -c 15000000 /dev/zero > new; rm old; echo on")
    assert ran.returncode == 0
    assert last_line(ran.stderr) == "a file was cut off at 5.7 MiB: there was no room for more"
    assert box.says("echo on") == "on\n"
    box.says("head -c 15000000 /dev/zero > full")
    assert last_line(box.says("rm full; head -c 9 /dev/zero > /tmp/x")).startswith("a file was cut off at 0 bytes")


MAKE_ONE = {
    "a file": ": > new",
    "a folder": "mkdir new",
    "a link": "ln -s own.txt new",
    "a second name": "ln own.txt new",
    "a pipe": "mkfifo new",
    "a socket": "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"new\")'",
}


def test_short_commands_that_make_files_go_above_the_limit_once(tmp_path: Path) -> None:
    box = small(tmp_path)
    assert box.says("mkdir d; touch d/{1..200}") == ""
    told = last_line(box.says("touch {1..200}"))
    count = held(box)[1]
    assert 300 < count <= 402  # on a busy machine the command is seen, and ended before its last file
    assert told == NO_FILES.format(count)
    for way, command in MAKE_ONE.items():
        said = box.says(command)
        assert "Disk quota exceeded" in said, way
        assert last_line(said) == NO_FILES.format(count)
    assert held(box)[1] == count
    assert box.says("cat own.txt; rm -r d") == "mine"
    assert box.says("echo new > new; cat new 2> /dev/null") == "new\n"


def test_nothing_is_counted_where_nothing_can_be_written(tmp_path: Path) -> None:
    box = inside(tmp_path, workspaceAccess="ro", limits={"diskMb": 1, "files": 1})
    assert box.sandbox.rules.disk_mb == 1
    assert box.says("sleep 1; cat own.txt") == "mine"
