"""The holder of a state folder, as a command names it. It is nobody, an application without a port, or a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from backchannel.cli.finding import STARTING_S

from .program import PATIENCE_S, Program

APPLICATION = """
import asyncio, sys
from backchannel import Gateway
from backchannel.gateway.server import listening

gateway = Gateway.open({"gateway": {"port": 0}}, state=sys.argv[1])

@gateway.agent("main")
async def clerk(run):
    return f"clerk: {run.text}"

async def wait():
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)

async def main():
    async with gateway:
        await gateway.ask("main", "one teapot")
        if sys.argv[2:] == ["later"]:
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        if len(sys.argv) == 2:
            await wait()
        else:
            async with listening(gateway, sys.argv[2]):
                await wait()

asyncio.run(main())
"""


@contextmanager
def _application(program: Program, *words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", APPLICATION, str(program.state), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate(timeout=PATIENCE_S)


def _looking_early(program: Program, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start a command that finds the folder taken a moment ago, though it may take seconds itself to look at it."""
    os.utime(program.state / "lock", (time.time() + STARTING_S * 0.9,) * 2)
    return program.piped(*words)


@pytest.mark.parametrize("ago_s", [3600, -3600], ids=["for long", "before the clock was set back"])
def test_an_application_without_a_door_is_named_and_up_is_not_advised(program: Program, ago_s: float) -> None:
    with _application(program) as process:
        os.utime(program.state / "lock", (time.time() - ago_s,) * 2)
        told = program.run("runs")

    assert told.returncode == 3
    assert told.stderr.startswith("A program (process ")
    assert f"A program (process {process.pid}) uses the state folder {program.state} and does not listen" in told.stderr
    assert "up" not in told.stderr.split()


def test_a_command_waits_for_a_gateway_that_is_starting(program: Program) -> None:
    program.env["BACKCHANNEL_TOKEN"] = "later"
    with _application(program, "later") as process, _looking_early(program, "sessions", "--json") as command:
        assert command.stderr is not None and process.stdin is not None
        assert command.stderr.readline() == "The gateway is starting. Waiting for it to listen ...\n"
        process.stdin.write("\n")
        process.stdin.flush()
        shown, told = command.communicate(timeout=PATIENCE_S)

    assert (command.returncode, told) == (0, "")
    assert [row["key"] for row in json.loads(shown)["sessions"]] == ["agent:main:main"]


def test_a_gateway_that_takes_too_long_to_start_is_named_as_one_that_does_not_listen(program: Program) -> None:
    with _application(program), _looking_early(program, "runs") as command:
        assert command.stderr is not None
        assert command.stderr.readline().startswith("The gateway is starting.")
        os.utime(program.state / "lock", (0, 0))
        _, told = command.communicate(timeout=PATIENCE_S)

    assert command.returncode == 3
    assert "does not listen" in told and "still starting, try again in a moment" in told


def test_an_application_that_serves_is_found_by_its_folder(program: Program) -> None:
    with _application(program, "a-token-of-its-own"):
        shown = program.run("chat", "two cups", BACKCHANNEL_TOKEN="a-token-of-its-own")
        refused = program.run("runs")

    assert shown.stdout == "clerk: two cups\n"
    assert refused.returncode == 4
    assert f"The state folder {program.state} is served at http://127.0.0.1:" in refused.stderr
    assert "set BACKCHANNEL_TOKEN" in refused.stderr


def test_on_the_folder_of_a_program_that_ended_it_is_said_how_to_start_it_and_what_to_do_without_it(
    program: Program,
) -> None:
    with _application(program):
        pass
    told = program.run("runs")

    assert told.returncode == 3
    assert "These agents are functions of a program: main. Start that program, or serve it with" in told.stderr
    named = [words.split(f" {program.option} ")[-1] for words in told.stderr.split("`")[1::2]]
    assert named == ["up --app MODULE:NAME", "up", "agents forget main"]


def test_a_message_for_a_program_that_is_not_running_says_so_and_not_that_the_session_is_busy(program: Program) -> None:
    with _application(program):
        pass
    with program.up(), program.terminal("chat", "hello") as chat:
        chat.expect("the program whose function answers for agent:main:main is not running")
        assert "something else first" not in chat.shown
        [run] = program.json("runs", "--status", "queued")["runs"]
        assert run["waitingFor"] == "function"


def test_an_ordinary_folder_says_how_to_start_a_gateway_also_after_one_ran(program: Program) -> None:
    with program.up():
        pass
    told = program.run("runs")

    assert told.stderr.strip().endswith(f"{program.option} up")


@pytest.mark.parametrize("damage", ["", "not a database at all, and long enough to be looked at"])
def test_a_database_that_cannot_be_read_does_not_hide_that_nobody_is_there(program: Program, damage: str) -> None:
    program.state.mkdir()
    (program.state / "backchannel.db").write_text(damage)

    assert "No gateway runs on the state folder" in program.run("runs").stderr


ELSEWHERE = """{
  mcp: { servers: { time: { command: "true", env: { CA: "${ONLY_UP_HAS_IT}" } } } },
  models: { providers: { own: { api: "openai", baseUrl: "${ONLY_UP_HAS_IT}" } } },
}"""


def test_a_variable_that_only_the_gateway_has_is_not_asked_of_the_commands_that_reach_it(program: Program) -> None:
    program.write_config(ELSEWHERE)
    with program.up(ONLY_UP_HAS_IT="http://127.0.0.1:9"):
        for words in (("sessions",), ("approvals",), ("open", "--print"), ("chat", "hello")):
            assert program.run(*words).returncode == 0, words
        assert "is not set" not in program.run("status").stderr
        refused = program.run("config", "check")

    assert refused.returncode == 1 and "ONLY_UP_HAS_IT is not set" in refused.stdout
    assert "ONLY_UP_HAS_IT is not set" in program.run("up").stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("gateway: { auth: { token: '${NOWHERE_SET}' } }", "NOWHERE_SET is not set"),
        ("gateway: { port: 'many' }", "gateway.port"),
        ("sesion: {}", "did you mean `session`?"),
    ],
)
def test_a_command_still_says_what_else_is_wrong_with_the_configuration(
    program: Program, wrong: str, said: str
) -> None:
    program.write_config(f"{ELSEWHERE.strip().removesuffix('}')}  {wrong},\n}}")
    told = program.run("sessions").stderr

    assert said in told and "ONLY_UP_HAS_IT" not in told
