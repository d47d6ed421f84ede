"""The surroundings of a row: a temporary folder, and the processes it starts there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.measures import Sizes
from bench.processes.load import Done, Load
from bench.processes.models import FREE
from bench.states import State, make_state

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60.0


class Place(msgspec.Struct, frozen=True):
    """Where a server says it is."""

    url: str
    token: str


class Server:
    """A process that serves until it is stopped."""

    def __init__(self, process: subprocess.Popen[str], place: Place) -> None:
        self.process = process
        self.url = place.url
        self.token = place.token

    @property
    def memory_mib(self) -> float:
        return memory_mib(self.process.pid)

    @property
    def most_memory_mib(self) -> float:
        return memory_mib(self.process.pid, "VmHWM")


class BenchWorld:
    """The surroundings of all rows of one run."""

    def __init__(self, sizes: Sizes, folder: Path) -> None:
        self.sizes = sizes
        self.folder = folder
        self._made = 0
        self._states: dict[tuple[int, int, tuple[int, ...]], State] = {}

    def new_folder(self) -> Path:
        self._made += 1
        path = self.folder / f"state-{self._made}"
        path.mkdir()
        return path

    def state(self, *, sessions: int = 0, said: int = 0, messages: tuple[int, ...] = ()) -> State:
        """Make a state folder with so many sessions of `said` messages each, and one with so many messages for each
        number; once for all."""
        wanted = (sessions, said, messages)
        if wanted not in self._states:
            self._states[wanted] = make_state(self.new_folder(), sessions=sessions, said=said, messages=messages)
        return self._states[wanted]

    @asynccontextmanager
    async def gateway(
        self,
        state: Path | None = None,
        *,
        max_concurrent: int = 64,
        visibility: str = "tree",
        model: str = FREE.ref,
        turns: int = 5,
        subagents: Mapping[str, int] | None = None,
        settings: Mapping[str, Any] | None = None,
        files: int | None = None,
        holds: Path | None = None,
    ) -> AsyncIterator[Server]:
        """Start a gateway whose agent `main` has the model that costs nothing, or another, and sees so much.

        `settings` are further ones, and `files` is how many its process may open. `holds` is the file for the longest
        hold of its loop.
        """
        agents = {
            "defaults": {"maxConcurrent": max_concurrent, "subagents": dict(subagents or {})},
            "list": [{"id": "main", "model": model}],
        }
        given = {
            "state": str(state or self.new_folder()),
            "config": {
                "agents": agents,
                "tools": {"sessions": {"visibility": visibility}},
                "session": {"agentToAgent": {"maxPingPongTurns": turns}},
                "gateway": {"port": 0, "limits": {"connections": 5000}},
                **(settings or {}),
            },
            "files": files,
            "holds": None if holds is None else str(holds),
        }
        async with self._server("served", given) as server:
            yield server

    @asynccontextmanager
    async def bare_server(self) -> AsyncIterator[Server]:
        """Start the server that sends back what it gets."""
        async with self._server("echo", {}) as server:
            yield server

    @asynccontextmanager
    async def provider(self) -> AsyncIterator[Server]:
        """Start the stand-in for a provider of models."""
        async with self._server("provider", {}) as server:
            yield server

    @asynccontextmanager
    async def _server(self, module: str, given: dict[str, Any]) -> AsyncIterator[Server]:
        with self.process(*module_command(module, given)) as process:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            if not line:
                raise RuntimeError(f"{module} did not start: {self._said.read_text()[-2000:]}")
            yield Server(process, msgspec.json.decode(line, type=Place))

    @asynccontextmanager
    async def beside(self, module: str, given: object) -> AsyncIterator[None]:
        """Let a process run beside, from its first line on."""
        with self.process(*module_command(module, given)) as process:
            assert process.stdout is not None
            if not await asyncio.to_thread(process.stdout.readline):
                raise RuntimeError(f"{module} did not start: {self._said.read_text()[-2000:]}")
            yield

    @property
    def _said(self) -> Path:
        return self.folder / "stderr.txt"

    @contextmanager
    def process(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a process with nothing of this user's settings; it is stopped when the context ends."""
        with (
            self._said.open("a") as errors,
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            try:
                yield process
            finally:
                stop(process)

    @property
    def env(self) -> dict[str, str]:
        # Where no Ollama answers: the gateway looks for one at its start.
        return {"HOME": str(self.folder), "PATH": os.environ["PATH"], "OLLAMA_HOST": "127.0.0.1:9"}

    async def load(self, server: Server, kind: str, **more: Any) -> Done:
        """Put load on a server from another process."""
        load = msgspec.convert({"kind": kind, "url": server.url, "token": server.token, **more}, Load)
        return await self.work("load", load)

    async def work(self, module: str, given: object) -> Done:
        """Run one of the processes to its end."""
        with self.process(*module_command(module, given)) as process:
            out, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
        if process.returncode:
            raise RuntimeError(f"{module} failed: {self._said.read_text()[-2000:]}")
        return msgspec.json.decode(out, type=Done)


def module_command(module: str, given: object) -> list[str]:
    return [sys.executable, "-m", f"bench.processes.{module}", msgspec.json.encode(given).decode()]


def stop(process: subprocess.Popen[str]) -> None:
    """Ask a process to end, and wait until it has."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def memory_mib(pid: int, field: str = "VmRSS") -> float:
    """Tell how much memory of the machine a process takes; `VmHWM` is the most it ever took, where that is known."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines[field].split()[0]) / 1024
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout) / 1024
