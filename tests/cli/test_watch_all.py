"""`backchannel watch`: sessions, runs and deliveries in one picture, over restarts, in every window."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from backchannel.cli.watch_screen import share
from tests.support.stub_wires import Answer, Call
from tests.tools.shelf import Shelf

from .conftest import Provider
from .program import PATIENCE_S, Program, Terminal
from .screen import read_pictures

HOSTILE = "\x1b[2J\x1b]0;mine\x07 שלום \u202e\u200f back\twards\n\x9b31m " + "long " * 100


def _end(watched: Terminal) -> str:
    watched.type("\x03")
    assert watched.wait() == 130
    assert "Traceback" not in watched.shown
    return watched.written.rpartition("\x1b[?1049l")[2]


def _whole(pictures: list[list[str]], lines: int) -> list[list[str]]:
    """Leave out what was being drawn when Ctrl-C was typed; none has more lines than the window."""
    assert max(map(len, pictures[:-1])) <= lines
    return [picture for picture in pictures if len(picture) == lines and "^C" not in "".join(picture)]


def _leave_dead_letters(program: Program) -> None:
    """Put deliveries there that failed, are uncertain and wait, as an earlier life could have left them."""
    now = time.time_ns() // 1_000_000
    rows = [(f"{n}{n:031x}", state, now) for n, state in enumerate(("failed", "uncertain", "pending"), 1)]
    with closing(sqlite3.connect(program.state / "backchannel.db")) as database, database:
        database.executemany(
            "INSERT INTO deliveries "
            "(id, session_key, state, channel, account_id, target, error, text, created_at, updated_at, due_at) "
            "VALUES (?1, 'agent:main:main', ?2, 'desk', 'default', 'C', 'the chat is gone', '', ?3, ?3, ?3 + 3600000)",
            rows,
        )


def test_what_sessions_and_runs_do_is_seen_as_it_happens_and_over_a_restart(
    program: Program, provider: Provider
) -> None:
    program.write_config(provider.config)
    held = provider.hold("The first half, ", "and the second.")
    with program.up() as first, program.terminal("watch") as watched:
        watched.expect("gateway ok")
        watched.expect("sessions: none yet")
        with program.terminal("chat", "tell me") as talk:
            watched.expect("runs 1 running, 0 queued")
            watched.expect("agent:main:main")
            watched.expect("writes")
            held.release()
            assert talk.wait() == 0
        watched.expect("runs 0 running, 0 queued")
        first.kill()
        before = watched.expect("The gateway went away.")
        assert before.rpartition("gateway ")[2].startswith("away "), "what it said last is not said of it any more"
        with program.up():
            watched.expect("Ctrl-C ends")
            program.answer("chat", "--session", "cron:nightly", "hello")
            watched.expect("agent:main:cron:nightly")
            left = _end(watched)

    assert "agent:main:cron:nightly" in left and "gateway" in left, "what was seen last stays on the first screen"
    assert "\x1b[2J" not in watched.written, "a picture replaces the last one without a blank in between"


def test_a_run_that_waits_for_another_session_says_for_whom_also_if_its_start_was_not_seen(
    program: Program, provider: Provider
) -> None:
    program.write_config(provider.config.replace("{", '{ tools: { sessions: { visibility: "all" } },', 1))
    Shelf(program.state).session("agent:main:cron:slow")
    ask = Call("sessions_send", '{"sessionKey": "cron:slow", "message": "well?", "timeoutSeconds": 60}')
    provider.then(Answer(calls=(ask,)))
    held = provider.hold("Let me ", "see.")
    with program.up(), program.terminal("chat", "ask the slow one") as talk, program.terminal("watch") as early:
        early.expect("runs 2 running")
        early.expect("waits for cron:slow")
        with program.terminal("watch") as late:
            late.expect("waits for cron:slow")
            _end(late)
        _end(early)
        held.release()
        assert talk.wait() == 0


def test_a_run_that_waits_for_a_person_says_for_what_and_what_it_has_cost_so_far(
    program: Program, provider: Provider
) -> None:
    priced = '" , models: [{ id: "any", cost: { input: 1000000, output: 1000000 } }] } } } }'
    asking = '{ tools: { approval: [{ tool: "sessions_list", ask: "always" }] },'
    program.write_config(asking + provider.config.removeprefix("{").replace('" } } } }', priced))
    provider.then(Answer(calls=(Call("sessions_list", "{}"),)))
    with program.up(), program.terminal("chat", "who is there?"), program.terminal("watch") as watched:
        watched.expect("$15.0000  waits for approval of sessions_list: /approve ")
        _end(watched)


def test_every_window_has_a_whole_picture_whatever_others_are_called(program: Program) -> None:
    shelf = Shelf(program.state)
    for number in range(8):
        shelf.session(f"agent:main:telegram:group:{number}", display_name=HOSTILE, at=time.time_ns() // 1_000_000)
    shelf.session("agent:main:main", label=HOSTILE)
    _leave_dead_letters(program)
    with program.up():
        token = program.json("tokens", "create", "--scope", "read")["token"]  # all that it needs
        seen = {size: _picture(program, token, *size) for size in ((80, 24), (80, 12), (40, 6), (20, 3), (200, 50))}

    for size in ((80, 24), (200, 50)):
        assert "gateway degraded" in seen[size] and "1 waiting, 1 failed, 1 uncertain" in seen[size]
        assert "1 delivery did not arrive; 1 more: " in seen[size], "the first problem, and how to see the rest"
        assert "the chat is gone" in seen[size]
    assert "… 7 more" in seen[80, 12] and "… 2 more" in seen[80, 12], "what does not fit is counted"


def _picture(program: Program, token: str, columns: int, lines: int) -> str:
    """Give the last picture in a window, of which all are whole and none is led astray by a name."""
    with program.terminal("watch", BACKCHANNEL_TOKEN=token, COLUMNS=str(columns), LINES=str(lines)) as watched:
        watched.expect("Ctrl-C")
        watched.expect("Ctrl-C")
        _end(watched)
    drawn = _whole(read_pictures(watched.written), lines)
    assert all(max(map(len, picture)) <= columns for picture in drawn)
    for forged in ("\x1b[2J", "\x1b]0;", "\x9b", "\u202e", "\u200f", "\x07"):
        assert forged not in watched.written
    return "\n".join(drawn[-1])


def test_a_window_whose_size_changes_is_drawn_anew_at_once_also_while_the_gateway_is_away(program: Program) -> None:
    Shelf(program.state).session("agent:main:main")
    with program.up() as first, program.terminal("watch", COLUMNS="", LINES="") as watched:
        watched.expect("Ctrl-C ends")
        watched.resize(10, 60)
        watched.expect("Ctrl-C ends")
        first.kill()
        watched.expect("The gateway went away.")
        watched.resize(12, 30)
        watched.expect("The gateway went")
        watched.expect("The gateway went")
        _end(watched)
    assert {max(map(len, picture)) for picture in read_pictures(watched.written)} >= {200, 60, 30}


def test_a_run_that_failed_and_one_that_is_set_aside_are_told_with_the_reason(
    program: Program, provider: Provider
) -> None:
    program.write_config(provider.config)
    with program.up():
        program.answer("chat", "hello")
        program.answer("chat", "--session", "cron:a", "hello")
    soon = time.time_ns() // 1_000_000 + 300_000
    with closing(sqlite3.connect(program.state / "backchannel.db")) as database, database:
        database.execute(
            "UPDATE runs SET state = 'queued', resume_at = ?, ended_at = NULL WHERE session_key LIKE '%cron:a'", (soon,)
        )
        database.execute("UPDATE sessions SET set_aside = 1 WHERE key LIKE '%cron:a'")
        database.execute("UPDATE runs SET state = 'error', error = 'it refuses' WHERE session_key LIKE '%:main'")
    with program.up(), program.terminal("watch") as watched:
        watched.expect("1 set aside, 1 failed")
        left = _end(watched)
    assert "tried again in " in left
    assert "error" in left and "it refuses" in left


def _lines(watcher: subprocess.Popen[str], last: str) -> list[str]:
    """Read lines up to one that has a text in it."""
    assert watcher.stdout is not None
    lines = [watcher.stdout.readline()]
    while last not in lines[-1]:
        assert lines[-1], f"{last!r} did not come, but {lines!r}"
        lines.append(watcher.stdout.readline())
    return lines


def test_piped_each_change_is_a_line_however_quickly_it_went_by(program: Program) -> None:
    Shelf(program.state).session("agent:main:main", label="home")
    with program.up() as first, program.piped("watch") as watcher:
        told = _lines(watcher, "session ")
        assert told[-1].split()[2:] == ["session", "agent:main:main", "idle", '"home"']
        assert any(" gateway   ok" in line for line in told)
        reply = program.json("chat", "--session", "cron:quick", "hello")
        (ended,) = (line for line in _lines(watcher, "  ok  ") if "  ok  " in line)
        assert ended.split()[2:5] == ["run", reply["runId"], "agent:main:cron:quick"]
        first.kill()
        with program.up():
            program.answer("chat", "--session", "cron:later", "hello")
            assert _lines(watcher, "agent:main:cron:later")
            watcher.send_signal(signal.SIGINT)
            _, said = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 130
    assert said.startswith("The gateway went away.") and "Traceback" not in said


def test_as_json_each_change_is_an_object_with_its_type(program: Program) -> None:
    Shelf(program.state).session("agent:main:main")
    _leave_dead_letters(program)
    with program.up(), program.piped("watch", "--json") as watcher:
        first = [json.loads(line) for line in _lines(watcher, '"pending"')]
        states = {row["delivery"]["state"] for row in first if row["type"] == "delivery"}
        assert states == {"failed", "uncertain", "pending"}
        (status,) = (row for row in first if row["type"] == "status")
        assert status["status"] == "degraded" and status["problems"][0]["code"] == "deliveries_failed"
        program.answer("deliveries", "drop", "--failed")
        (dropped,) = (json.loads(line) for line in _lines(watcher, '"dropped"') if '"dropped"' in line)
        assert dropped["type"] == "delivery" and dropped["delivery"]["state"] == "dropped"


@given(st.integers(-5, 80), st.lists(st.integers(1, 60), min_size=3, max_size=3))
def test_lines_are_shared_so_that_none_is_wasted_and_none_is_invented(room: int, wanted: list[int]) -> None:
    shares = share(room, wanted)
    assert sum(shares) <= max(0, room)
    assert all(has <= wants and (has >= min(2, wants) or not has) for has, wants in zip(shares, wanted, strict=True))
    if all(shares):
        assert sum(shares) == min(room, sum(wanted))
