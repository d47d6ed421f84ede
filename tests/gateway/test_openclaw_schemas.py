"""Every frame of the methods and events that OpenClaw's gateway has too fits the schemas that it publishes.

Where one does not, the difference stands in `DIFFERENCES` with its reason, and goes from there once it is gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from backchannel.core.shapes import SharedParams
from backchannel.gateway.connections import Limits
from backchannel.gateway.methods import METHODS
from tests.support.far_end import FarEnd
from tests.support.openclaw.shapes import ANSWERS, CHAT_STATES, EVENTS, FRAMES, Shape, params_of
from tests.support.openclaw.violations import published, violations

from .client import OPERATOR
from .conftest import MakeWorld
from .openclaw_scenario import Exchanged, Scenario, played

DIFFERENCES: dict[str, str] = {
    "AgentEvent: has sessionKey": "OpenClaw's own gateway sends it too, and its clients need it",
    "AgentsListResult: agents.* has backchannel": "what only this gateway has stands under its name",
    "CommandsListResult: commands.* has backchannel": "as above",
    "CronAddResult: has backchannel": "as above",
    "CronJob: has backchannel": "as above",
    "ModelChoice: has backchannel": "as above",
    "ModelsListResult: models.* has backchannel": "as above",
    "SessionsDeleteResult: has backchannel": "as above",
    "ToolsInvokeParams: has tool": "the word of this gateway; no client of OpenClaw's calls this method",
    "ToolsInvokeParams: lacks name": "as above",
    "ToolsInvokeResult: has result": "as above: what a tool answers is its result",
    "ToolsInvokeResult: lacks toolName": "as above",
}
"""What does not fit, and why it stays so."""

REFUSED: dict[str, str] = {
    "approval.get: approval_not_found": "no call waits here; `test_approvals.py` has some",
    "approval.resolve: approval_not_found": "as above",
    "plugin.approval.resolve: approval_not_found": "as above",
    "agent.wait: run_not_found": "a wrong id is told at once: a client that waited for it would wait for ever",
}
"""What OpenClaw's clients ask and are refused, and why."""


@pytest.fixture
async def scenario(make_world: MakeWorld, anyio_backend: str) -> AsyncIterator[Scenario]:
    async with AsyncExitStack() as client, FarEnd() as far_end:
        tools = {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}
        config = {"channels": {"desk": far_end.settings()}, "tools": tools}
        async with make_world(config, limits=Limits(tick_s=0.2)) as world:
            scenario = await client.enter_async_context(played(world, OPERATOR))
        yield scenario  # after the gateway has stopped, which it has told


def shared_methods() -> set[str]:
    return METHODS.keys() & set(published()["methods"])


def found(scenario: Scenario) -> Iterator[str]:
    for each in scenario.exchanged:
        params = Shape(params_of(each.method))
        if params.definition in published()["definitions"]:
            yield from violations(params, each.params)
        yield from violations(Shape(FRAMES["res"]), each.frame)
        if each.frame["ok"] and each.method in ANSWERS:
            yield from violations(ANSWERS[each.method], each.frame["payload"])
    for event in scenario.events:
        yield from violations(Shape(FRAMES["event"]), event)
        if definition := definition_of(event):
            yield from violations(Shape(definition), event["payload"])


def definition_of(event: dict[str, Any]) -> str | None:
    if event["event"] == "chat":
        return CHAT_STATES[event["payload"]["state"]]
    return EVENTS.get(event["event"])


def refusal(exchanged: Exchanged) -> str:
    return f"{exchanged.method}: {exchanged.frame['error']['details']['code']}"


@pytest.mark.anyio
async def test_every_frame_fits_the_published_schemas_but_for_the_listed_differences(scenario: Scenario) -> None:
    called = {each.method for each in scenario.exchanged}
    refused = {refusal(each) for each in scenario.exchanged if not each.frame["ok"]}
    different = set(found(scenario))
    heard = {event["event"] for event in scenario.events}
    states = {event["payload"]["state"] for event in scenario.events if event["event"] == "chat"}

    assert shared_methods() == called - {"connect"}
    assert refused - REFUSED.keys() == set(), "refused, and not listed"
    assert REFUSED.keys() - refused == set(), "listed, and no longer refused"
    assert {"agent", "chat", "tick", "shutdown", "sessions.changed", "session.message"} <= heard
    assert {"delta", "final", "aborted", "error"} <= states
    assert different - DIFFERENCES.keys() == set(), "different, and not listed"
    assert DIFFERENCES.keys() - different == set(), "listed, and no longer different"


def test_only_methods_that_both_gateways_have_ignore_unknown_parameters() -> None:
    lenient = {name for name, method in METHODS.items() if issubclass(method.params, SharedParams)}
    newer = {"plugins.catalog.browse", "sessions.unsubscribe"}  # its clients call them, and no schema tells of them yet
    assert lenient - set(published()["methods"]) == newer


def test_every_answer_that_is_checked_is_of_a_method_that_both_gateways_have() -> None:
    assert ANSWERS.keys() - {"connect"} <= shared_methods()
