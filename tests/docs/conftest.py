"""A gateway as the pages assume it: started in a folder with its state in `.state`, the OpenAI-style door open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Provider as Provider
from tests.cli.conftest import provider as provider
from tests.cli.program import PROGRAM, Program, Up

from .pages import ROOT

CONFIG = """{
  agents: { list: [{ id: "main", default: true }, { id: "researcher" }, { id: "writer" }] },
  tools: { sessions: { visibility: "all" }, agentToAgent: { enabled: true } },
  gateway: { http: { chatCompletions: true } },
  hooks: { enabled: true, token: "the-hooks-of-whoever-reads-this" },
}
"""
DOCUMENTED_SECRET = "change-me-to-a-secret-of-the-hooks"
CHOSEN_SECRET = "the-hooks-of-whoever-reads-this"
DOCUMENTED_URL = "http://127.0.0.1:18790"
PATIENCE_S = 40


class Reader:
    """Somebody who follows a page: in one folder, with the program in the path; `start` starts the gateway."""

    def __init__(self, home: Path) -> None:
        self.program = Program(home)
        self.program.state = home / ".state"
        self.program.config = self.program.state / "backchannel.json5"
        self.program.write_config(CONFIG)
        self.home = home
        self.up: Up | None = None
        self.env = {
            **self.program.env,
            "PATH": f"{Path(PROGRAM[0]).parent}{os.pathsep}{os.environ['PATH']}",
            "BACKCHANNEL_STATE_DIR": str(self.program.state),
            "PYTHONWARNINGS": "error",
            "PYTHONPATH": str(ROOT),
        }

    def start(self, *words: str) -> None:
        """Start the gateway, on a free port."""
        self.up = Up(self.program.command("up", "--port", "0", *words), self.program.env, self.home)
        self.up.wait_ready()

    def stop(self) -> None:
        if self.up is not None:
            self.up.kill()

    def do(self, command: str) -> subprocess.CompletedProcess[str]:
        """Type a command of a page."""
        return self._run(["sh", "-c", self._here(command)])

    def run_python(self, source: str) -> subprocess.CompletedProcess[str]:
        """Run a program of a page."""
        return self._run([sys.executable, "-c", self._here(source)])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.home,
            env=self.env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=False,
        )

    def _here(self, text: str) -> str:
        """Put the port of this gateway in the place of the usual one, and a secret in that of the example."""
        text = text.replace(DOCUMENTED_SECRET, CHOSEN_SECRET)
        return text.replace(DOCUMENTED_URL, self.up.url) if self.up else text


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    following = Reader(tmp_path)
    try:
        yield following
    finally:
        following.stop()
