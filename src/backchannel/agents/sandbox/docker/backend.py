"""Sandboxes made by docker or podman: a container for each program that is started.

The container is not a child process of the gateway. So the leash removes it by name when the program has ended or the
gateway has died. Values of variables are taken from the client's environment by name, because everybody can read the
client's arguments.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from backchannel.agents.programs import CERTIFICATES, PASSED_ON, PASSED_ON_PREFIX, Program
from backchannel.agents.sandbox.backends import SCRATCH, SandboxBackend, disk_limits
from backchannel.config.agents import SandboxRules
from backchannel.config.programs import INSIDE, INSIDE_OUTPUTS

CLIENTS = ("docker", "podman")
FOR_CLIENT = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST")
_PROBE_LIMIT_S = 10.0


def client() -> str | None:
    """Find the program that starts containers here."""
    return next((name for name in CLIENTS if shutil.which(name)), None)


def why_not() -> str | None:
    """Say why no container can be started on this machine, and what would bring it."""
    found = client()
    if found is None:
        return "neither docker nor podman is installed (on Debian and Ubuntu: apt-get install podman)"
    return _failure(found)


@functools.cache
def _failure(name: str) -> str | None:
    try:
        ran = subprocess.run((name, "info"), capture_output=True, timeout=_PROBE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name} does not work here: {error}"
    if ran.returncode == 0:
        return None
    said = ran.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {ran.returncode}"]
    return f"{name} does not work here: {said[0]}"


def wrapped(program: Program, rules: SandboxRules, workspace: Path, outputs: Path | None) -> Program:
    """Put a program into a container; it can read the folder of outputs."""
    name, found = f"backchannel-{uuid4().hex}", client() or CLIENTS[0]
    has_files = rules.workspace_access != "none"
    own = {key: value for key, value in program.env.items() if not _is_ours(key, value)}
    argv = (
        *(found, "run", "--rm", "--interactive", "--init", "--name", name, "--pull", "missing"),
        *_confined(rules),
        *(("--volume", f"{workspace}:{INSIDE}:{rules.workspace_access}") if has_files else ()),
        *(("--volume", f"{outputs}:{INSIDE_OUTPUTS}:ro") if outputs is not None else ()),
        *("--workdir", _cwd(program.cwd, workspace) if has_files else SCRATCH),
        *("--env", f"HOME={INSIDE if has_files else SCRATCH}"),
        *(word for key in own for word in ("--env", key)),
        rules.image,
        *program.argv,
    )
    env = own | {key: os.environ[key] for key in FOR_CLIENT if key in os.environ}
    return replace(
        program, argv=argv, cwd=workspace, env=env, limits=disk_limits(rules), after=(found, "rm", "--force", name)
    )


def _confined(rules: SandboxRules) -> Iterator[str]:
    yield from ("--network", "bridge" if rules.network else "none", "--read-only", "--hostname", "sandbox")
    yield from ("--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    yield from ("--user", f"{os.geteuid()}:{os.getegid()}")  # so that files in the workspace are the gateway's
    yield from ("--memory", f"{rules.memory_mb}m", "--memory-swap", f"{rules.memory_mb}m")
    yield from ("--pids-limit", str(rules.processes), "--ulimit", f"cpu={rules.cpu_seconds}")
    temporary = f"{rules.memory_mb // 2}m"  # it counts as memory of the container
    yield from ("--tmpfs", f"{SCRATCH}:rw,size={temporary}", "--shm-size", temporary)


def _cwd(cwd: Path | None, workspace: Path) -> str:
    if cwd is None or not cwd.is_relative_to(workspace):
        return INSIDE
    return str(Path(INSIDE, cwd.relative_to(workspace)))


def _is_ours(name: str, value: str) -> bool:
    """Whether a variable is about this machine, and wrong in a container."""
    if name in CERTIFICATES:  # those that a server's own settings name are meant for the image
        return value == os.environ.get(name)
    return name in PASSED_ON or name.startswith(PASSED_ON_PREFIX)


def make_backend() -> SandboxBackend:
    """Make the backend, for the adapter."""
    return SandboxBackend(why_not, wrapped)
