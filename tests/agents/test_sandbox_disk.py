"""`limits.diskMb` and `limits.files` bound what commands of a sandbox put into the workspace."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import pytest

from tests.agents.inside import Inside, inside

pytestmark = pytest.mark.usefixtures("real_sandbox")
DISK, FILES = "stopped: more than 20 MiB in the workspace", "stopped: more than 300 files and folders in the workspace"

TOO_MUCH = {
    "one file": "yes > big; sleep 30",
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
    assert DISK in said or (way == "one file" and "File size limit exceeded" in said)


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
    assert DISK in box.says("head -c 10000000 /dev/zero > more; sleep 30")


def test_nothing_is_counted_where_nothing_can_be_written(tmp_path: Path) -> None:
    box = inside(tmp_path, workspaceAccess="ro", limits={"diskMb": 1, "files": 1})
    assert box.sandbox.rules.disk_mb == 1
    assert box.says("sleep 1; cat own.txt") == "mine"
