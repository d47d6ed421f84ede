"""Posts at an open chat prompt: results of sub-agents, and messages of a woken agent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from backchannel.cli.client import GatewayClient
from backchannel.cli.finding import GatewayAddress
from backchannel.wire.answers import EventsSubscribed, ToolInvoked

from .program import Program, Terminal, Up

POST = """{ agents: { list: [{ id: "main" }] } }"""
WAKE = """{ agents: { list: [{ id: "main" }], defaults: { subagents: { announce: "wake" } } } }"""


@contextmanager
def _talking(program: Program) -> Iterator[Terminal]:
    with program.terminal("chat") as talk:
        talk.expect("> ")
        talk.type("hello\n")
        talk.expect("You can say:")
        talk.expect("\n\n> ")
        yield talk


def _spawn(program: Program, up: Up, task: str) -> None:
    """Start a sub-agent of the main session, and wait until its result was delivered."""
    with GatewayClient.connect(GatewayAddress(up.url.replace("http", "ws"), program.token)) as client:
        client.call("sessions.subscribe", EventsSubscribed)
        client.call("tools.invoke", ToolInvoked, tool="sessions_spawn", args={"task": task}, sessionKey="main")
        while not any(
            event["event"] == "delivery" and event["payload"]["state"] == "sent" for event in client.events()
        ):
            pass


def _posts(talk: Terminal) -> int:
    """How many posts were shown, each with its time."""
    return len(re.findall(r"posted \d{4}-", talk.shown))


def test_a_result_is_shown_while_nobody_types(program: Program) -> None:
    program.write_config(POST)
    with program.up(), _talking(program) as talk:
        talk.type("spawn count to ten\n")
        talk.expect("Started `agent:main:subagent:")
        talk.expect("> ")
        talk.expect("posted ")
        talk.expect("Status: success\nResult: On “count to ten”: 1, 2, 3")
        talk.expect("\n\n> ")
        talk.type("what did I say?\n")
        talk.expect("2. spawn count to ten\n")
        talk.expect("> ")
        talk.type("\x04")
        assert talk.wait() == 0

    assert talk.shown.count("Status: success") == 1


def test_a_line_that_somebody_types_is_left_alone(program: Program) -> None:
    program.write_config(POST)
    with program.up() as up, _talking(program) as talk:
        talk.type("the sky is")
        talk.expect("the sky is")
        _spawn(program, up, "count to ten")
        talk.type(" blue\n")
        assert "posted" not in talk.expect("You said: the sky is blue")
        talk.expect("posted ")
        talk.expect("Status: success")
        talk.expect("\n\n> ")


def test_what_a_woken_agent_says_is_shown_too(program: Program) -> None:
    program.write_config(WAKE)
    with program.up(), _talking(program) as talk:
        talk.type("spawn 2 count to 3\n")
        for _ in range(2):
            talk.expect("Status: success\nResult: On “count to 3”: 1, 2, 3\n")
        talk.expect("posted ")
        talk.expect("My sub-agents have ended:\n- “count to 3”: success. ")
        talk.expect("\n\n> ")


def test_a_result_that_came_while_the_connection_was_lost_is_shown_when_it_is_back(program: Program) -> None:
    program.write_config(POST)
    with program.up() as first, _talking(program) as talk:
        first.kill()
        with program.up() as second:
            _spawn(program, second, "count to ten")
            talk.expect("posted ")
            talk.expect("Status: success")
            talk.expect("\n\n> ")
            talk.type("what did I say?\n")
            talk.expect("1. hello\n")

    assert _posts(talk) == 1


def test_what_was_posted_before_the_talk_is_history(program: Program) -> None:
    program.write_config(POST)
    with program.up() as up:
        program.answer("chat", "hello")
        _spawn(program, up, "count to ten")
        with program.terminal("chat") as talk:
            talk.expect("agent:main:subagent:")
            talk.expect("Status: success")
            talk.expect("> ")
            talk.type("\x03")
            assert talk.wait() == 0

    assert _posts(talk) == 0
