"""`--watch`: tables that follow what happens, over restarts of the gateway."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from backchannel.cli.client import GatewayClient
from backchannel.cli.commands.sessions import SessionsSnapshot, session_line
from backchannel.cli.finding import GatewayAddress
from backchannel.cli.live import Lines
from backchannel.openclaw.rows import SessionRow
from backchannel.wire.answers import SessionDeleted, SessionPatched
from tests.tools.shelf import Shelf

from .conftest import Provider
from .program import PATIENCE_S, Program


def _next(watcher: subprocess.Popen[str]) -> str:
    assert watcher.stdout is not None
    return watcher.stdout.readline().rstrip("\n")


def test_sessions_are_watched_on_a_terminal_over_a_restart(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    held = provider.hold("The first half, ", "and the second.")
    with program.up() as first, program.terminal("sessions", "--watch") as watched:
        watched.expect("Ctrl-C ends")
        watched.expect("There are no sessions.")
        with program.terminal("chat", "tell me") as talk:
            watched.expect("agent:main:main")
            watched.expect("running")
            held.release()
            assert talk.wait() == 0
        watched.expect("idle")
        first.kill()
        watched.expect("The gateway went away.")
        with program.up():
            watched.expect("Ctrl-C ends")
            program.answer("chat", "--session", "cron:nightly", "hello")
            watched.expect("agent:main:cron:nightly")
            watched.type("\x03")
            assert watched.wait() == 130

    after = watched.shown.rpartition("Ctrl-C ends")[2]
    assert "agent:main:cron:nightly" in after, "what was seen last stays on the screen"
    assert "Traceback" not in watched.shown


def test_a_piped_watch_prints_a_line_for_each_session_that_changes(program: Program) -> None:
    shelf = Shelf(program.state)
    shelf.session("agent:main:main")
    with program.up() as first, program.piped("sessions", "--watch") as watcher:
        assert _next(watcher).split()[2:] == ["agent:main:main", "idle"]
        with GatewayClient.connect(GatewayAddress(first.url.replace("http", "ws"), program.token)) as client:
            client.call("sessions.patch", SessionPatched, key="cron:nightly", label="by night")
            assert _next(watcher).split(maxsplit=2)[2] == 'agent:main:cron:nightly  idle  "by night"'
            client.call("sessions.delete", SessionDeleted, key="cron:nightly")
            assert _next(watcher).split()[2:] == ["agent:main:cron:nightly", "deleted"]
        first.kill()
        with program.up() as second:
            with GatewayClient.connect(GatewayAddress(second.url.replace("http", "ws"), program.token)) as client:
                client.call("sessions.patch", SessionPatched, key="cron:daily", label="by day")
            assert "agent:main:cron:daily" in _next(watcher)
            watcher.send_signal(signal.SIGINT)
            _, told = watcher.communicate(timeout=PATIENCE_S)

    assert watcher.returncode == 130
    assert told.splitlines()[0].startswith("The gateway went away.")
    assert "Traceback" not in told


def test_a_tree_is_watched_with_what_each_session_has_used(program: Program) -> None:
    shelf = Shelf(program.state)
    shelf.session("agent:main:main", tokens_in=7)
    shelf.session("agent:main:subagent:a", spawned_by="agent:main:main")
    with program.up(), program.piped("tree", "--watch", "--json") as watcher:
        rows = {row["key"]: row for row in (json.loads(_next(watcher)), json.loads(_next(watcher)))}
        assert rows["agent:main:main"]["usage"] == {"input": 7, "output": 0}
        assert rows["agent:main:subagent:a"]["parentKey"] == "agent:main:main"
        program.answer("chat", "hello")
        row = json.loads(_next(watcher))
        while row["status"] != "idle":
            row = json.loads(_next(watcher))
        assert row["usage"]["input"] > 7


def test_a_watch_ends_when_nobody_reads_it_any_more(program: Program) -> None:
    Shelf(program.state).session("agent:main:main")
    with program.up(), program.piped("sessions", "--watch") as watcher:
        assert _next(watcher)
        assert watcher.stdout is not None
        watcher.stdout.close()
        assert watcher.wait(PATIENCE_S) == 1
        assert watcher.stderr is not None
        assert watcher.stderr.read() == ""


@pytest.mark.parametrize(("command", "seen"), [("sessions", 3), ("tree", 2)])  # a tree also has a line for the agent
def test_what_does_not_fit_into_the_window_is_counted(program: Program, command: str, seen: int) -> None:
    with program.up():
        for name in "abcdef":
            program.answer("chat", "--session", f"cron:{name}", "hello")
        with program.terminal(command, "--watch", LINES="7") as watched:
            watched.expect("Ctrl-C ends")
            shown = watched.expect(f"… {6 - seen} more")
            watched.type("\x03")
            assert watched.wait() == 130

    assert shown.count("cron:") == seen
    assert "cron:a" in watched.shown.rpartition("more")[2], "the whole of it stays on the first screen"


@pytest.mark.parametrize("words", [("sessions",), ("tree",)])
def test_a_watch_without_a_gateway_or_of_nonsense_is_an_error_at_once(program: Program, words: tuple[str, ...]) -> None:
    program.write_config("{ gateway: { port: 1 } }")
    with program.terminal(*words, "--watch") as watched:
        assert watched.wait() == 3
    assert watched.shown.startswith("No gateway runs on the state folder")


def test_a_refused_question_ends_a_watch(program: Program) -> None:
    with program.up(), program.terminal("sessions", "--watch", "--kind", "nonsense") as watched:
        assert watched.wait() == 1
    assert "nonsense" in watched.shown
    assert "Traceback" not in watched.shown


def _row(key: str) -> SessionRow:
    return SessionRow(
        key=key,
        kind="direct",
        classification="other",
        created_at=0,
        has_active_run=False,
        active_run_ids=[],
        channel="unknown",
        updated_at=0,
        session_id="1",
        agent_id="main",
        system_sent=False,
        aborted_last_run=False,
        status="done",
    )


def test_a_session_that_merely_leaves_the_view_gets_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    def now(*keys: str) -> SessionsSnapshot:
        return SessionsSnapshot(0, [_row(key) for key in keys])

    lines = Lines(session_line, as_json=True)
    for snapshot in (now("a", "b"), now("a"), now("a")):
        lines.show(snapshot, set())
    lines.show(now(), {"a", "never seen"})

    said = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["key"], row["status"]) for row in said] == [("a", "done"), ("b", "done"), ("a", "deleted")]
