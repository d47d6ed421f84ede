"""OpenClaw's ACP bridge, which editors start, over its standard input and output."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from tests.support.stub_provider import Answer, Call
from tests.web.gateways import GatewayProcess

from .conftest import ASKED, OpenClaw
from .lines import JsonRpc, json_rpc
from .rows import shows

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KEY = "agent:main:editor"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()


@pytest.fixture(scope="module")
def bridge(openclaw: OpenClaw) -> Iterator[JsonRpc]:
    with json_rpc(openclaw, "acp", "--session", KEY, "--no-prefix-cwd") as started:
        started.ask("initialize", protocolVersion=1, clientCapabilities={})
        yield started


@pytest.fixture(scope="module")
def session(bridge: JsonRpc, openclaw: OpenClaw) -> str:
    made = bridge.ask("session/new", cwd=str(openclaw.home), mcpServers=[])
    return str(made["sessionId"])


def prompt(bridge: JsonRpc, session: str, text: str) -> int:
    return bridge.begin("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])


@shows("acp", "a prompt, and its streamed reply")
def test_a_reply_is_told_as_it_is_written(bridge: JsonRpc, session: str, gateway: GatewayProcess) -> None:
    held = gateway.hold("begun, ", "and ended")
    asked = prompt(bridge, session, "write slowly")
    bridge.hears("begun,")
    assert "and ended" not in str(bridge.told)
    held.release()
    assert bridge.end(asked)["stopReason"] == "end_turn"
    assert "and ended" in str(bridge.told)
    assert "You said" not in str(bridge.told)
    bridge.hears("usage_update")


@shows("acp", "a tool call, and the text before and after it")
def test_nothing_that_is_said_around_a_call_of_a_tool_is_lost(
    bridge: JsonRpc, session: str, gateway: GatewayProcess
) -> None:
    gateway.answer(Answer(text="Let me look.", calls=(Call("sessions_list", {}),)), "Here it is.")
    before = len(bridge.told)
    assert bridge.end(prompt(bridge, session, "what is there?"))["stopReason"] == "end_turn"
    updates = [each["params"]["update"] for each in bridge.told[before:]]
    said = [each["content"]["text"] for each in updates if each["sessionUpdate"] == "agent_message_chunk"]
    assert "".join(said) == "Let me look.\n\nHere it is."
    assert [each["status"] for each in updates if "toolCallId" in each] == ["in_progress", "completed"]


@shows("acp", "an image in a prompt")
def test_an_image_goes_with_its_prompt(bridge: JsonRpc, session: str, gateway: GatewayProcess) -> None:
    image = {"type": "image", "mimeType": "image/png", "data": PNG}
    parts = [{"type": "text", "text": "see this"}, image]
    assert bridge.ask("session/prompt", sessionId=session, prompt=parts)["stopReason"] == "end_turn"
    said = gateway.call("chat.history", sessionKey=KEY)["messages"][-2]
    assert said["content"][-1] == image


@shows("acp", "a tool call that waits for permission")
def test_a_call_that_waits_is_not_told_of_before_it_is_answered(
    bridge: JsonRpc, session: str, gateway: GatewayProcess
) -> None:
    gateway.answer(Answer(calls=(Call(ASKED, {"sessionKey": "main", "limit": 3}),)), "so be it")
    before = len(bridge.told)
    asked = prompt(bridge, session, "look it up")
    while not (waiting := gateway.call("approvals.list", state="pending")["approvals"]):
        pass
    bridge.ask("session/list")  # what was told before its answer is read
    assert ASKED not in str(bridge.told[before:])
    gateway.call("approvals.answer", id=waiting[0]["id"], decision="approve")
    assert bridge.end(asked)["stopReason"] == "end_turn"
    assert ASKED in str(bridge.told[before:]) and "so be it" in str(bridge.told[before:])


@shows("acp", "cancelling")
def test_a_prompt_is_cancelled(bridge: JsonRpc, session: str, gateway: GatewayProcess) -> None:
    gateway.hold("never to end ", "ended")
    asked = prompt(bridge, session, "wait for ever")
    bridge.hears("never to end")
    bridge.tell("session/cancel", sessionId=session)
    assert bridge.end(asked)["stopReason"] == "cancelled"
    gateway.rest()


@shows("acp", "listing and loading sessions")
def test_sessions_are_listed_and_loaded(bridge: JsonRpc, session: str, openclaw: OpenClaw) -> None:
    assert bridge.end(prompt(bridge, session, "remember this"))["stopReason"] == "end_turn"
    listed = bridge.ask("session/list")["sessions"]
    assert listed
    for loaded in (session, "agent:main:another"):  # with `--session` all are that one
        before = len(bridge.told)
        bridge.ask("session/load", sessionId=loaded, cwd=str(openclaw.home), mcpServers=[])
        updates = [each["params"]["update"] for each in bridge.told[before:]]
        texts = [update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk"]
        assert texts.count("You said: remember this") == 1


@shows("acp", "what agents said to each other")
def test_a_loaded_session_has_the_words_of_another_agent_without_the_prompts(
    bridge: JsonRpc, openclaw: OpenClaw, gateway: GatewayProcess
) -> None:
    key = "agent:main:spoken-to"  # the bridge keeps what it has prompted itself, and asks the gateway for others
    gateway.call("chat.send", sessionKey=key, message="begin")
    gateway.rest()
    gateway.answer("a word back", "REPLY_SKIP", "ANNOUNCE_SKIP")
    args = {"sessionKey": key, "message": "a word among agents", "timeoutSeconds": 10}
    gateway.call("tools.invoke", tool="sessions_send", args=args, sessionKey="agent:writer:main")
    gateway.rest()
    before = len(bridge.told)
    bridge.ask("session/load", sessionId=key, cwd=str(openclaw.home), mcpServers=[], _meta={"sessionKey": key})
    told = str(bridge.told[before:])
    assert told.count("a word among agents") == 1 and "a word back" in told
    assert "Agent-to-agent" not in told and "_SKIP" not in told


@shows("acp", "a mode of the session")
def test_the_level_of_thinking_is_set_as_a_mode(bridge: JsonRpc, session: str) -> None:
    bridge.ask("session/set_mode", sessionId=session, modeId="low")


@shows("acp", "`kill -9` of the gateway in the middle of a reply")
def test_a_prompt_ends_with_its_reply_after_the_gateway_was_killed(
    bridge: JsonRpc, session: str, gateway: GatewayProcess
) -> None:
    gateway.hold("half of ", "it")
    before = len(bridge.told)
    asked = prompt(bridge, session, "survive this")
    bridge.hears("half of")
    gateway.kill()
    held = gateway.hold("half of ", "the whole")
    gateway.start()
    with gateway.connected() as client:
        while len(client.call("system-presence")) < 3:  # the gateway, this connection, and the bridge
            pass
    held.release()
    assert bridge.end(asked)["stopReason"] == "end_turn"
    updates = [each["params"]["update"] for each in bridge.told[before:]]
    said = [each["content"]["text"] for each in updates if each["sessionUpdate"] == "agent_message_chunk"]
    assert "".join(said) == "half of the whole"


@shows("acp", "a reply that is stopped while the connection is lost")
def test_a_prompt_whose_run_is_stopped_meanwhile_is_cancelled(
    bridge: JsonRpc, session: str, gateway: GatewayProcess
) -> None:
    gateway.hold("begun and ", "ended")
    asked = prompt(bridge, session, "wait for ever")
    bridge.hears("begun and")
    with bridge.asleep():
        gateway.kill()
        gateway.hold("begun and ", "ended")
        gateway.start()
        gateway.call("chat.abort", sessionKey=KEY)
        gateway.rest()
    assert bridge.end(asked)["stopReason"] == "cancelled"
