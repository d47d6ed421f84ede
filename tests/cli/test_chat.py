"""`backchannel chat`: one message, a talk at a terminal, and a gateway that goes away in the middle of it."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import pytest

from backchannel.core.commands.commands import COMMANDS

from .conftest import Provider
from .program import Program


def test_one_message_prints_the_reply_only(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    with program.up():
        done = program.run("chat", "hello there")

    assert done.returncode == 0
    assert done.stdout == "You said: hello there\n"
    assert done.stderr == ""


def test_a_message_can_be_piped_in(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    with program.up():
        done = program.run("chat", "--session", "cron:nightly", text="from a pipe\nwith two lines")
        assert [row["key"] for row in program.json("sessions")["sessions"]] == ["agent:main:cron:nightly"]

    assert "from a pipe\nwith two lines" in done.stdout


def test_an_empty_message_is_refused(program: Program) -> None:
    done = program.run("chat", text=" \n")

    assert done.returncode == 1
    assert "There is no message" in done.stderr


def test_a_run_that_fails_is_told_with_its_reason(program: Program) -> None:
    program.write_config('{ agents: { list: [{ id: "main", model: "nobody/any" }] } }')
    with program.up():
        done = program.run("chat", "hello")

    assert done.returncode == 1
    assert done.stdout == ""
    assert "The run ended as error" in done.stderr
    assert "nobody" in done.stderr


def test_a_talk_at_a_terminal_is_streamed_and_shown_again_at_the_next_start(
    program: Program, provider: Provider
) -> None:
    program.write_config(provider.config)
    held = provider.hold("The first half, ", "and the second.")
    with program.up():
        with program.terminal("chat") as talk:
            talk.expect("agent:main:main")
            talk.expect("> ")
            talk.type("tell me\n")
            talk.expect("The first half, ")
            held.release()
            talk.expect("and the second.")
            talk.expect("> ")
            talk.type("\x04")
            assert talk.wait() == 0
        with program.terminal("chat") as talk:
            talk.expect("tell me")
            talk.expect("The first half, and the second.")
            talk.expect("> ")
            talk.type("/quit\n")
            assert talk.wait() == 0


def test_ctrl_c_aborts_the_reply_and_not_the_program(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.hold("It begins, ", "and never ends.")
    provider.then("Still here.")
    with program.up():
        with program.terminal("chat") as talk:
            talk.expect("> ")
            talk.type("talk for ever\n")
            talk.expect("It begins, ")
            talk.type("\x03")
            talk.expect("(aborted)")
            talk.expect("> ")
            talk.type("are you there?\n")
            talk.expect("Still here.")
            talk.expect("> ")
            talk.type("half a line")
            talk.expect("half a line")
            talk.type("\x03")
            talk.expect("> ")
            talk.type("\x03")
            assert talk.wait() == 0
        runs = program.json("runs")["runs"]

    assert [run["status"] for run in runs] == ["ok", "aborted"]


def test_ctrl_c_in_a_one_message_chat_aborts_the_run_and_ends(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.hold("It begins, ", "and never ends.")
    with program.up():
        with program.terminal("chat", "talk for ever") as talk:
            talk.expect("It begins, ")
            talk.type("\x03")
            assert talk.wait() == 130
        assert program.json("runs")["runs"][0]["status"] == "aborted"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_gone_in_the_middle_of_a_reply_comes_back_and_the_reply_is_shown_once(
    program: Program, provider: Provider, number: signal.Signals
) -> None:
    program.write_config(provider.config)
    provider.hold("The first half, ", "which is lost.")
    provider.then("The first half, and the second.")
    with program.up() as first, program.terminal("chat") as talk:
        talk.expect("> ")
        talk.type("tell me\n")
        talk.expect("The first half, ")
        first.stop(number)
        talk.expect("went away")
        with program.up():
            talk.expect("It is back.")
            talk.expect("and the second.")
            talk.expect("> ")
            talk.type("/history\n")
            talk.expect("/history")
            told = talk.expect("> ")
            runs = program.json("runs")["runs"]

    assert told.count("tell me") == 1
    assert told.count("The first half, and the second.") == 1
    assert [run["status"] for run in runs] == ["ok"]


def test_ctrl_c_stops_waiting_for_a_gateway_that_went_away(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.hold("It begins, ", "and is lost.")
    provider.then("It begins again.")
    with program.up() as up, program.terminal("chat") as talk:
        talk.expect("> ")
        talk.type("tell me\n")
        talk.expect("It begins, ")
        up.kill()
        talk.expect("went away")
        talk.type("\x03")
        talk.expect("Not waiting any longer")
        talk.expect("> ")
        talk.type("/quit\n")
        assert talk.wait() == 0
    with program.up():
        run_id = program.json("runs")["runs"][0]["runId"]
        assert program.answer("runs", "wait", run_id) == "It begins again.\n"


def test_the_prompt_has_commands_of_its_own(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    with program.up(), program.terminal("chat") as talk:
        talk.expect("> ")
        talk.type("/help\n")
        talk.expect("/new")
        talk.expect("> ")
        talk.type("hello\n")
        talk.expect("You said: hello")
        talk.expect("> ")
        talk.type("/sessions\n")
        talk.expect("agent:main:main")
        talk.expect("> ")
        talk.type("/new\n")
        talk.expect("new conversation")
        talk.expect("> ")
        talk.type("/history\n")
        assert "hello" not in talk.expect("> ").replace("/history", "")


def test_chat_commands_are_answered_at_once_and_kept_in_no_history(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    held = provider.hold("It begins, ", "and ends.")
    with program.up():
        assert program.answer("chat", "/status").startswith("Status: idle\nModel: ")
        assert program.answer("chat", text=" /Send: maybe \n").startswith("/send does not know 'maybe'")
        with program.terminal("chat", "think") as talk:
            talk.expect("It begins, ")
            assert program.answer("chat", "/status").startswith("Status: running for ")
            assert program.answer("chat", "/stop") == "Stopped 1 run.\n"
            assert talk.wait() == 130
        held.release()
        with program.terminal("chat") as talk:
            talk.expect("> ")
            talk.type("/help\n")
            talk.expect("/quit")
            talk.expect("/subagents list|info <child>|log <child>|stop <child|all>: ")
            talk.expect("> ")
            talk.type("/STATUS\n")
            talk.expect("Status: idle")
            talk.expect("> ")
        kept = program.json("history")["messages"]

    assert [message["role"] for message in kept] == ["user", "assistant"]
    assert "/" not in kept[0]["content"][0]["text"]


def test_what_a_reply_says_cannot_control_the_terminal(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.then("a\x1b]0;title\x07b")
    with program.up(), program.terminal("chat", "hello") as talk:
        assert talk.wait() == 0

    assert "a]0;titleb" in talk.shown
    assert "\x07" not in talk.shown


def test_a_run_that_is_set_aside_says_when_it_is_tried_again_and_the_reply_still_comes(
    program: Program, provider: Provider
) -> None:
    program.write_config(provider.config)
    provider.hold("It begins, ", "never to end.")
    with program.up() as first, program.terminal("chat") as talk:
        talk.expect("> ")
        talk.type("hello\n")
        talk.expect("It begins,")
        first.kill()
        with closing(sqlite3.connect(program.state / "backchannel.db")) as database, database:
            database.execute("UPDATE runs SET crashes = 2")  # as if it had died twice before
        with program.up():
            talk.expect("(set aside after crashes: it is tried again at 2")
            provider.then("Here it is.")
            (run,) = program.json("runs")["runs"]
            assert run["status"] == "queued" and "resumeAt" in run
            program.answer("runs", "retry", run["runId"])
            talk.expect("Here it is.")


def test_the_help_of_the_prompt_and_of_the_session_is_wrapped_between_words(
    program: Program, provider: Provider
) -> None:
    program.write_config(provider.config)
    with program.up(), program.terminal("chat", COLUMNS="80") as talk:
        talk.expect("> ")
        talk.type("/help\n")
        talk.expect("/history [N]")
        helped = talk.expect("\n> ")
    lines = helped.splitlines()
    assert max(map(len, lines)) < 80
    unwrapped = " ".join(" ".join(lines).split())
    for command in COMMANDS:
        assert command.summary in unwrapped
    assert "Ctrl-C aborts the reply, or ends the program when the line is empty." in unwrapped
