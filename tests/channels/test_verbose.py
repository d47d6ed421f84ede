"""`verboseLevel: on`: a line per tool call goes to the chat, before the reply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.sessions import SessionPatch
from tests.channels.desk import ChannelDesk, desk
from tests.gateway.client import connected
from tests.support.far_end import FarEnd
from tests.support.gateways import MAIN, ended

pytestmark = pytest.mark.anyio


def uses_tools(request: ModelRequest) -> Scripted:
    if request.messages[-1].role is Role.TOOL_RESULT:
        return "done"
    return [call("agents_list"), call("sessions_history", sessionKey="main", limit=1)]


async def set_level(world: ChannelDesk, level: str | None) -> None:
    await world.gateway.store.patch_session(SessionKey.parse(MAIN), SessionPatch(verbose_level=level))


async def test_each_tool_call_is_a_line_in_the_chat_before_the_reply(tmp_path: Path) -> None:
    model = ScriptedModel(replies=uses_tools)
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        await set_level(world, "on")
        taken = await world.say(text="look")
        await ended(world.gateway, taken["runId"])
        await far_end.posted(3)
        assert set(far_end.texts[:2]) == {
            "🔧 agents_list",
            '🔧 sessions_history: {"sessionKey":"main","limit":1}',
        }
        assert far_end.texts[2:] == ["done"]
        assert {receipt.delivery.run_id for receipt in await world.receipts()} == {taken["runId"]}


@pytest.mark.parametrize("level", [None, "off"])
async def test_nothing_is_told_where_it_is_not_on(tmp_path: Path, level: str | None) -> None:
    model = ScriptedModel(replies=uses_tools)
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        await set_level(world, level)
        await world.say(text="look")
        await far_end.posted(1)
        assert far_end.texts == ["done"]


@pytest.mark.parametrize("given", [{}, {"deliver": True}], ids=["not delivered", "on webchat"])
async def test_nothing_leaves_for_a_run_whose_reply_stays(tmp_path: Path, given: dict[str, Any]) -> None:
    model = ScriptedModel(replies=uses_tools)
    async with (
        FarEnd() as far_end,
        desk(tmp_path, {"desk": far_end.settings()}, model=model) as world,
        connected(world.url) as client,
    ):
        await set_level(world, "on")
        sent = await client.ask("chat.send", sessionKey="main", message="look", **given)
        await client.event("chat", runId=sent["runId"], state="final")
        assert await world.receipts() == []


async def test_a_function_agents_calls_are_told_too_and_once(tmp_path: Path) -> None:
    async def looks(context: FunctionContext) -> str:
        await context.call("agents_list")
        return "done"

    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        world.gateway.add_agent("main", looks)
        await set_level(world, "on")
        await world.say(text="look")
        await far_end.posted(2)
        assert far_end.texts == ["🔧 agents_list", "done"]
