"""`backchannel approvals`, and what `chat` does when the agent asks for a call."""

from __future__ import annotations

import subprocess

import pytest

from .program import PATIENCE_S, Program

ASKING = '{ tools: { approval: [{ tool: "sessions_list", ask: "always" }] } }'
ASKS = "list sessions"


@pytest.fixture
def asking(program: Program) -> Program:
    """The program with an agent that has to ask before it lists sessions."""
    program.write_config(ASKING)
    return program


def _pending(program: Program, count: int = 1) -> list[str]:
    """Wait until so many calls wait, and name them."""
    while len(waiting := program.json("approvals")["approvals"]) < count:
        pass
    return [approval["id"] for approval in waiting]


def test_a_call_that_waits_is_listed_told_by_the_status_and_goes_ahead_with_a_word(asking: Program) -> None:
    with asking.up():
        assert asking.answer("approvals") == "Nothing waits for your word.\n"
        with subprocess.Popen(
            asking.command("chat", ASKS), env=asking.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as chat:
            (waiting,) = _pending(asking)
            heading, row = asking.answer("approvals").splitlines()
            assert "TOOL" in heading and waiting in row and "sessions_list" in row
            assert "1 waiting (backchannel approvals)" in asking.answer("status")
            said = asking.answer("approvals", "approve", waiting[:4])
            assert said == "The call of sessions_list in agent:main:main is approved.\n"
            out, err = chat.communicate(timeout=PATIENCE_S)
        assert "I see one session" in out
        assert f"backchannel approvals approve {waiting}" in err
        (answered,) = asking.json("approvals", "--all")["approvals"]
        assert answered["state"] == "approved" and answered["answeredBy"].startswith("operator")
        shown = asking.answer("runs", "show", answered["runId"])
        waited_s = (answered["answeredAt"] - answered["createdAt"]) / 1000
        assert f", {waited_s:.1f}s of it waiting for an approval\n" in shown


def test_a_call_is_denied_once(asking: Program) -> None:
    with asking.up():
        asking.json("sessions")
        with subprocess.Popen(asking.command("chat", ASKS), env=asking.env, stdout=subprocess.PIPE, text=True) as chat:
            (waiting,) = _pending(asking)
            assert asking.json("approvals", "deny", waiting)["state"] == "denied"
            out, _ = chat.communicate(timeout=PATIENCE_S)
        assert "denied" in out
        again = asking.run("approvals", "approve", waiting)
        assert (again.returncode, "is denied already" in again.stderr) == (1, True)


def test_at_a_terminal_the_person_is_asked_in_the_chat_and_may_allow_it_for_good(asking: Program) -> None:
    with asking.up(), asking.terminal("chat") as talk:
        talk.expect("> ")
        talk.type(f"{ASKS}\n")
        talk.expect("asks to call sessions_list")
        talk.expect("n = no, then Enter: ")
        for words in ("what is this?", "abort"):
            talk.type(f"{words}\n")
            talk.expect("Write y, a or n")
            talk.expect("n = no, then Enter: ")
        talk.type("a\n")
        talk.expect("I see one session")
        talk.expect("> ")
        talk.type("list my sessions\n")
        assert "n = no" not in talk.expect("I see one session")


def test_a_question_is_asked_again_when_the_gateway_is_back(asking: Program) -> None:
    with asking.up() as first, asking.terminal("chat", ASKS) as talk:
        talk.expect("n = no, then Enter: ")
        first.kill()
        with asking.up():
            talk.type("y\n")
            talk.expect("n = no, then Enter: ")
            talk.type("y\n")
            assert talk.wait() == 0
        assert "I see one session" in talk.shown


@pytest.mark.parametrize("early", ["y\n", "a", "yes\na\n"], ids=["a line", "a line without its end", "two lines"])
def test_what_was_typed_before_a_question_was_shown_does_not_answer_it(asking: Program, early: str) -> None:
    with asking.up(), asking.terminal("chat") as talk:
        talk.expect("> ")
        talk.type(f"{ASKS}\n{early}")
        talk.expect("asks to call sessions_list")
        talk.expect("What you typed before does not answer this: it stands in your next line, and is not sent yet")
        talk.expect("n = no, then Enter: ")
        assert len(_pending(asking)) == 1
        talk.type("n\n")
        talk.expect("denied")
        talk.expect_line(f"> {' '.join(early.split())}")
        (answered,) = asking.json("approvals", "--all")["approvals"]
        assert answered["state"] == "denied" and len(asking.json("runs")["runs"]) == 1


def test_with_one_message_what_was_typed_too_early_is_dropped_with_a_word(asking: Program) -> None:
    with asking.up() as up:
        talk_to = asking.terminal("chat", ASKS)
        with talk_to as talk:
            talk.type("y\n")
            talk.expect("What you typed before does not answer this: it is dropped")
            talk.expect("n = no, then Enter: ")
            talk.type("y\n")
            assert talk.wait() == 0
            assert "I see one session" in talk.shown
        assert up.process.poll() is None


@pytest.mark.parametrize("pasted", ["some text\ny\nmore\n", "y\nsome text\n"])
def test_what_is_pasted_at_a_question_does_not_answer_it(asking: Program, pasted: str) -> None:
    with asking.up(), asking.terminal("chat") as talk:
        talk.expect("> ")
        talk.type(f"{ASKS}\n")
        talk.expect("n = no, then Enter: ")
        talk.type(pasted)
        talk.expect("Several lines at once do not answer this: it stands in your next line, and is not sent yet")
        talk.expect("n = no, then Enter: ")
        assert len(_pending(asking)) == 1
        talk.type("n\n")
        talk.expect("denied")
        talk.expect_line(f"> {' '.join(pasted.split())}")


def test_a_question_that_is_left_by_ctrl_d_waits_and_says_where_it_is_answered(asking: Program) -> None:
    with asking.up(), asking.terminal("chat") as talk:
        talk.expect("> ")
        talk.type(f"{ASKS}\n")
        talk.expect("n = no, then Enter: ")
        talk.type("\x04")
        (waiting,) = _pending(asking)
        talk.expect(f"It waits: backchannel approvals approve {waiting}, or deny. Ctrl-C stops the run")
        asking.answer("approvals", "approve", waiting)
        talk.expect("I see one session")
        talk.expect("> ")


@pytest.mark.parametrize("how", ["approve", "deny", "abort"])
def test_a_question_that_is_settled_elsewhere_leaves_the_screen(asking: Program, how: str) -> None:
    with asking.up(), asking.terminal("chat") as talk:
        talk.expect("> ")
        talk.type(f"{ASKS}\n")
        talk.expect("n = no, then Enter: ")
        talk.type("n")  # begun, and not ended
        (waiting,) = _pending(asking)
        if how == "abort":
            asking.answer("runs", "abort", asking.json("runs")["runs"][0]["runId"])
            talk.expect("The question is over: its time ended, or its run was stopped.")
        else:
            asking.answer("approvals", how, waiting)
            state = {"approve": "approved", "deny": "denied"}[how]
            talk.expect(f"Answered elsewhere: {state} by operator.")
            talk.expect("I see one session" if how == "approve" else "denied")
        talk.expect_line(">")
        assert not [line for line in talk.screen if "Let it?" in line]
        talk.type("help\n")
        talk.expect("> ")
