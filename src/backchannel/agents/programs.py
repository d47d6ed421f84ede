"""Programs that the gateway starts: what they are given, and the leash that keeps them from outliving it.

A program gets the environment that its `Program` names and nothing else: the gateway's own has its token and the keys
of providers. `leashed` is the outermost wrapping, around a sandbox's: see `leash.py` for what it promises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from backchannel.agents import leash

PASSED_ON = ("PATH", "HOME", "LANG", "TERM", "TZ", "USER", "TMPDIR")
PASSED_ON_PREFIX = "LC_"
USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """What one process of a program may use; `None` is no limit."""

    cpu_seconds: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    file_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """What is started: its words, where, and with which environment."""

    argv: tuple[str, ...]
    cwd: Path | None
    env: Mapping[str, str]
    """All of it: nothing is inherited. `environment` makes one."""
    limits: ProgramLimits = field(default=ProgramLimits())
    """Set by the leash; without one they are not kept."""


def environment(own: Mapping[str, str] | None = None, *, of: Mapping[str, str] | None = None) -> dict[str, str]:
    """Make the environment of a program: the little that every program needs of ours, and what is its own."""
    ours = os.environ if of is None else of
    passed = {name: ours[name] for name in ours if name in PASSED_ON or name.startswith(PASSED_ON_PREFIX)}
    return {"PATH": USUAL_PATH, **passed, **(own or {})}


def leashed(program: Program) -> Program:
    """Wrap a program so that all of it, whatever it forks, ends with it and with this process, also by `kill -9`.

    It ends as the program does and has its input and outputs. SIGTERM asks all of it to end and kills it a second
    later. The process that calls this is the one that has to start it.
    """
    limits = tuple(
        f"--{name}={value}"
        for name in leash.LIMITS
        if (value := getattr(program.limits, name.replace("-", "_"))) is not None
    )
    argv = (sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *limits, "--", *program.argv)
    return replace(program, argv=argv, limits=ProgramLimits())
