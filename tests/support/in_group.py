"""Commands in a sandbox that has a control group, and what came of them: `python -m tests.support.in_group <kind>`.

Run on a machine with cgroup v2, as root: in a group that may be divided (`delegated`), or with a systemd of the user
(`scope`). Prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from backchannel.agents import cgroups
from backchannel.agents.programs import Program, environment, leashed
from backchannel.agents.sandbox.sandboxes import Sandbox
from backchannel.config.agents import SandboxRules

COMMANDS = {
    "plain": "echo hi",
    "together": "for i in 1 2 3 4; do python3 -c 'import time\n"
    "held = bytearray(30 << 20)\n"
    "time.sleep(10)' & done; wait; echo HELD",
    # The workspace is a tmpfs here, which nothing counts but the group.
    "in a tmpfs": "for i in 1 2 3; do head -c 40000000 /dev/zero > $i; done; echo HELD",
}


def said(command: str) -> str:
    folder = Path("/run/workspace")
    folder.mkdir(exist_ok=True)
    sandbox = Sandbox(SandboxRules(memory_mb=64), folder, Path("/run/outputs"))
    program = leashed(sandbox.wrap(Program(("/bin/bash", "-c", command), folder, environment())))
    ran = subprocess.run(
        program.argv, env=program.env, cwd=program.cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return ran.stdout + ran.stderr


def main(kind: str) -> None:
    if kind == "delegated":
        cgroups.divide_own_group()
    told = {"kind": kind, "how": cgroups.how_bounded(), **{name: said(command) for name, command in COMMANDS.items()}}
    left = Path("/sys/fs/cgroup/unit").glob("sandbox-*")
    sys.stdout.write(json.dumps({**told, "left": str(list(left))}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
