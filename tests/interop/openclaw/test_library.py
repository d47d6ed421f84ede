"""`@openclaw/gateway-client`, the library that OpenClaw's clients connect with, and what its package of schemas has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.interop.conftest import Node
from tests.support.openclaw.cut import CUT, cut, written
from tests.support.stub_provider import Answer, Call
from tests.web.gateways import GatewayProcess

from .conftest import OpenClaw
from .rows import shows

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@shows("library", "`@openclaw/gateway-client`: the handshake, a message, the events of its run")
@pytest.mark.anyio
async def test_the_library_connects_sends_and_hears(packages: Node, openclaw: OpenClaw) -> None:
    told: list[Any] = []
    async with packages.started("client.mjs", openclaw.url, openclaw.token, "agent:main:library") as script:
        while {"chat": "final", "run": "lib"} not in told:
            told.append(await script.line())
    assert told[0] == {"hello": "hello-ok", "protocol": 4}
    assert {"chat": "delta", "run": "lib"} in told


@shows("library", "a tool call: its events in order, with its result")
@pytest.mark.anyio
async def test_the_library_hears_of_a_call_of_a_tool(packages: Node, gateway: GatewayProcess) -> None:
    gateway.answer(Answer(text="Let me look.", calls=(Call("sessions_list", {"limit": 1}),)), "Here.")
    told: list[Any] = []
    url = gateway.url.replace("http:", "ws:")
    async with packages.started("client.mjs", url, gateway.token, "agent:main:tools", "tools") as script:
        while not told or told[-1].get("chat") != "final":
            told.append(await script.line())
    happened = [each for each in told if "agent" in each]
    order = [(each["agent"], each.get("phase")) for each in happened]
    assert order[0] == ("lifecycle", "start") and order[-1] == ("lifecycle", "end")
    start, result = order.index(("tool", "start")), order.index(("tool", "result"))
    assert happened[start]["args"] == {"limit": 1} and '"sessions"' in happened[result]["text"]
    assert happened[start - 1]["text"] == "Let me look." and happened[-2]["text"] == "Here."
    assert start < result < len(order) - 2


def test_the_cut_of_the_schemas_is_what_the_package_has(packages: Node) -> None:
    schemas = packages.folder / "node_modules" / "@openclaw" / "gateway-protocol" / "protocol.schema.json"
    published = json.loads(schemas.read_text(encoding="utf-8"))
    assert CUT.read_text(encoding="utf-8") == written(cut(published)), "cut it anew: tests/support/openclaw/__init__.py"
