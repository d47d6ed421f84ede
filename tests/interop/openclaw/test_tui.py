"""OpenClaw's terminal UI in a pseudo-terminal. It takes long to start, so all of a file look at one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stub_provider import Answer, Call
from tests.web.gateways import GatewayProcess

from .conftest import OpenClaw, let_ask
from .rows import shows
from .terminal import Tui, opened, tui

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

KEY = "agent:main:desk"


@pytest.fixture(scope="module")
def terminal(openclaw: OpenClaw, gateway: GatewayProcess) -> Iterator[Tui]:
    gateway.call("chat.send", sessionKey=KEY, message="from before", idempotencyKey="before")
    gateway.rest()
    with tui(openclaw, KEY) as at_rest:
        yield at_rest


def run_ids(gateway: GatewayProcess, *states: str) -> list[str]:
    return [run["runId"] for run in gateway.call("runs.list", sessionKey=KEY, states=list(states))["runs"]]


@shows("tui", "the history of a session")
def test_what_was_said_before_is_shown(terminal: Tui) -> None:
    terminal.sees("from before", "You said: from before")
    assert terminal.count("failed") == 0, terminal.lines


@shows("tui", "a streamed reply")
def test_a_reply_is_shown_as_it_is_written(terminal: Tui, gateway: GatewayProcess) -> None:
    held = gateway.hold("begun, ", "and ended")
    terminal.submit("write slowly")
    terminal.sees("begun,")
    assert terminal.count("and ended") == 0
    held.release()
    terminal.sees("begun, and ended")
    terminal.rests()


@shows("tui", "Esc and `/abort`")
@pytest.mark.parametrize("keys", ["\x1b", "/abort"])
def test_a_run_is_aborted(terminal: Tui, gateway: GatewayProcess, keys: str) -> None:
    before = len(run_ids(gateway, "aborted"))
    gateway.hold(f"never to end {keys!r} ", "ended")
    terminal.submit("wait for ever")
    terminal.sees(f"never to end {keys!r}")
    terminal.submit(keys) if keys.startswith("/") else terminal.type(keys)
    terminal.rests()
    gateway.rest()
    assert len(run_ids(gateway, "aborted")) == before + 1


def exchange(gateway: GatewayProcess, key: str) -> None:
    """Let another agent speak to a session; they do not answer each other further, and nothing is announced."""
    gateway.answer("a word back", "REPLY_SKIP", "ANNOUNCE_SKIP")
    args = {"sessionKey": key, "message": "a word among agents", "timeoutSeconds": 10}
    gateway.call("tools.invoke", tool="sessions_send", args=args, sessionKey="agent:writer:main")
    gateway.rest()


@shows("tui", "`openclaw resume` of a session, by its key or its label")
@pytest.mark.parametrize("called", ["agent:main:left", "left here"])
def test_a_session_is_resumed(openclaw: OpenClaw, gateway: GatewayProcess, called: str) -> None:
    gateway.call("chat.send", sessionKey="agent:main:left", message="before I left", idempotencyKey="left")
    gateway.rest()
    gateway.call("sessions.patch", key="agent:main:left", label="left here")
    with opened(openclaw, "resume", called) as terminal:
        terminal.sees("You said: before I left")
        terminal.rests()
        assert terminal.count("failed") == 0, terminal.lines


@shows("tui", "what agents say to each other meanwhile")
@shows("tui", "`/new`")
def test_a_new_session_is_begun_right_after_agents_have_spoken_to_each_other(
    openclaw: OpenClaw, gateway: GatewayProcess
) -> None:
    key = "agent:main:spoken-to"
    gateway.call("chat.send", sessionKey=key, message="from before")
    gateway.rest()
    with tui(openclaw, key) as terminal:
        exchange(gateway, key)
        terminal.sees("a word among agents", "a word back")
        terminal.rests()
        terminal.submit("/new")  # is refused while a run seems to be at work
        terminal.until(lambda: terminal.count("a word among agents") == 0, "a new session")
        terminal.rests()


@shows("tui", "what agents say to each other meanwhile")
def test_it_is_at_rest_after_agents_have_spoken_to_each_other(terminal: Tui, gateway: GatewayProcess) -> None:
    exchange(gateway, KEY)
    terminal.sees("a word among agents")
    terminal.rests()
    terminal.submit("still there?")
    terminal.sees("You said: still there?")
    terminal.submit("/verbose on")  # reads the history again
    terminal.sees("verbose on |")
    terminal.rests()
    assert terminal.count("a word among agents") == 1, terminal.lines
    assert not terminal.count("Agent-to-agent") and not terminal.count("_SKIP"), terminal.lines


@shows("tui", "reloading the history: no duplicates")
def test_nothing_is_shown_twice_when_the_history_is_read_again(terminal: Tui) -> None:
    terminal.submit("said once")
    terminal.sees("You said: said once")
    terminal.rests()
    terminal.submit("/verbose on")
    terminal.sees("verbose on |")
    terminal.rests()
    assert terminal.count("You said: said once") == 1, terminal.lines
    assert terminal.count("said once") == 2, terminal.lines


@shows("tui", "a tool call, and the text before and after it")
def test_a_call_of_a_tool_stays_on_the_screen(terminal: Tui, gateway: GatewayProcess) -> None:
    terminal.submit("/verbose on")
    terminal.sees("verbose on |")
    gateway.answer(Answer(text="Let me look.", calls=(Call("sessions_list", {"limit": 77}),)), "There they are.")
    terminal.submit("which are there?")
    shown = ("Let me look.", "There they are.", "77")  # the arguments of the call
    terminal.sees(*shown)
    terminal.rests()
    assert [terminal.count(text) for text in shown] == [1, 1, 1]


@shows("tui", "`/sessions`, `/agents`, `/models`")
@pytest.mark.parametrize(("command", "shown"), [("/sessions", "desk"), ("/agents", "researcher"), ("/models", "test")])
def test_a_list_is_opened(terminal: Tui, command: str, shown: str) -> None:
    before = terminal.count(shown)
    terminal.submit(command)
    terminal.until(lambda: terminal.count(shown) > before, shown)
    opened = terminal.count(shown)
    terminal.type("\x1b")  # alone: with a key right after it, it would be another key
    # Not as often as before: that may have been read while the line below was drawn anew.
    terminal.until(lambda: terminal.count(shown) < opened, "the list closed")


@shows("tui", "`/model`, `/think`, `/verbose`")
@pytest.mark.parametrize(
    ("command", "answer"),
    [("/model stub/test", "model set to stub/test"), ("/think low", "thinking set to low")],
)
def test_a_setting_of_the_session_is_set(terminal: Tui, command: str, answer: str) -> None:
    terminal.submit(command)
    terminal.sees(answer)


@shows("tui", "`/reasoning`, `/usage`, `/trace`, `/elevated`, `/fast`")
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("/reasoning on", "reasoning set to on"),
        ("/usage tokens", "usage footer: tokens"),
        ("/trace on", "trace set to on"),
        ("/elevated off", "elevated set to off"),
        ("/fast on", "fast mode set to on"),
    ],
)
def test_a_setting_that_changes_nothing_is_taken(terminal: Tui, command: str, answer: str) -> None:
    terminal.submit(command)
    terminal.sees(answer)


@shows("tui", "`/model`, `/think`, `/verbose`")
def test_the_fullest_level_of_telling_is_taken_as_the_one_that_there_is(terminal: Tui) -> None:
    terminal.submit("/verbose off")
    terminal.until(lambda: terminal.count("verbose on |") == 0, "verbose off")
    terminal.submit("/verbose full")
    terminal.sees("verbose on |")


@shows("tui", "a note injected into the session")
def test_a_note_is_shown(terminal: Tui, gateway: GatewayProcess) -> None:
    gateway.call("chat.inject", sessionKey=KEY, message="a note from elsewhere", label="note")
    terminal.sees("a note from elsewhere")
    assert terminal.count("a note from elsewhere") == 1


@shows("tui", "two clients on one session, one opened during a reply")
def test_another_that_is_opened_in_the_middle_of_a_reply_sees_it_and_stops_it(
    terminal: Tui, openclaw: OpenClaw, gateway: GatewayProcess
) -> None:
    gateway.hold("half a reply ", "ended")
    terminal.submit("speak to two")
    terminal.sees("half a reply")
    with opened(openclaw, "tui", "--session", KEY) as other:
        other.sees("speak to two", "half a reply", "streaming")
        other.type("\x1b")
        for each in (terminal, other):
            each.sees("run aborted")
            each.rests()
            assert [each.count(text) for text in ("speak to two", "half a reply")] == [1, 1], each.lines


@shows("tui", "`/status`, `/commands`")
@pytest.mark.parametrize(
    ("command", "answer"), [("/status", "Model: stub/test"), ("/commands", "/commands: the same as")]
)
def test_a_command_of_the_gateway_is_answered(terminal: Tui, command: str, answer: str) -> None:
    terminal.submit(command)
    terminal.sees(answer)
    terminal.rests()
    assert terminal.count(f"You said: {command}") == 0, terminal.lines


@shows("tui", "`/gateway-status`")
def test_the_status_of_the_gateway_is_shown(terminal: Tui) -> None:
    terminal.submit("/gateway-status")
    terminal.sees("Default model: ")
    assert terminal.count("Default model: unknown") == 0


@shows("tui", "`kill -9` of the gateway in the middle of a reply")
def test_a_reply_comes_once_after_the_gateway_was_killed(terminal: Tui, gateway: GatewayProcess) -> None:
    gateway.hold("half of ", "it")
    terminal.submit("survive this")
    terminal.sees("half of")
    gateway.kill()
    terminal.sees("disconnected")
    gateway.answer("the whole of it")
    gateway.start()
    terminal.sees("the whole of it")
    terminal.rests()
    assert terminal.count("survive this") == 1, terminal.lines
    assert terminal.count("the whole of it") == 1, terminal.lines


@shows("tui", "a tool call that waits for permission")
def test_a_call_that_waits_is_shown_and_allowed(terminal: Tui, gateway: GatewayProcess) -> None:
    let_ask(gateway, KEY)
    terminal.sees("May main call sessions_history?", "Allow once")
    terminal.type("\r")
    terminal.sees("so be it")
    terminal.rests()


@shows("tui", "`/new`")
def test_a_new_session_is_begun(terminal: Tui) -> None:
    terminal.submit("/new")
    terminal.until(lambda: terminal.count("said once") == 0, "a new session")
    terminal.rests()
    terminal.submit("the first in it")
    terminal.sees("You said: the first in it")


@shows("tui", "a new session")
def test_a_session_that_is_new_is_opened_without_a_complaint(terminal: Tui) -> None:
    terminal.submit("/session agent:main:unheard-of")
    terminal.sees("session unheard-of")
    terminal.rests()
    assert terminal.count("failed") == 0, terminal.lines


@shows("tui", "the report of a sub-agent")
@pytest.mark.parametrize("meanwhile", ["at rest", "at work"])
def test_a_report_is_shown_once(terminal: Tui, gateway: GatewayProcess, meanwhile: str) -> None:
    key = f"agent:main:told-{meanwhile.replace(' ', '-')}"
    report, reply = f"found while {meanwhile}", f"said while {meanwhile}"
    terminal.submit(f"/session {key}")
    terminal.sees(f"session {key}")
    terminal.rests()
    held = gateway.hold("begun, ", reply)
    terminal.submit(f"go on, {meanwhile}")
    terminal.sees("begun,")
    if meanwhile == "at rest":
        held.release()
        terminal.sees(reply)
        terminal.rests()
    gateway.answer(report, report)
    gateway.call("tools.invoke", tool="sessions_spawn", args={"task": "look"}, sessionKey=key)
    while not [each for each in gateway.call("deliveries.list", state="sent")["deliveries"] if report in each["text"]]:
        pass
    held.release()
    terminal.sees(f"Result: {report}", reply)
    terminal.rests()
    terminal.submit("/verbose on")
    terminal.sees("verbose on |")
    terminal.rests()
    assert [terminal.count(text) for text in (report, reply)] == [1, 1], terminal.lines
