"""A program in the sandbox of a session, on a state folder as it is."""

from __future__ import annotations

import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

from backchannel.agents.programs import Program, environment, leashed
from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.sandboxes import Sandbox, Sandboxes
from backchannel.config import config_from

MAIN = "agent:main:main"


@dataclass
class Inside:
    """A state folder as it is, and a program in the sandbox of one of its sessions."""

    state: Path
    sandbox: Sandbox

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = Program(("/bin/bash", "-c", script, "bash", *arguments), self.sandbox.workspace, environment())
        started = leashed(self.sandbox.wrap(program))
        return subprocess.run(
            started.argv,
            env=started.env,
            cwd=started.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def python(self, script: str) -> str:
        """Tell what a script of the system's Python writes, or how it ended."""
        return self.says('/usr/bin/python3 -c "$@"', textwrap.dedent(script))

    def says(self, script: str, *arguments: str) -> str:
        ran = self.run(script, *arguments)
        return ran.stdout + ran.stderr


def inside(tmp_path: Path, **rules: object) -> Inside:
    state = tmp_path / "state"
    for name, text in {
        "backchannel.db": "every conversation",
        "token": "the operator's token",
        "agents/main/workspace/own.txt": "mine",
        "agents/other/workspace/theirs.txt": "of another agent",
        "agents/main/sessions/a.jsonl": "a transcript",
    }.items():
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(text)
    agents = [{"id": "main", "sandbox": {"mode": "all", **rules}}, {"id": "other"}]
    config = config_from({"agents": {"list": agents}}, {}, state=state)
    sandbox = Sandboxes(Agents(config), config.key_scheme, state).of("main", MAIN)
    assert sandbox is not None
    return Inside(state, sandbox)
