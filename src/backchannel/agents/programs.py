"""Programs that the gateway starts: their environment, and the leash around them.

A program gets the environment that its `Program` names and nothing else: the gateway's own has its token and the keys
of providers. `leashed` is the outermost wrapping, around a sandbox's: see `leash.py` for what it promises.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from backchannel.agents import leash
from backchannel.config.programs import USUAL_PATH

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
"""Where the certificates of this machine are: without them a program may not reach what the gateway reaches."""
PASSED_ON = ("PATH", "HOME", "LANG", "TERM", "TZ", "USER", "TMPDIR", *CERTIFICATES)
PASSED_ON_PREFIX = "LC_"
FILTERS = ("filter", "full_bytes_filter", "full_files_filter")
STANDARD_ERROR = 2
"""The last descriptor that every program has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """What a program may use; `None` is no limit. Kept by the leash, without which there are none."""

    cpu_seconds: int | None = None
    """Of each process."""
    memory_bytes: int | None = None
    """Of each process, and of all together."""
    processes: int | None = None
    """Processes and threads, together."""
    file_bytes: int | None = None
    """Of each file that is written."""
    disk_bytes: int | None = None
    """What has to be left on the disk of the folder it is started in."""
    temporary_bytes: int | None = None
    """The size of its temporary folders, each of which is memory and counts as that."""
    folder_bytes: int | None = None
    """Of all files in the folder it is started in."""
    folder_files: int | None = None
    """Files and folders in the folder it is started in."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is started: its words, where, and with which environment."""

    argv: tuple[str, ...]
    cwd: Path | None
    env: Mapping[str, str]
    """All of it: nothing is inherited. `environment` makes one."""
    limits: ProgramLimits = field(default=ProgramLimits())
    filter: bytes = b""
    """What the program reads from descriptor `leash.FILTER`, if it is to have that open; bubblewrap's, for seccomp."""
    full_bytes_filter: bytes = b""
    full_files_filter: bytes = b""
    """What comes before the filter if the folder it is started in has all the bytes, or files, that it may have."""
    group: str = ""
    """The control group in which the leash makes one for it, with its limits."""
    after: tuple[str, ...] = ()
    """A command for the leash to run when all of it has ended: it removes what is no child of ours."""


def environment(own: Mapping[str, str] | None = None, *, of: Mapping[str, str] | None = None) -> dict[str, str]:
    """Make the environment of a program: the little that every program needs of ours, and what is its own."""
    ours = os.environ if of is None else of
    passed = {name: ours[name] for name in ours if name in PASSED_ON or name.startswith(PASSED_ON_PREFIX)}
    return {"PATH": USUAL_PATH, **passed, **(own or {})}


def keep_descriptors() -> None:
    """Mark every descriptor of this process but 0, 1 and 2 to be closed in programs that it starts.

    For a process that is all ours, such as `backchannel up`: in one that embeds a gateway they may be meant for a
    program of its own. There the leash alone keeps them from ours.
    """
    for folder in (Path("/proc/self/fd"), Path("/dev/fd")):
        if folder.exists():
            for number in [int(path.name) for path in folder.iterdir() if path.name.isdigit()]:
                if number > STANDARD_ERROR:
                    with suppress(OSError):  # the one that the folder was listed with
                        os.set_inheritable(number, False)
            return


def leashed(program: Program) -> Program:
    """Wrap a program so that all of it, whatever it forks, ends with it and with this process, also by `kill -9`.

    It ends as the program does and has its input and outputs. SIGTERM asks all of it to end and kills it a second
    later. The process that calls this is the one that has to start it.
    """
    limits = ((name.replace("_", "-"), getattr(program.limits, name)) for name in ProgramLimits.__slots__)
    options = [f"--{name}={value}" for name, value in limits if value is not None]
    options += [f"--{name.replace('_', '-')}={value.hex()}" for name in FILTERS if (value := getattr(program, name))]
    if program.group:
        options.append(f"--group={program.group}")
    if program.after:
        options.append(f"--after={json.dumps(program.after)}")
    argv = (sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *options, "--", *program.argv)
    return Program(argv, program.cwd, program.env)
