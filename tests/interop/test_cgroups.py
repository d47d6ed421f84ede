"""Control groups, tried on a kernel that has them: user-mode Linux, booted for the test as an ordinary process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop
ROOT = Path(__file__).parents[2]
KERNEL = "linux.uml"
START = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmpfs /run; mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /dev/pts /dev/shm
echo "+memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/unit
sh -c 'echo $$ > /sys/fs/cgroup/unit/cgroup.procs; exec {python} -m tests.support.in_group delegated'
mkdir -p /run/systemd/system /run/user; chmod 700 /run/user; export XDG_RUNTIME_DIR=/run/user
/lib/systemd/systemd --user --log-target=null 2>/dev/null &
for look in $(seq 100); do [ -e /run/user/systemd/private ] && break; sleep 0.1; done
{python} -m tests.support.in_group scope
echo o > /proc/sysrq-trigger
sleep 10
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, str]]:
    """Boot, run the same commands in groups of both kinds, and read what came of them."""
    if shutil.which(KERNEL) is None or os.geteuid() != 0:
        reason = f"{KERNEL} is not installed (apt-get install user-mode-linux), or this is not root"
        pytest.fail(reason) if "CI" in os.environ else pytest.skip(reason)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        return boot(Path(folder, "start"))


def boot(start: Path) -> dict[str, dict[str, str]]:
    start.write_text(START.replace("{python}", f"env PYTHONPATH={ROOT} {sys.executable}"))
    start.chmod(0o755)
    words = [KERNEL, "rootfstype=hostfs", "rootflags=/", "ro", "mem=1G", f"init={start}", "con=null", "con0=fd:0,fd:1"]
    ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"kind"')]
    found = {told["kind"]: told for told in map(json.loads, lines)}
    assert set(found) == {"delegated", "scope"}, ran.stdout[-4000:]
    return found


@pytest.mark.parametrize("kind", ["delegated", "scope"])
def test_the_kernel_bounds_all_memory_of_a_sandbox(seen: dict[str, dict[str, str]], kind: str) -> None:
    told = seen[kind]
    where = "in /sys/fs/cgroup/unit" if kind == "delegated" else "made by systemd"
    assert told["how"] == f"a control group for each command, {where}"
    assert told["plain"] == "hi\n"
    assert "HELD" not in told["together"]
    # In a scope the kernel may end the leash too, and then nobody is left to say why.
    assert kind == "scope" or "stopped: more than 64 MiB of memory" in told["together"]
    assert "HELD" not in told["in a tmpfs"]
    if kind == "delegated":
        assert "stopped: more than 64 MiB of memory" in told["in a tmpfs"]
        assert told["left"] == "[]"
