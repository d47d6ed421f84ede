"""The commands that are clients of a running gateway: what they show, and what they say when it goes wrong."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from backchannel.storage.files.folder import load_address
from tests.support.device import Device
from tests.support.stub_provider import Fault

from .conftest import Provider
from .program import PATIENCE_S, Program


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway with three agents, two of which were spoken to."""
    program = Program(tmp_path_factory.mktemp("running"))
    with program.up("--init"):
        program.answer("chat", "hello main")
        program.answer("chat", "--session", "agent:writer:main", "hello writer")
        yield program


def test_sessions_lists_the_newest_first(running: Program) -> None:
    table = running.answer("sessions").splitlines()
    listed = running.json("sessions")

    assert table[0].split()[:3] == ["KEY", "KIND", "STATUS"]
    keys = [row["key"] for row in listed["sessions"]]
    assert {"agent:main:main", "agent:writer:main"} <= set(keys)
    assert [line.split()[0] for line in table[1:]] == keys


def test_sessions_can_be_narrowed(running: Program) -> None:
    assert [row["key"] for row in running.json("sessions", "--search", "writer")["sessions"]] == ["agent:writer:main"]
    assert [row["key"] for row in running.json("sessions", "--agent", "writer")["sessions"]] == ["agent:writer:main"]
    assert running.json("sessions", "--kind", "cron")["sessions"] == []
    assert "There are more" in running.run("sessions", "--limit", "1").stderr
    wrong = running.run("sessions", "--kind", "nonsense")
    assert wrong.returncode == 1
    assert "nonsense" in wrong.stderr


def test_agents_alone_lists_the_agents_the_default_one_first(running: Program) -> None:
    lines = running.answer("agents").splitlines()
    listed = running.json("agents")

    assert lines[0].split() == ["ID", "NAME", "MODEL", "THINKING"]
    assert lines[1].startswith("main (default) ")
    assert listed["defaultId"] == "main"
    assert [line.split()[0] for line in lines[1:]] == [agent["id"] for agent in listed["agents"]]
    assert running.answer("agents", "list") == running.answer("agents")


def test_tables_are_drawn_on_a_terminal(running: Program) -> None:
    with running.terminal("sessions", "--agent", "writer") as shown:
        assert shown.wait() == 0

    assert "key" in shown.shown
    assert "agent:writer:main" in shown.shown


def test_history_shows_who_said_what(running: Program) -> None:
    lines = running.answer("history", "agent:writer:main").splitlines()

    assert lines[0].endswith("] user: hello writer")
    assert "] assistant: " in lines[1]
    assert len(running.json("history", "agent:writer:main", "--limit", "1")["messages"]) == 1


def test_history_says_that_a_conversation_began_anew(program: Program) -> None:
    with program.up():
        program.answer("chat", "one")
        before = program.json("history")["sessionId"]
        program.answer("sessions", "reset", "main")
        program.answer("chat", "two")
        shown = program.run("history")
        told = program.json("history")

    assert "two" in shown.stdout and "one" not in shown.stdout
    assert shown.stderr.startswith("This conversation began anew 20")
    assert f", by a reset. The earlier transcript is {before}." in shown.stderr
    assert (told["follows"]["sessionId"], told["follows"]["reason"]) == (before, "reset")


def test_history_of_a_session_that_is_not_there_says_where_to_look(running: Program) -> None:
    done = running.run("history", "agent:main:cron:never")

    assert done.returncode == 1
    assert "agent:main:cron:never" in done.stderr
    assert done.stderr.strip().endswith("sessions")


def test_history_follows_a_session_over_a_restart(program: Program) -> None:
    with program.up() as first:
        program.answer("chat", "one")
        follower = subprocess.Popen(
            program.command("history", "--follow", "--json"),
            env=program.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert _next_texts(follower, 2)[0] == "one"
            program.answer("chat", "two")
            assert _next_texts(follower, 2)[0] == "two"
            first.kill()
            with program.up():
                program.answer("chat", "three")
                assert _next_texts(follower, 2)[0] == "three"
                follower.send_signal(signal.SIGINT)
                assert follower.wait(PATIENCE_S) == 130
        finally:
            follower.kill()
            follower.communicate()


def _next_texts(follower: subprocess.Popen[str], count: int) -> list[str]:
    assert follower.stdout is not None
    messages = [json.loads(follower.stdout.readline()) for _ in range(count)]
    return [message["content"][0]["text"] for message in messages]


def test_runs_are_listed_shown_and_waited_for(running: Program) -> None:
    listed = running.json("runs", "--session", "agent:writer:main")["runs"]
    run_id = listed[0]["runId"]

    assert run_id in running.answer("runs")
    assert running.json("runs", "list", "--status", "error")["runs"] == []
    assert "status    ok" in running.answer("runs", "show", run_id)
    assert running.json("runs", "show", run_id)["run"]["status"] == "ok"
    assert running.answer("runs", "wait", run_id) == listed[0]["reply"] + "\n"


def test_a_run_that_is_unknown_or_cannot_be_retried_is_an_error_with_a_next_step(running: Program) -> None:
    unknown = running.run("runs", "show", "nope")
    assert unknown.returncode == 1
    assert unknown.stderr.strip().endswith("runs")

    done = running.json("runs", "--limit", "1")["runs"][0]["runId"]
    assert running.run("runs", "retry", done).returncode == 1


def test_a_failed_run_can_be_retried_and_a_wait_that_ends_first_says_so(program: Program, provider: Provider) -> None:
    program.write_config('{ agents: { list: [{ id: "main", model: "stub/any" }] } }')
    with program.up():
        assert program.run("chat", "hello").returncode == 1
    program.write_config(provider.config)
    held = provider.hold("Late, ", "but here.")
    with program.up():
        run_id = program.json("runs")["runs"][0]["runId"]
        assert "runs wait" in program.answer("runs", "retry", run_id)
        waited = program.run("runs", "wait", run_id, "--timeout", "0.1")
        assert waited.returncode == 1
        assert "still" in waited.stderr
        held.release()
        assert program.answer("runs", "wait", run_id) == "Late, but here.\n"


def test_tokens_are_made_listed_used_and_revoked(running: Program) -> None:
    token = running.answer("tokens", "create", "--scope", "read", "--label", "reader").strip()
    running.answer("sessions", BACKCHANNEL_TOKEN=token)
    refused = running.run("chat", "hello", BACKCHANNEL_TOKEN=token)
    assert refused.returncode == 4
    assert "operator.write" in refused.stderr
    assert refused.stderr.rstrip().endswith("tokens create --scope write")

    listed = running.answer("tokens", "list")
    assert "reader" in listed
    assert token not in listed
    (made,) = [entry for entry in running.json("tokens", "list")["tokens"] if entry.get("label") == "reader"]
    running.answer("tokens", "revoke", made["id"])
    refused = running.run("sessions", BACKCHANNEL_TOKEN=token)
    assert refused.returncode == 4
    assert "BACKCHANNEL_TOKEN" in refused.stderr
    assert running.run("tokens", "revoke", made["id"]).returncode == 1


def test_a_page_that_stays_logged_in_is_listed_and_logged_out(running: Program) -> None:
    url, device = load_address(running.state) or "", Device()
    token = device.log_in(url, running.token)["payload"]["auth"]["deviceToken"]
    listed = running.answer("tokens", "list")
    assert f"openclaw-control-ui at {url}" in listed
    assert "device of operator, used in the last hour" in listed
    with closing(sqlite3.connect(running.state / "backchannel.db")) as database, database:
        database.execute("UPDATE device_tokens SET used_at = used_at - 7300000")
    assert "device of operator, used about 2h ago" in running.answer("tokens", "list")
    (made,) = [each for each in running.json("tokens", "list")["tokens"] if "device" in each]
    assert (made["device"]["id"], made["device"]["platform"]) == (device.id, "Linux x86_64")
    running.answer("tokens", "revoke", made["id"][:6])
    assert device.log_in(url, token, by_device=True)["error"]["details"]["code"] == "AUTH_DEVICE_TOKEN_MISMATCH"
    assert device.id not in running.answer("tokens", "list", "--json")


def test_an_agents_token_is_bound_to_its_session(running: Program) -> None:
    made = running.json("tokens", "create", "--session", "agent:writer:main")

    assert made["sessionKey"] == "agent:writer:main"
    assert running.run("sessions", BACKCHANNEL_TOKEN=made["token"]).returncode == 4


def test_a_token_needs_scopes_or_a_session(running: Program) -> None:
    assert running.run("tokens", "create").returncode == 2
    assert running.run("tokens", "create", "--scope", "read", "--session", "main").returncode == 2
    assert "expected read, write or admin" in running.run("tokens", "create", "--scope", "all").stderr


def test_transcripts_are_written_anew(running: Program) -> None:
    (row,) = running.json("sessions", "--agent", "writer")["sessions"]
    file = Path(row["transcriptPath"])
    before = file.read_bytes()
    file.write_text("spoilt")

    assert "2 lines" in running.answer("transcripts", "rebuild", "agent:writer:main")
    assert file.read_bytes() == before

    file.unlink()
    rebuilt = running.json("transcripts", "rebuild", "--all")
    assert {entry["key"] for entry in rebuilt["rebuilt"]} >= {"agent:main:main", "agent:writer:main"}
    assert file.read_bytes() == before
    assert running.run("transcripts", "rebuild").returncode == 2
    assert running.run("transcripts", "rebuild", "main", "--all").returncode == 2
    two = running.json("transcripts", "rebuild", "agent:writer:main", row["sessionId"])
    assert [entry["sessionId"] for entry in two["rebuilt"]] == [row["sessionId"]] * 2


def test_status_tells_what_runs(running: Program) -> None:
    told = running.json("status")

    assert told["health"]["ok"]
    assert told["agents"] == ["main", "researcher", "writer"]
    assert "main (default), researcher, writer" in running.answer("status")


def test_status_lists_what_is_wrong_and_says_so_by_its_exit_code(program: Program) -> None:
    program.write_config('{ agents: { list: [{ id: "main", model: "anthropic/claude-sonnet-5-5" }] } }')
    with program.up():
        shown, told = program.run("status"), program.run("status", "--json")

    assert (shown.returncode, told.returncode) == (5, 5)
    assert re.search(r"health +degraded", shown.stdout) and "1 problem:\n" in shown.stdout
    assert re.search(r"^model_unusable +anthropic/claude-sonnet-5-5 cannot be asked", shown.stdout, re.MULTILINE)
    assert [problem["code"] for problem in json.loads(told.stdout)["problems"]] == ["model_unusable"]


def test_status_tells_that_summaries_fail(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    with program.up():
        for _ in range(4):
            program.answer("send", "main", "we talk about the weather. " * 400)
        provider.then(Fault(400, "no credit is left"))
        assert "no credit is left" in program.run("sessions", "compact", "main").stdout
        shown = program.answer("status")
    assert re.search(r"services +compaction: no summary was made: .*no credit is left.* ago\)", shown)


def test_without_a_gateway_a_command_says_how_to_start_one(program: Program) -> None:
    done = program.run("sessions")
    elsewhere = program.run("--url", "ws://127.0.0.1:1", "sessions")

    assert (done.returncode, elsewhere.returncode) == (3, 3)
    assert f"No gateway runs on the state folder {program.state}. Start one with: " in done.stderr
    assert "No gateway answers at ws://127.0.0.1:1. Is it running there" in elsewhere.stderr
    assert "expected http:// or https://" in program.run("--url", "ftp://x", "sessions").stderr
    assert done.stderr.strip().endswith("up")


def test_a_command_asks_only_the_gateway_of_its_own_state_folder(program: Program, tmp_path: Path) -> None:
    other = Program(tmp_path / "other")
    other.home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:  # another program, at the address of a gateway that died
        listener.setblocking(False)
        port = listener.getsockname()[1]
        other.write_config(f"{{ gateway: {{ port: {port} }} }}")
        (other.state / "address").write_text(f"http://127.0.0.1:{port}\n")
        (other.state / "token").write_text("its own\n")
        done = [other.run("chat", "hi"), other.run("sessions"), other.run("mcp")]
        with pytest.raises(BlockingIOError):
            listener.accept()

    assert [each.returncode for each in done] == [3, 3, 0]  # the last waits for the gateway until its client goes away
    assert all(f"No gateway runs on the state folder {other.state}" in each.stderr for each in done[:2])


def test_a_gateway_that_was_killed_is_not_looked_for_where_it_was(program: Program) -> None:
    with program.up() as up:
        assert program.run("sessions").returncode == 0
        up.kill()
        assert (program.state / "address").exists()
        done = program.run("sessions")

    assert done.returncode == 3
    assert "No gateway runs on the state folder" in done.stderr


def test_a_gateway_elsewhere_needs_only_an_address_and_a_token(running: Program, program: Program) -> None:
    url = (running.state / "address").read_text().strip()
    program.write_config("{ broken")

    assert "agent:main:main" in program.answer("--url", url, "sessions", BACKCHANNEL_TOKEN=running.token)
    assert "agent:main:main" in program.answer("sessions", BACKCHANNEL_TOKEN=running.token, BACKCHANNEL_URL=url)
    wrong = program.run("--url", "http://[nonsense", "sessions", BACKCHANNEL_TOKEN=running.token)
    assert wrong.returncode == 3
    assert "not an address" in wrong.stderr
    assert "Traceback" not in wrong.stderr
