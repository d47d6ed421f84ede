"""`backchannel up`: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from backchannel.agents.registry import FunctionContext
from backchannel.cli.client import GatewayClient
from backchannel.cli.finding import GatewayAddress
from backchannel.config import config_from
from backchannel.gateway.app import Gateway

from .conftest import Provider
from .program import PATIENCE_S, Program


def test_it_says_where_it_is_who_answers_with_which_model_and_what_to_try(program: Program) -> None:
    with program.up("--init") as up:
        said = up.said

    assert f"page: {up.url}/ (to log in: " in said
    assert "agents: main (default), researcher, writer" in said
    assert "model: builtin/demo (OLLAMA_HOST is set, but no Ollama with a model answers there)" in said
    assert str(program.config) in said
    assert f"database: {program.state / 'backchannel.db'}" in said and "channels: " not in said
    tries = [line.removeprefix("try: ") for line in said.splitlines() if line.startswith("try: ")]
    assert len(tries) == 3
    assert tries[0].endswith(f"{program.option} chat")


def test_it_names_the_channels_that_it_has(program: Program) -> None:
    bridge = "adapter: 'bridge', url: 'http://127.0.0.1:9', owners: ['me'], secret: 'something-long-for-"
    program.write_config(f"{{ channels: {{ tower: {{ {bridge}tower' }}, desk: {{ {bridge}desk' }} }} }}")
    with program.up() as up:
        assert "channels: desk, tower" in up.said


def test_the_commands_it_offers_work_as_they_are(program: Program) -> None:
    with program.up("--init") as up:
        tries = [line.removeprefix("try: ") for line in up.said.splitlines() if line.startswith("try: ")]
        for command in tries:
            done = subprocess.run(
                command, shell=True, env=program.env, cwd=program.home, input="hi", capture_output=True, text=True
            )
            assert done.returncode == 0, (command, done.stderr)
            assert done.stdout


def test_the_token_is_kept_for_the_owner_only_and_never_shown_where_it_may_be_kept(program: Program) -> None:
    with program.up("--log-level", "debug") as up:
        program.answer("chat", "hello")
        program.run("sessions", BACKCHANNEL_TOKEN="bc_a-wrong-token-of-the-usual-length")
        assert up.stop() == 0
        told = up.said + up.logged

    assert stat.S_IMODE((program.state / "token").stat().st_mode) == 0o600
    assert program.token.startswith("bc_")
    assert program.token not in told
    assert "wrong-token" not in told


def test_on_a_terminal_the_token_is_shown_once_at_the_first_start(program: Program) -> None:
    with program.terminal("up", "--port", "0") as first:
        first.expect("Ctrl-C stops it")
        assert f"/#token={program.token}" in first.shown
        assert first.shown.count(program.token) == 1
        assert "Try next" in first.shown
        first.type("\x03")
        assert first.wait() == 0
    with program.terminal("up", "--port", "0") as second:
        second.expect("Ctrl-C stops it")
        assert program.token not in second.shown and "token=" not in second.shown
        assert f"{program.option} open)" in second.shown


def test_its_log_is_json_lines_when_nobody_watches(program: Program) -> None:
    with program.up() as up:
        assert up.stop() == 0
        lines = [json.loads(line) for line in up.logged.splitlines()]

    assert [line["message"] for line in lines] == ["listening", "stopping", "stopped"]
    assert lines[0]["url"] == up.url


def test_a_second_one_on_the_same_folder_is_refused(program: Program) -> None:
    with program.up() as up:
        refused = program.run("up", "--port", "0")

    assert refused.returncode == 1
    assert f"process {up.process.pid}" in refused.stderr
    assert "--state" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_port_in_use_is_named_and_leaves_no_token_that_nobody_saw(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = program.run("up", "--port", port)

    assert refused.returncode == 1
    assert refused.stderr == (
        f"cannot listen on 127.0.0.1 port {port}: something else does (stop it, or choose another port with --port)\n"
    )
    assert not (program.state / "token").exists()


def test_a_broken_configuration_is_told_with_its_line_and_nothing_starts(program: Program) -> None:
    program.write_config('{\n  gateway: { prot: 1 },\n  agents: { list: [{ id: "main", modle: "x/y" }] },\n}')
    refused = program.run("up")

    assert refused.returncode == 1
    assert "line 2" in refused.stderr
    assert "line 3" in refused.stderr
    assert "port" in refused.stderr
    assert "config check" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (program.state / "backchannel.db").exists()


def test_listening_elsewhere_needs_a_token_of_ones_own(program: Program) -> None:
    refused = program.run("up", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 1
    assert "BACKCHANNEL_TOKEN" in refused.stderr
    assert not program.state.exists()

    with program.up("--host", "0.0.0.0", BACKCHANNEL_TOKEN="a token of my own choice"):
        assert program.run("sessions").returncode == 4, "there is no token to get in with"
        program.answer("sessions", BACKCHANNEL_TOKEN="a token of my own choice")


def test_a_folder_that_cannot_be_written_is_named(program: Program) -> None:
    program.state.write_text("a file, not a folder")
    refused = program.run("up", "--port", "0")

    assert refused.returncode == 1
    assert str(program.state) in refused.stderr
    assert "Traceback" not in refused.stderr


def test_it_says_which_package_brings_the_sandbox_that_is_missing(program: Program, tmp_path: Path) -> None:
    program.write_config('{ agents: { defaults: { sandbox: { mode: "all" } } } }')
    program.env["PATH"] = str(tmp_path)  # a machine without it
    with program.up() as up:
        assert "warning: No sandbox can be made for main: the package bubblewrap is not installed" in up.said
        assert "no tools with outside effects" in up.said
        (problem,) = json.loads(program.run("status", "--json").stdout)["problems"]
        assert problem["code"] == "sandbox_missing" and "apt-get install bubblewrap" in problem["message"]
    (finding,) = program.json("config", "check")["findings"]
    assert finding["path"] == "agents.defaults.sandbox.mode" and "the package bubblewrap" in finding["message"]


def test_clients_are_told_when_it_stops(program: Program) -> None:
    with (
        program.up() as up,
        GatewayClient.connect(GatewayAddress(up.url.replace("http", "ws"), program.token)) as client,
    ):
        up.process.terminate()
        events = []
        while "shutdown" not in events:
            events += [event["event"] for event in client.events(PATIENCE_S)]
        assert up.process.wait(PATIENCE_S) == 0

    assert not (program.state / "address").exists()


def test_it_stops_though_nobody_reads_what_it_says_any_more(program: Program) -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        program.command("up", "--port", "0"), env=program.env, cwd=program.home, stdout=writer, stderr=writer
    ) as up:
        os.close(writer)
        said = b""
        while b"try: " not in said:
            said += os.read(reader, 65536)
        os.close(reader)
        assert program.answer("chat", "hello")
        up.send_signal(signal.SIGTERM)
        assert up.wait(PATIENCE_S) in (0, 1)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    stubborn = _start(tmp_path, _STUBBORN)
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == "working\n"
    code = None
    while code is None:
        stubborn.send_signal(signal.SIGINT)
        try:
            code = stubborn.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    told, _ = stubborn.communicate()

    assert code == 130
    assert "stopping at once" in told


def test_what_was_said_before_it_was_killed_is_there_at_the_next_start(program: Program) -> None:
    with program.up() as up:
        program.answer("chat", "before")
        up.kill()
    with program.up():
        assert "before" in program.answer("history")
        program.answer("chat", "after")
        assert [run["status"] for run in program.json("runs")["runs"]] == ["ok", "ok"]


def test_a_database_that_fails_in_a_commit_ends_the_process_at_once(tmp_path: Path) -> None:
    failing = _start(tmp_path, _FAILING)
    told, _ = failing.communicate(timeout=PATIENCE_S)

    assert failing.returncode == 1, told
    assert "the database failed in a commit" in told


def _start(folder: Path, script: str) -> subprocess.Popen[str]:
    """Start a program that serves a gateway with something odd about it."""
    file = folder / "odd.py"
    file.write_text(_ODD.replace("# what is odd", script), encoding="utf-8")
    command = [sys.executable, "-u", str(file), str(folder / "state")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


_ODD = """
import asyncio, sqlite3, sys
from pathlib import Path
from backchannel.config import config_from
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import serve

class Faults:
    is_armed = False
    def before_commit(self, number):
        if self.is_armed:
            raise sqlite3.OperationalError("disk I/O error")
    def after_commit(self, number):
        pass

faults = Faults()
gateway = Gateway(config_from({"gateway": {"port": 0}}, {}, state=Path(sys.argv[1])), faults=faults)
# what is odd

asyncio.run(serve(gateway, ready))
"""

_FAILING = """
def ready(place, token):
    faults.is_armed = True
    asyncio.ensure_future(gateway.submit("main", "hello"))
"""

_STUBBORN = """
@gateway.agent("main")
async def stubborn(context):
    print("working")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

def ready(place, token):
    asyncio.ensure_future(gateway.submit("main", "hello"))
"""


def test_it_says_which_runs_of_before_go_on(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    for _ in range(2):
        provider.hold("this takes", "long")
    with program.up() as up:
        for words in ("one", "two", "three"):
            send = ("tools", "call", "sessions_send", "sessionKey=main", f"message={words}", "timeoutSeconds=0")
            program.call(*send)
        up.kill()
    with program.up() as up:
        assert "runs: 3 go on: 1 interrupted, 2 queued\n" in up.said
        (line,) = [line for line in map(json.loads, up.logged.splitlines()) if line["message"] == "going on"]
        assert (line["interrupted"], line["queued"], line["set_aside"]) == (1, 2, 0)
        up.kill()
    provider.hold("this takes", "long")
    with program.terminal("up", "--port", "0") as banner:
        banner.expect(f"  database  {program.state / 'backchannel.db'}\n")
        banner.expect("  runs      3 go on: 1 interrupted, 2 queued\n")
        banner.expect("Ctrl-C stops it")


async def _leave_behind(state: Path, *agents: str) -> None:
    """Let a program with these function agents stop while each of them works."""
    gateway = Gateway(config_from({"agents": {"list": [{"id": agent} for agent in agents]}}, {}, state=state))
    working = {agent: asyncio.Event() for agent in agents}

    async def work(run: FunctionContext) -> str:
        working[run.agent_id].set()
        await asyncio.Event().wait()
        return ""

    for agent in agents:
        gateway.add_agent(agent, work)
    async with gateway:
        for agent, reached in working.items():
            await gateway.submit(f"agent:{agent}:main", "hello")
            await reached.wait()


def test_it_says_which_runs_of_before_wait_for_a_program_and_which_are_set_aside(program: Program) -> None:
    asyncio.run(_leave_behind(program.state, "main", "other"))
    with closing(sqlite3.connect(program.state / "backchannel.db")) as database:
        database.execute("DELETE FROM function_agents WHERE id = 'other'")
        database.execute("UPDATE runs SET resume_at = 4102444800000 WHERE session_key = 'agent:other:main'")
        database.commit()
    program.write_config('{ agents: { list: [{ id: "main" }, { id: "other" }] } }')
    with program.up() as up:
        (runs,) = [line for line in up.said.splitlines() if line.startswith("runs: ")]
        assert runs.startswith("runs: 1 waits for the function agent main; 1 set aside after crashes until 2")
        assert "agents: main (default, function, waits for its program), other" in up.said
        assert " agents forget main`" in program.run("status").stdout


def test_a_model_that_cannot_be_asked_is_told_at_the_start_with_the_variable_that_is_missing(program: Program) -> None:
    program.write_config('{ agents: { list: [{ id: "main", model: "anthropic/claude-sonnet-5-5" }] } }')
    with program.up() as up:
        (line,) = [line for line in up.said.splitlines() if line.startswith("warning: ")]
        logged = [json.loads(line) for line in up.logged.splitlines()]
    assert "the key for anthropic is missing: set ANTHROPIC_API_KEY" in line
    assert [line["level"] for line in logged if line["message"] == "configuration"] == ["warning"]


def test_the_demo_model_does_not_answer_in_silence_where_a_key_was_lost(program: Program) -> None:
    with program.up("--log-level", "warning", ANTHROPIC_API_KEY="a key that is here once") as up:
        assert "model: anthropic/" in up.said and "warning: " not in up.said
    for _ in range(2):
        with program.up() as up:
            assert "warning: The demo model answers for main, and at an earlier start it was anthropic/" in up.said
            assert program.run("status").returncode == 5
    program.write_config('{ agents: { defaults: { model: "builtin/demo" } } }')
    with program.up() as up:
        assert "warning: " not in up.said and program.run("status").returncode == 0


def test_on_a_narrow_terminal_each_command_to_try_has_a_line_of_its_own(program: Program) -> None:
    with program.terminal("up", "--port", "0", COLUMNS="80") as up:
        up.expect("Ctrl-C stops it")
        banner, _, tries = up.shown.partition("Try next, in another terminal:\n")
        lines = tries.splitlines()

    whole = (f"{program.home.name}/state", program.token)  # what is to be copied is not broken
    facts = [line.rstrip() for line in banner.splitlines() if not any(part in line for part in whole)]
    assert max(map(len, facts)) < 80 and any(line.startswith(" " * 10) for line in facts), "wrapped between words"
    assert lines[0] == "  # talk to main"
    assert lines[1].endswith(f"{program.option} chat")
    assert lines[2].startswith("  # ask")
