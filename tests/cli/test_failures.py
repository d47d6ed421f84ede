"""Runs that gave no answer are told where their messages stand."""

from __future__ import annotations

from tests.support.stub_provider import Fault

from .conftest import Provider
from .program import Program

FAILING = '{ agents: { list: [{ id: "main", model: "nobody/any" }] } }'
WORKING = '{ agents: { list: [{ id: "main", model: "builtin/demo" }] } }'


def test_history_and_an_opening_chat_show_the_runs_that_failed_between_their_messages(program: Program) -> None:
    program.write_config(FAILING)
    with program.up():
        program.run("chat", "the first question")
    program.write_config(WORKING)
    with program.up():
        program.answer("chat", "hello")
        (failed,) = program.json("history")["failedRuns"]
        assert failed["status"] == "error" and "nobody" in failed["error"]
        question, told, hello, *_ = program.answer("history").splitlines()
        assert question.endswith("user: the first question") and hello.endswith("user: hello")
        assert told.startswith("The run ended as error: ") and told.endswith(f"runs retry {failed['runId']}")
        with program.terminal("chat") as talk:
            talk.expect("the first question")
            assert "hello" not in talk.expect("The run ended as error: ")
            talk.expect(f"runs retry {failed['runId']}")
            talk.expect("> ")
        program.answer("runs", "retry", failed["runId"])
        program.answer("runs", "wait", failed["runId"])
        assert program.json("history")["failedRuns"] == []


def test_history_that_follows_tells_of_a_run_that_fails_while_it_looks_on(program: Program) -> None:
    program.write_config(FAILING)
    with program.up():
        program.run("chat", "the first question")
        with program.piped("history", "--follow") as follow:
            assert follow.stdout is not None
            assert follow.stdout.readline().endswith("user: the first question\n")
            assert follow.stdout.readline().startswith("The run ended as error: ")
            program.run("chat", "the second")
            assert follow.stdout.readline().endswith("user: the second\n")
            assert follow.stdout.readline().startswith("The run ended as error: ")


def test_chat_watch_and_runs_say_that_a_model_is_asked_again(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    with program.up(), program.piped("watch") as lines, program.terminal("watch") as board:
        board.expect("runs: none at work")
        assert lines.stdout is not None and "gateway" in lines.stdout.readline()
        provider.then(Fault(503, "overloaded"))
        held = provider.hold("", "Here I am.")
        with program.terminal("chat", "hello") as talk:
            talk.expect("(asked again, 2 of 5: overloaded (HTTP 503 from stub))")
            board.expect("asked again, 2 of 5: overloaded")
            assert "asked again, 2 of 5: overloaded" in program.answer("runs")
            while "asked again, 2 of 5: overloaded" not in lines.stdout.readline():
                pass
            held.release()
            assert talk.wait() == 0
        assert "Here I am." in talk.shown and "asked again" not in program.answer("runs")
