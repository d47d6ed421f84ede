"""The open files of a program: its input and outputs, whatever the gateway was started with."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from backchannel.agents.programs import Program as Started
from backchannel.agents.programs import environment, leashed
from tests.cli.program import PATIENCE_S, Program, Up
from tests.support.open_handed import HIGH, VARIABLES

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests" / "support" / "mcp_server.py"
LOOK = "readlink /proc/$$/fd/*; env"
"""The shell's own descriptors, and its variables."""
CLIENT = """#!/bin/sh
[ "$1" = info ] && exit 0
look() { sh -c 'readlink /proc/$$/fd/*; env'; }
if [ "$1" = run ]; then look; else look | cat >"$HOME/after"; fi
"""
"""A podman that starts nothing, and tells what it was started with itself."""
STANDARD = 3
"""How many every program has."""


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Have a gateway that was started with every kind of descriptor open."""
    home = tmp_path_factory.mktemp("careless")
    program = Program(home)
    client = home / "bin" / "podman"
    client.parent.mkdir()
    client.write_text(CLIENT)
    client.chmod(0o755)
    boxes = {
        "plain": {"mode": "off"},
        "box": {"mode": "all"},
        "sealed": {"mode": "all", "workspaceAccess": "none"},
        "contained": {"mode": "all", "backend": "docker"},
    }
    agents = [{"id": id, "model": "scripted/test", "sandbox": sandbox} for id, sandbox in boxes.items()]
    inside = program.state / "agents/box/workspace/mcp_server.py"
    inside.parent.mkdir(parents=True)
    shutil.copy(SERVER, inside)
    servers = {
        "far": {"command": sys.executable, "args": ["-I", "-S", str(SERVER)]},
        "near": {"command": "/usr/bin/python3", "args": ["-I", "-S", "/workspace/mcp_server.py"]},
    }
    program.write_config(
        json.dumps(
            {
                "agents": {"list": agents},
                "tools": {"allow": ["group:exec", "group:mcp:far", "group:mcp:near"]},
                "mcp": {"servers": servers},
            }
        )
    )
    app = program.command("up", "--port", "0", "--app", "tests.support.open_handed:make")
    command = [sys.executable, "-m", "tests.support.open_handed", str(home / "held"), *app]
    path = f"{client.parent}:/usr/local/sbin:/usr/sbin:/usr/bin:/bin"
    running = Up(command, {**program.env, "PATH": path, "PYTHONPATH": str(ROOT)}, home)
    try:
        running.wait_ready()
        held = json.loads((home / "held" / "kinds.json").read_text())
        assert len(held) >= 24 and max(held.values()) >= HIGH
        for kind, number in held.items():  # the gateway has them, marked to be closed in what it starts
            flags, *_ = re.findall(
                r"(?m)^flags:\s*(\d+)", Path(f"/proc/{running.process.pid}/fdinfo/{number}").read_text()
            )
            assert int(flags, 8) & os.O_CLOEXEC, kind
        yield program
    finally:
        running.kill()


def told(careless: Program, agent: str, tool: str, **arguments: object) -> str:
    message = json.dumps({"tool": tool, "arguments": arguments})
    return careless.answer("chat", "--session", f"agent:{agent}:main", message)


def checked(said: str) -> None:
    links = [line for line in said.splitlines() if line.startswith(("/", "pipe:", "socket:", "anon_inode:"))]
    links = [line for line in links if not line.startswith("/proc/")]  # the listing itself
    assert len(links) == STANDARD, said
    assert all(line.startswith(("pipe:", "socket:", "/dev/null")) for line in links), said
    assert not [name for name in VARIABLES if f"{name}=" in said], said


@pytest.mark.usefixtures("real_sandbox")
@pytest.mark.parametrize("agent", ["plain", "box", "sealed", "contained"])
def test_a_command_has_its_input_and_outputs_and_nothing_else(careless: Program, agent: str) -> None:
    checked(told(careless, agent, "exec", command=LOOK))


@pytest.mark.usefixtures("real_sandbox")
@pytest.mark.parametrize("agent", ["plain", "box", "sealed"])
def test_a_command_in_the_background_has_nothing_else(careless: Program, agent: str) -> None:
    started = told(careless, agent, "exec", command=f"{LOOK}; echo done", background=True)
    id = started.partition("the id ")[2].partition(";")[0]
    said, until = "", time.monotonic() + PATIENCE_S
    while "done" not in said and time.monotonic() < until:
        said += told(careless, agent, "process", action="poll", id=id)
    checked(said)


@pytest.mark.usefixtures("real_sandbox")
@pytest.mark.parametrize(("agent", "server"), [("plain", "far"), ("box", "near")])
def test_an_mcp_server_has_nothing_else(careless: Program, agent: str, server: str) -> None:
    checked(told(careless, agent, f"{server}__descriptors"))


@pytest.mark.usefixtures("real_sandbox")
def test_the_program_that_removes_a_container_has_nothing_else(careless: Program) -> None:
    told(careless, "contained", "exec", command="true")
    checked((careless.home / "after").read_text())


@pytest.mark.usefixtures("real_sandbox")
def test_no_folder_that_was_open_is_a_way_out(careless: Program) -> None:
    paths = " ".join(f"/proc/self/fd/{number}/../state/token" for number in range(3, 60))
    said = told(careless, "sealed", "exec", command=f"cat {paths} /proc/self/fd/{HIGH}/shadow /proc/1/fd/*/shadow")
    assert careless.token not in said and "root:" not in said


def test_a_gateway_within_another_program_leaves_that_ones_descriptors_alone_and_passes_none_on(
    tmp_path: Path,
) -> None:
    """Started as uvloop starts programs: without closing anything."""
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)
    program = leashed(Started(("/bin/sh", "-c", LOOK), None, environment()))

    async def run() -> str:
        process = await asyncio.create_subprocess_exec(
            *program.argv, env=program.env, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE, close_fds=False
        )
        return (await process.communicate())[0].decode()

    try:
        checked(asyncio.run(run()))
        assert os.get_inheritable(held)
    finally:
        os.close(held)


@pytest.mark.parametrize("closed", ["0<&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_gateway_that_was_started_without_input_or_outputs_runs_commands_and_stops(
    tmp_path: Path, closed: str
) -> None:
    """Its own files and sockets must not be given the numbers that are free."""
    program = Program(tmp_path)
    agents = [{"id": "plain", "model": "scripted/test"}]
    program.write_config(json.dumps({"agents": {"list": agents}, "tools": {"allow": ["group:exec"]}}))
    app = program.command("up", "--port", "0", "--app", "tests.support.open_handed:make")
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *app]
    running = Up(command, {**program.env, "PYTHONPATH": str(ROOT)}, tmp_path)
    try:
        running.wait_until(lambda: program.run("sessions").returncode == 0)
        checked(told(program, "plain", "exec", command=LOOK))
        assert running.stop() == 0
    finally:
        running.kill()
