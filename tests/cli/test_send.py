"""`backchannel send`: a message to a session, and all that comes of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from .conftest import Provider
from .program import Program
from .sending import check_refused, under_way

CONFIG = """{
  agents: { list: [{ id: "main" }, { id: "researcher" }, { id: "writer" }] },
  tools: { sessions: { visibility: "all" }, agentToAgent: { enabled: true } },
}"""
PATIENCE_S = 45


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway whose agents are played by the demo model; people have talked to two of them."""
    program = Program(tmp_path_factory.mktemp("running"))
    program.write_config(CONFIG)
    with program.up():
        program.answer("chat", "hello")
        program.answer("chat", "--session", "agent:researcher:main", "hello")
        yield program


def _lines(printed: str) -> list[str]:
    """The first line of each step."""
    steps = ("reply ", "turn ", "announce ", "receipt ")
    return [line for line in printed.splitlines() if line.startswith(steps)]


def test_the_reply_the_turns_the_announce_and_the_receipt_are_shown_in_order(running: Program) -> None:
    lines = _lines(running.answer("send", "agent:researcher:main", "how are you?", "--as", "main"))

    assert lines[0] == "reply agent:researcher:main: Hello, agent:main:main. You asked: “how are you?”"
    assert lines[1].startswith("turn 1 agent:main:main: Thank you")
    assert lines[2].startswith("turn 2 agent:researcher:main: You are welcome")
    assert lines[3] == "turn 3 agent:main:main: (nothing more to say)"
    assert lines[4] == "announce agent:researcher:main: I was asked: “how are you?”, and have answered."
    assert lines[5].startswith("receipt ") and lines[5].endswith(": sent")
    assert len(lines) == 6


def test_the_history_shows_what_was_said_and_nothing_that_only_models_are_told(running: Program) -> None:
    running.answer("send", "agent:researcher:main", "how is the sea?", "--as", "main")
    for session in ("agent:main:main", "agent:researcher:main"):
        shown = running.answer("history", session)
        for told in ("Agent-to-agent", "REPLY_SKIP", "ANNOUNCE_SKIP", "reply-back"):
            assert told not in shown
    main, asked = running.answer("history", "main"), running.answer("history", "agent:researcher:main")
    assert "agent:researcher:main: Hello, agent:main:main. You asked: “how is the sea?”" in main
    assert "agent:main:main: how is the sea?\n" in asked
    assert "[Agent-to-agent exchange, reply-back turn 1 of 5]" in running.answer("history", "main", "--all")


def test_two_exchanges_of_the_same_sessions_are_not_mixed_up(running: Program) -> None:
    first = running.answer("send", "agent:researcher:main", "quietly: one?", "--as", "main")
    second = running.answer("send", "agent:researcher:main", "quietly: two?", "--as", "main")

    assert "one?" not in second
    for printed in (first, second):
        assert [line.split()[0] for line in _lines(printed)] == ["reply", "turn", "turn", "turn", "announce", "receipt"]
        assert ": skipped: the target chose to stay silent" in _lines(printed)[-1]


def test_the_operator_gets_the_reply_and_no_turns(running: Program) -> None:
    lines = _lines(running.answer("send", "agent:writer:main", "how are you?"))

    assert lines[0] == "reply agent:writer:main: Hello. You asked: “how are you?”"
    assert lines[1].endswith(": no_channel: the target has no channel to announce to")
    assert len(lines) == 2


def test_a_short_key_is_read_as_the_sending_session_would(running: Program) -> None:
    running.answer("chat", "--session", "agent:researcher:cron:nightly", "hello")
    lines = _lines(running.answer("send", "cron:nightly", "how are you?", "--as", "agent:researcher:main"))

    assert lines[0].startswith("reply cron:nightly: Hello, agent:researcher:main.")
    assert lines[2].startswith("turn 2 agent:researcher:cron:nightly: ")


def test_a_terminal_shows_who_speaks_and_in_which_step(running: Program) -> None:
    words = ("send", "agent:researcher:main", "how are you?", "--as", "main")
    with running.terminal(*words) as shown:
        shown.expect("agent:researcher:main reply\nHello, agent:main:main.")
        shown.expect("agent:main:main turn 1\nThank you")
        shown.expect("agent:researcher:main announce\n")
        shown.expect(": sent")
        assert shown.wait() == 0


def test_with_json_only_the_result_is_printed(running: Program) -> None:
    result = running.json("send", "agent:writer:main", "how are you?")

    assert result["status"] == "ok"
    assert result["delivery"]["mode"] == "announce"
    assert result["reply"].startswith("Hello.")


def test_without_a_wait_it_says_where_the_reply_will_be(running: Program) -> None:
    told, receipt = running.answer("send", "agent:writer:main", "how are you?", "--wait", "0").splitlines()
    run_id = told.rpartition(" ")[2].rstrip(".")

    assert told.startswith("agent:writer:main has the message")
    assert receipt.startswith("receipt ")
    assert running.answer("runs", "wait", run_id).startswith("Hello.")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["cron:nowhere", "hello"], 1, "there is no session 'agent:main:cron:nowhere'"),
        (["main", "hello", "--as", "main"], 1, "circle"),
        (["main", " "], 1, "message: it is empty"),
        (["main", "hello", "--as", "agent:nobody:main"], 4, "nobody"),
        (["main", "hello", "--wait", "4000"], 2, "--wait"),
        (["main"], 2, "MESSAGE"),
    ],
)
def test_what_is_not_sent_says_why(running: Program, words: list[str], code: int, told: str) -> None:
    check_refused(running, "send", *words, code=code, told=told)


def test_a_refusal_as_json_is_a_result(running: Program) -> None:
    done = running.run("send", "cron:nowhere", "hello", "--json")

    assert done.returncode == 1
    assert '"status": "error"' in done.stdout
    assert done.stderr == ""


def test_an_agents_token_sees_the_reply_and_the_receipt(running: Program) -> None:
    token = running.json("tokens", "create", "--session", "agent:main:main")["token"]
    lines = _lines(running.answer("send", "agent:researcher:main", "quietly: well?", BACKCHANNEL_TOKEN=token))

    assert lines[0].startswith("reply agent:researcher:main: Hello, agent:main:main.")
    assert lines[-1].endswith("the target chose to stay silent")


def _two_agents(provider: Provider) -> str:
    return provider.config.replace('{ id: "main", model', '{ id: "writer", model: "stub/any" }, { id: "main", model')


def test_a_gateway_that_is_killed_in_between_gets_the_message_once(program: Program, provider: Provider) -> None:
    program.write_config(_two_agents(provider))
    provider.hold("The first half, ", "which is lost.")
    provider.then("The whole answer.")
    words = ("agent:writer:main", "tell me", "--wait", "120")
    with program.up() as first, under_way(program, first, "send", *words) as sending:
        first.kill()
        with program.up():
            printed, told = sending.communicate(timeout=PATIENCE_S)
            runs = program.json("runs")["runs"]

    assert sending.returncode == 0, told
    assert _lines(printed)[0] == "reply agent:writer:main: The whole answer."
    assert told.splitlines() == [
        "The gateway went away. Waiting for it to come back (Ctrl-C stops waiting) ...",
        "It is back.",
    ]
    assert [run["status"] for run in runs] == ["ok"]


def test_a_wait_that_ends_first_says_that_the_run_goes_on(program: Program, provider: Provider) -> None:
    program.write_config(_two_agents(provider))
    held = provider.hold("It begins, ", "and it ends.")
    with program.up():
        done = program.run("send", "agent:writer:main", "tell me", "--wait", "0.2")
        run_id = program.json("runs")["runs"][0]["runId"]
        held.release()
        assert program.answer("runs", "wait", run_id) == "It begins, and it ends.\n"

    assert done.returncode == 1
    assert "do not send the message again" in done.stderr
    assert done.stdout.startswith("receipt ") and done.stdout.endswith(": pending\n")


def test_a_reply_that_is_a_control_word_is_not_printed(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.then("NO_REPLY", "ANNOUNCE_SKIP")
    with program.up():
        printed = program.answer("send", "main", "anybody there?")

    assert "NO_REPLY" not in printed and "ANNOUNCE_SKIP" not in printed and "reply " in printed


def test_ctrl_c_stops_watching_and_nothing_else(program: Program, provider: Provider) -> None:
    program.write_config(_two_agents(provider))
    held = provider.hold("It begins, ", "and it ends.")
    with program.up() as up, under_way(program, up, "send", "agent:writer:main", "tell me") as sending:
        sending.send_signal(signal.SIGINT)
        printed, told = sending.communicate(timeout=PATIENCE_S)
        run_id = program.json("runs")["runs"][0]["runId"]
        held.release()
        assert program.answer("runs", "wait", run_id) == "It begins, and it ends.\n"

    assert (sending.returncode, printed) == (130, "")
    assert told.startswith("Not watching any longer.")


def test_without_a_gateway_it_says_how_to_start_one(program: Program) -> None:
    program.write_config("{ gateway: { port: 1 } }")
    done = program.run("send", "main", "hello")

    assert done.returncode == 3
    assert "Start one with" in done.stderr
