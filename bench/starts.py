"""Rows about being there: how long the program takes to start, and what it costs to have it running."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from bench.measures import Figure, Findings, Goal
from bench.world import PATIENCE_S, BenchWorld, memory_mib, module_command

PROGRAM = str(Path(sys.executable).parent / "backchannel")
POLL_S = 0.003
SETTLE_S = 1.0
"""How long a gateway is left alone before its memory is looked at."""


async def starts(world: BenchWorld) -> Findings:
    """From the start of the process to the first good answer of `/readyz`, and `backchannel --help`."""
    sizes = world.sizes
    many = sizes.sessions[-1]
    yield f"making {many:,} sessions"
    full = world.state(sessions=many).path
    bare: list[float] = []
    empty: list[float] = []
    filled: list[float] = []
    for turn in range(sizes.starts):
        yield f"start {turn + 1} of {sizes.starts}"
        port = free_port()
        bare.append(_start_s(world, module_command("echo", {"port": port}), port, "/"))
        for state, took in ((world.new_folder(), empty), (full, filled)):
            port = free_port()
            took.append(_start_s(world, up_command(state, port), port, "/readyz"))
    yield from_start("start to ready, empty state", empty, bare, 1.0)
    yield from_start(f"start to ready, {many:,} sessions", filled, bare, 1.2)
    yield "--help"
    python = [_run_s(world, [sys.executable, "-c", "pass"]) for _ in range(sizes.starts)]
    help = [_run_s(world, [PROGRAM, "--help"]) for _ in range(sizes.starts)]
    yield Figure(
        name="backchannel --help",
        value=median(help),
        unit="s",
        floor=median(python),
        floor_is="Python that does nothing",
        goal=Goal(at_most=0.3),
        detail={"best": min(help)},
    )


def from_start(name: str, took: Sequence[float], bare: Sequence[float], at_most: float) -> Figure:
    return Figure(
        name=name,
        value=median(took),
        unit="s",
        floor=median(bare),
        floor_is="the bare web server's start",
        goal=Goal(at_most=at_most),
        detail={"best": min(took)},
    )


async def idle_memory(world: BenchWorld) -> Findings:
    """The memory of a gateway that has started and has nothing to do."""
    port = free_port()
    yield "starting"
    async with world.bare_server() as bare:
        floor = bare.memory_mib
    with world.process(*up_command(world.new_folder(), port)) as process:
        wait_ready(process, port, "/readyz")
        await asyncio.sleep(min(SETTLE_S, world.sizes.load_s))
        memory = memory_mib(process.pid)
    yield Figure(
        name="idle memory",
        value=memory,
        unit="MiB",
        floor=floor,
        floor_is="the bare web server's",
        goal=Goal(at_most=120),
    )


def up_command(state: Path, port: int) -> list[str]:
    return [PROGRAM, "--state", str(state), "up", "--port", str(port)]


def _start_s(world: BenchWorld, command: Sequence[str], port: int, path: str) -> float:
    began = time.perf_counter()
    with world.process(*command) as process:
        wait_ready(process, port, path)
        return time.perf_counter() - began


def _run_s(world: BenchWorld, command: Sequence[str]) -> float:
    began = time.perf_counter()
    with world.process(*command) as process:
        process.communicate(timeout=PATIENCE_S)
    return time.perf_counter() - began


def wait_ready(process: subprocess.Popen[str], port: int, path: str) -> None:
    """Wait until a server answers that it is well."""
    until = time.monotonic() + PATIENCE_S
    while not _is_ready(port, path):
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError("the server did not start")
        time.sleep(POLL_S)


def _is_ready(port: int, path: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        return connection.recv(64).startswith(b"HTTP/1.1 200")
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
