"""Buttons under questions, on every platform that has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel, call
from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.facts import DeliveryChanged
from tests.channels.desk import ChannelDesk, desk
from tests.channels.worlds import WORLDS, ButtonWorld
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
S = DeliveryState
TOOLS: dict[str, Any] = {"approval": [{"tool": "sessions_list", "ask": "always"}]}


@pytest.fixture(params=[world for world in WORLDS if issubclass(world, ButtonWorld)], ids=attrgetter("name"))
async def world(request: pytest.FixtureRequest) -> AsyncIterator[ButtonWorld]:
    async with request.param.opened() as world:
        world.have_owner()
        yield world


def _asking() -> ScriptedModel:
    return ScriptedModel(replies=[[call("sessions_list")], "the answer"])


async def _sent(at: ChannelDesk, count: int) -> None:
    """Wait until so many deliveries were sent."""

    def sent() -> set[str]:
        return {fact.delivery.id for fact in at.heard.of(DeliveryChanged) if fact.delivery.state is S.SENT}

    await at.heard.until(lambda: len(sent()) >= count)


async def test_a_press_of_an_owner_decides_once_and_the_message_shows_what(world: ButtonWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, model=_asking(), tools=TOOLS) as at:
        await world.say(at.gateway, "go", "1")
        await _sent(at, 1)
        values = world.buttons(0)
        assert list(values) == ["Approve", "Always", "Deny"] and "/approve" in world.texts[0]
        said = await world.press(at.gateway, 0, values["Approve"], "p-1")
        assert said == "The call of sessions_list is approved."
        assert await world.press(at.gateway, 0, values["Approve"], "p-1") == said, "the same press is taken once"
        await _sent(at, 3)
        await at_rest(at.gateway)
        assert "approved already" in await world.press(at.gateway, 0, values["Deny"], "p-2")
        ids = [receipt.delivery.id for receipt in await at.receipts()]
    question, answer = world.texts
    assert question.startswith("May I call sessions_list?") and "The call of sessions_list is approved by" in question
    assert "/approve" not in question and world.buttons(0) == {} and answer == "the answer"
    assert len(ids) == 3, "the question, what was decided, and the answer"


async def test_a_press_of_somebody_else_is_refused_and_the_question_stays(world: ButtonWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, model=_asking(), tools=TOOLS) as at:
        await world.say(at.gateway, "go", "1")
        await _sent(at, 1)
        assert "owner" in await world.press(at.gateway, 0, world.buttons(0)["Approve"], "p-1", by_owner=False)
        assert len(await at.receipts()) == 1 and world.buttons(0), "nothing was posted, and it can still be answered"
        (approval,) = await at.gateway.store.approvals(limit=9)
        assert approval.is_pending


async def test_a_question_that_is_answered_elsewhere_loses_its_buttons(world: ButtonWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, model=_asking(), tools=TOOLS) as at:
        await world.say(at.gateway, "go", "1")
        await _sent(at, 1)
        (approval,) = await at.gateway.store.approvals(limit=9)
        await world.say(at.gateway, f"/deny {approval.id}", "2")
        await _sent(at, 4)
        await at_rest(at.gateway)
    assert "is denied by" in world.texts[0] and world.buttons(0) == {}
    assert sorted(world.texts[1:]) == ["The call of sessions_list is denied.", "the answer"]


async def test_more_of_a_budget_is_granted_by_a_press(world: ButtonWorld, tmp_path: Path) -> None:
    day = {"name": "day", "scope": "gateway", "per": "total", "runs": 1, "then": "ask"}
    model = ScriptedModel(replies=lambda request: "the answer")
    async with desk(tmp_path, world.settings, model=model, budgets=[day]) as at:
        await world.say(at.gateway, "go", "1")
        await _sent(at, 2)
        await world.say(at.gateway, "and again", "2")
        await _sent(at, 3)
        (asked,) = [number for number, text in enumerate(world.texts) if "a run waits" in text]
        assert list(world.buttons(asked)) == ["Approve", "Deny"]
        said = await world.press(at.gateway, asked, world.buttons(asked)["Approve"], "p-1")
        assert said == "More of the budget day is approved."
        await _sent(at, 5)
        await at_rest(at.gateway)
    assert world.texts[asked].startswith("May I spend more of the budget day?") and world.buttons(asked) == {}
    assert world.texts.count("the answer") == 2


async def test_an_owner_is_asked_about_a_stranger_and_lets_them_in_by_a_press(
    world: ButtonWorld, tmp_path: Path
) -> None:
    async with desk(tmp_path, world.settings) as at:
        await world.meet(at.gateway)
        await _sent(at, 3)
        (at_text,) = [number for number, text in enumerate(world.texts) if "wants to speak here" in text]
        assert list(world.buttons(at_text)) == ["Let in", "Ignore"]
        assert "may speak now" in await world.press(at.gateway, at_text, world.buttons(at_text)["Let in"], "p-1")
        await _sent(at, 5)
        await at_rest(at.gateway)
        (pairing,) = await at.gateway.store.pairings(limit=9)
    assert pairing.state == "approved" and world.buttons(at_text) == {} and "may speak now" in world.texts[at_text]
