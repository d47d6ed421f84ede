"""`openclaw mcp serve`, which shows the conversations of chats to MCP clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.gateways import GatewayProcess

from .conftest import CHANNEL, OpenClaw, let_ask
from .lines import JsonRpc, json_rpc
from .rows import shows

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KEY = "agent:main:main"


@pytest.fixture(scope="module")
def server(openclaw: OpenClaw, gateway: GatewayProcess) -> Iterator[JsonRpc]:
    gateway.write(CHANNEL, text="from a chat")
    gateway.rest()
    with json_rpc(openclaw, "mcp", "serve") as started:
        client = {"name": "test", "version": "1"}
        started.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        started.tell("notifications/initialized")
        yield started


def call(server: JsonRpc, tool: str, **arguments: Any) -> Any:
    answer = server.ask("tools/call", name=tool, arguments=arguments)
    assert not answer.get("isError"), answer
    return answer["structuredContent"]


@shows("mcp serve", "listing and reading conversations")
def test_a_conversation_is_listed_and_read(server: JsonRpc) -> None:
    listed = call(server, "conversations_list")["conversations"]
    assert [(each["sessionKey"], each["channel"]) for each in listed] == [(KEY, CHANNEL)]
    messages = call(server, "messages_read", session_key=KEY)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]


@shows("mcp serve", "sending to a conversation")
def test_a_message_is_sent_to_the_chat(server: JsonRpc, gateway: GatewayProcess) -> None:
    call(server, "messages_send", session_key=KEY, text="from an MCP client")
    assert gateway.posted(2) == ["You said: from a chat", "from an MCP client"]


@shows("mcp serve", "listing and answering approvals")
def test_a_call_that_waits_is_listed_and_answered(server: JsonRpc, gateway: GatewayProcess) -> None:
    run_id = let_ask(gateway, KEY)
    while not (waiting := call(server, "permissions_list_open")["approvals"]):
        pass
    call(server, "permissions_respond", kind="plugin", id=waiting[0]["id"], decision="allow-once")
    assert gateway.call("agent.wait", runId=run_id, timeoutMs=30_000)["reply"] == "so be it"
    while call(server, "permissions_list_open")["approvals"]:
        pass
