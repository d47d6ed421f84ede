"""Control groups (cgroup v2): the kernel's own memory limit for a sandbox.

The limit includes memory that the kernel holds for the sandbox. There are two ways to get a group. *Delegated*: the
gateway may divide its own group, as with systemd's `Delegate=yes`. A divided group may have no process of its own, so
`up` moves itself into a part of it. The leash then makes a part for each sandbox. *Scope*: systemd makes a group for
each sandbox, asked by `systemd-run --user`. Without either, only the leash counts. It counts beside a group too.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from backchannel.agents.programs import Program

ROOT = Path("/sys/fs/cgroup")
OWN_PART, PARTS = "gateway", "sandbox-*"
CONTROLLERS = "+memory +pids"
SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect")
TRIED_MEMORY = 64 << 20
TRY = f'cat "{ROOT}$(sed -n s/^0:://p /proc/self/cgroup)/memory.max"'
_PROBE_LIMIT_S = 10.0
SPARE_TASKS = 8
"""Processes of bubblewrap and the like, which are in the group and not the program's."""


class _Divided:
    """The group that this process divides, if it does."""

    folder: Path | None = None


def divide_own_group() -> None:
    """Divide the group of this process, if it has one for itself alone that it may divide.

    For a process that is all ours, such as `backchannel up`: it is moved into a part of the group.
    """
    folder = own_group()
    if folder is None or not os.access(folder / "cgroup.subtree_control", os.W_OK):
        return
    with suppress(OSError):
        if folder.name != OWN_PART:
            _move_aside(folder)
        else:
            folder = folder.parent  # it was started again by a program that had done so
        if "memory" in (folder / "cgroup.subtree_control").read_text(encoding="ascii").split():
            _Divided.folder = folder
            for left in folder.glob(PARTS):
                with suppress(OSError):  # somebody else's, who is in it
                    left.rmdir()


def _move_aside(folder: Path) -> None:
    if (folder / "cgroup.procs").read_text(encoding="ascii").split() != [str(os.getpid())]:
        return  # others are in it, which are not ours to move
    part = folder / OWN_PART
    part.mkdir(exist_ok=True)
    (part / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    (folder / "cgroup.subtree_control").write_text(CONTROLLERS, encoding="ascii")


def own_group() -> Path | None:
    """Find the group of this process in the one tree of cgroup v2; None where there is none with memory."""
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
        if path is not None:
            folder = ROOT / path.lstrip("/")
            if "memory" in (folder / "cgroup.controllers").read_text(encoding="ascii").split():
                return folder
    return None


def grouped(program: Program, memory_bytes: int, processes: int) -> Program:
    """Have a program run in a group of its own, where one is to be had. It may start programs to find out."""
    if _Divided.folder is not None:
        return replace(program, group=str(_Divided.folder))
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if not has_scopes(runtime):
        return program
    limits = (f"MemoryMax={memory_bytes}", "MemorySwapMax=0", f"TasksMax={processes + SPARE_TASKS}")
    words = (*SCOPE, *(f"--property={limit}" for limit in limits), "--", "env", "-u", "XDG_RUNTIME_DIR")
    return replace(program, argv=(*words, *program.argv), env={**program.env, "XDG_RUNTIME_DIR": runtime})


@functools.cache
def has_scopes(runtime: str) -> bool:
    """Try whether systemd of this user makes groups whose memory is bounded."""
    if not runtime or shutil.which(SCOPE[0]) is None or not Path(runtime, "systemd", "private").exists():
        return False
    words = (*SCOPE, f"--property=MemoryMax={TRIED_MEMORY}", "--", "/bin/sh", "-c", TRY)
    env = {"XDG_RUNTIME_DIR": runtime, "PATH": os.environ.get("PATH", "")}
    try:
        tried = subprocess.run(words, env=env, capture_output=True, timeout=_PROBE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.stdout.strip() == str(TRIED_MEMORY).encode()


def how_bounded() -> str | None:
    """Say in words which group a sandbox gets; None: it gets none. It may start programs to find out."""
    if _Divided.folder is not None:
        return f"a control group for each command, in {_Divided.folder}"
    if has_scopes(os.environ.get("XDG_RUNTIME_DIR", "")):
        return "a control group for each command, made by systemd"
    return None
