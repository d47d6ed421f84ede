"""The contract of a kind of sandbox, and the parts that all kinds share.

A kind is a folder here with an `adapter.py` (`core/adapters.py`). What its adapter makes is a `SandboxBackend`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from backchannel.agents.programs import Program, ProgramLimits
from backchannel.config.adapters import SANDBOXES, AdapterUnusable
from backchannel.config.agents import SandboxRules

SCRATCH = "/tmp"  # noqa: S108 - it is the sandbox's own
DISK_BYTES = 128 << 20
"""A program is stopped before it takes the last of a disk that the gateway may need."""
MIB = 1 << 20


def _not_ours() -> None:
    return None


class SandboxBackend(NamedTuple):
    """One kind of sandbox on this machine."""

    why_not: Callable[[], str | None]
    """Says why there is no such sandbox on this machine, and what would bring it; None: there is."""
    wrapped: Callable[[Program, SandboxRules, Path, Path | None], Program]
    """Puts a program into a sandbox with a workspace and a folder of outputs that it can read."""
    how_memory_is_bounded: Callable[[], str | None] = _not_ours
    """Says what keeps `limits.memoryMb`; None: the sandbox has limits of its own."""


@cache
def backend_named(name: str) -> SandboxBackend:
    """Give the kind of sandbox of a name. One whose package fails says so in `why_not`."""
    try:
        adapter = SANDBOXES.find(name)
        if adapter is None:
            raise AdapterUnusable(f"no kind of sandbox is called {name} (there are: {', '.join(SANDBOXES.names)})")
        made = SANDBOXES.make(adapter)
        if not isinstance(made, SandboxBackend):
            raise AdapterUnusable(f"{adapter.make} makes no SandboxBackend")
    except AdapterUnusable as unusable:
        return _unusable(unusable.reason)
    return made


def _unusable(reason: str) -> SandboxBackend:
    def wrapped(program: Program, rules: SandboxRules, workspace: Path, outputs: Path | None) -> Program:
        raise RuntimeError(reason)

    return SandboxBackend(why_not=lambda: reason, wrapped=wrapped)


def disk_limits(rules: SandboxRules) -> ProgramLimits:
    """Say how far a program may fill the workspace, if it may write there, and the disk."""
    if rules.workspace_access != "rw":
        return ProgramLimits(disk_bytes=DISK_BYTES)
    return ProgramLimits(disk_bytes=DISK_BYTES, folder_bytes=rules.disk_mb * MIB, folder_files=rules.files)
