"""Sandboxes made by bubblewrap: Linux namespaces, without root.

Inside, a program sees the system's own folders read-only, a `/tmp` and `/proc` of its own, and the workspace at
`/workspace`. Nothing else of the machine is there: not the state folder, not anybody's home, no sockets. Folders of
the system are shown by name, so `/etc/shadow` and private keys are left out.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from backchannel.agents import cgroups
from backchannel.agents.leash import FILTER
from backchannel.agents.programs import CERTIFICATES, Program, ProgramLimits, leashed
from backchannel.agents.sandbox.backends import MIB, SCRATCH, SandboxBackend, disk_limits
from backchannel.agents.sandbox.bubblewrap.seccomp import build_filter, build_full_filters, why_no_filter
from backchannel.config.agents import SandboxRules
from backchannel.config.programs import INSIDE, INSIDE_OUTPUTS, USUAL_PATH

PROGRAM, PACKAGE = "bwrap", "bubblewrap"
SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders that are links into `/usr` on most systems, and folders of their own on some."""
_SHOWN = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
SHOWN_WITH_NETWORK = ("/etc/hosts", "/etc/resolv.conf")
USER = "1000"
ETC = Path(__file__).parent / "etc"
"""Our own `passwd` and `group`, since the system's tell who has accounts here."""
_PROBE_LIMIT_S = 10.0
FILE_BYTES = 1 << 30


def why_not() -> str | None:
    """Say why there is no sandbox of bubblewrap on this machine, and what would bring it."""
    if sys.platform != "linux":
        return "bubblewrap is for Linux; sandbox.backend `docker` is for other systems"
    found = shutil.which(PROGRAM)
    if found is None:
        return f"the package {PACKAGE} is not installed (on Debian and Ubuntu: apt-get install {PACKAGE})"
    return _failure(found)


@functools.cache
def _failure(program: str) -> str | None:
    """Try it: user namespaces may be forbidden to it."""
    rules = SandboxRules(workspace_access="none")
    tried = leashed(wrapped(Program(("/bin/true",), None, {"PATH": USUAL_PATH}), rules, Path("/")))
    try:
        ran = subprocess.run(tried.argv, env=tried.env, capture_output=True, timeout=_PROBE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{PACKAGE} does not work here: {error}"
    if ran.returncode == 0:
        return None
    said = ran.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {ran.returncode}"]
    return f"{PACKAGE} does not work here: {said[0]} (does this system let users make namespaces?)"


@functools.cache
def _can_forbid_namespaces(program: str) -> bool:
    """Whether this version can keep a program from making namespaces of its own."""
    told = subprocess.run((program, "--help"), capture_output=True, timeout=_PROBE_LIMIT_S, check=False)
    return b"--disable-userns" in told.stdout


def wrapped(program: Program, rules: SandboxRules, workspace: Path, outputs: Path | None = None) -> Program:
    """Put a program into a sandbox; it can read the folder of outputs."""
    has_files = rules.workspace_access != "none"
    home = INSIDE if has_files else SCRATCH
    argv = (
        PROGRAM,
        *_namespaces(rules),
        *_system(rules),
        *_folders(rules, workspace),
        *(("--ro-bind-try", str(outputs), INSIDE_OUTPUTS) if outputs is not None else ()),
        # What is left of the root is memory too, and nobody's to fill.
        *("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", _cwd(program.cwd, workspace, home)),
        "--",
        *_counted(rules),
        *program.argv,
    )
    env = {name: value for name, value in program.env.items() if name != "TMPDIR" and not _is_hidden(name, value)}
    env |= {"HOME": home, "USER": "agent", "PATH": USUAL_PATH}
    made = replace(program, argv=argv, cwd=workspace, env=env, limits=limits(rules))
    return made if why_no_filter() is not None else _filtered(made)


def _filtered(program: Program) -> Program:
    machine = platform.machine()
    no_bytes, no_files = build_full_filters(machine)
    return replace(program, filter=build_filter(machine), full_bytes_filter=no_bytes, full_files_filter=no_files)


def _is_hidden(name: str, value: str) -> bool:
    """Whether a variable names certificates that are not seen inside, where the system's own are better than none."""
    return name in CERTIFICATES and not any(Path(value).is_relative_to(seen) for seen in ("/usr", INSIDE, *_SHOWN))


def limits(rules: SandboxRules) -> ProgramLimits:
    """Say what a program in a sandbox may use."""
    return replace(
        disk_limits(rules),
        cpu_seconds=rules.cpu_seconds,
        memory_bytes=rules.memory_mb * MIB,
        processes=rules.processes,
        file_bytes=min(FILE_BYTES, rules.disk_mb * MIB),
        temporary_bytes=_temporary_bytes(rules),
    )


def _temporary_bytes(rules: SandboxRules) -> int:
    """Tell how large each temporary folder may get: what lies there is memory, and counts as such."""
    return rules.memory_mb * MIB // 2


def _namespaces(rules: SandboxRules) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--uid", USER, "--gid", USER, "--hostname", "sandbox")
    yield from ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
    if rules.network:
        yield "--share-net"
    if (found := shutil.which(PROGRAM)) and _can_forbid_namespaces(found):
        yield "--disable-userns"
    if why_no_filter() is None:
        yield from ("--seccomp", str(FILTER))


def _system(rules: SandboxRules) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in SYSTEM_LINKS:
        folder = Path("/", name)
        if folder.is_symlink():
            yield from ("--symlink", str(folder.readlink()), str(folder))
        elif folder.exists():
            yield from ("--ro-bind", str(folder), str(folder))
    for path in (*_SHOWN, *(SHOWN_WITH_NETWORK if rules.network else ())):
        yield from ("--ro-bind-try", path, path)
    for name in ("passwd", "group"):
        yield from ("--ro-bind", str(ETC / name), f"/etc/{name}")


def _folders(rules: SandboxRules, workspace: Path) -> Iterator[str]:
    scratch = str(_temporary_bytes(rules))
    yield from ("--proc", "/proc", "--dev", "/dev", "--size", scratch, "--tmpfs", "/dev/shm")  # noqa: S108
    # It reads as zeros too. A shared mapping of the real one is memory that nothing counts (see seccomp.py).
    yield from ("--dev-bind", "/dev/full", "/dev/zero")
    yield from ("--size", scratch, "--tmpfs", SCRATCH, "--symlink", SCRATCH, "/var/tmp")  # noqa: S108
    if rules.workspace_access != "none":
        yield from ("--bind" if rules.workspace_access == "rw" else "--ro-bind", str(workspace), INSIDE)


def _cwd(cwd: Path | None, workspace: Path, home: str) -> str:
    """Say where a program begins: in the folder it asks for if that is in the workspace, else at home."""
    if cwd is None or home != INSIDE or not cwd.is_relative_to(workspace):
        return home
    return str(Path(INSIDE, cwd.relative_to(workspace)))


def _counted(rules: SandboxRules) -> tuple[str, ...]:
    """Have the kernel count processes inside, where no others of the user are; for root it does not count."""
    found = Path("/usr/bin/prlimit")
    return (str(found), f"--nproc={rules.processes}", "--") if found.exists() and os.geteuid() != 0 else ()


def how_memory_is_bounded() -> str:
    """Say what keeps `limits.memoryMb` on this machine."""
    closed = why_no_filter() or "a filter of system calls closes what cannot be counted"
    group = cgroups.how_bounded() or "no control group is to be had here"
    return f"memory is counted; {closed}; {group}"


def make_backend() -> SandboxBackend:
    """Make the backend, for the adapter."""
    return SandboxBackend(why_not, wrapped, how_memory_is_bounded)
