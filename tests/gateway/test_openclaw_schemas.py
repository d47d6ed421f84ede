"""Every frame of the methods and events that OpenClaw's gateway has too fits the schemas that it publishes.

Where one does not, the difference stands in `DIFFERENCES` with its reason, and goes from there once it is gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from backchannel.gateway.table import METHODS
from backchannel.gateway.ws.connections import Limits
from backchannel.wire.shapes import SharedParams
from tests.support.far_end import FarEnd
from tests.support.openclaw.shapes import ANSWERS, CHAT_STATES, EVENTS, FRAMES, Shape, params_of
from tests.support.openclaw.violations import at, published, violations

from .client import OPERATOR
from .conftest import AGENTS, MakeWorld
from .openclaw_scenario import ASKED, BUSY, Exchanged, Scenario, equip, played

DIFFERENCES: dict[str, str] = {
    "AgentEvent: has sessionKey": "OpenClaw's own gateway sends it too, and its clients need it",
    "AgentsListResult: agents.* has backchannel": "what only this gateway has stands under its name",
    "CommandEntry: has backchannel": "as above",
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
    "agent.wait: run_not_found": "a wrong id is told at once: a client that waited for it would wait for ever",
    "channels.pairing.approve: pairing_not_found": "nobody waits",
    "channels.pairing.dismiss: pairing_not_found": "nobody waits",
}
"""What OpenClaw's clients ask and are refused, and why."""


@pytest.fixture
async def scenario(make_world: MakeWorld, anyio_backend: str) -> AsyncIterator[Scenario]:
    async with AsyncExitStack() as client, FarEnd() as far_end:
        tools = {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}, "approval": [ASKED]}
        agents = {"list": [*AGENTS, BUSY], "defaults": {"maxConcurrent": 1}}  # a second run has to wait
        config = {"channels": {"desk": far_end.settings()}, "tools": tools, "agents": agents}
        async with make_world(config, limits=Limits(tick_s=0.2)) as world:
            equip(world.gateway)
            scenario = await client.enter_async_context(played(world, OPERATOR))
        yield scenario  # after the gateway has stopped, which it has told


def shared_methods() -> set[str]:
    return METHODS.keys() & set(published()["methods"])


def checked(scenario: Scenario) -> Iterator[tuple[Shape, Any]]:
    """Give all that was said of which there is a definition, with that."""
    for each in scenario.exchanged:
        params = Shape(params_of(each.method))
        if params.definition in published()["definitions"]:
            yield params, each.params
        yield Shape(FRAMES["res"]), each.frame
        if each.frame["ok"]:
            yield from ((shape, each.frame["payload"]) for shape in ANSWERS.get(each.method, ()))
    for event in scenario.events:
        yield Shape(FRAMES["event"]), event
        if shape := shape_of(event):
            yield shape, event["payload"]


def shape_of(event: dict[str, Any]) -> Shape | None:
    if event["event"] == "chat":
        return Shape(CHAT_STATES[event["payload"]["state"]])
    return EVENTS.get(event["event"])


def told(scenario: Scenario, definition: str, *path: str) -> set[Any]:
    """Give all that was said at a place in what a definition is of."""
    shown = (
        each for shape, value in checked(scenario) if shape.definition == definition for each in at(value, shape.path)
    )
    return {each for value in shown for each in at(value, path)}


def refusal(exchanged: Exchanged) -> str:
    return f"{exchanged.method}: {exchanged.frame['error']['details']['code']}"


def assert_all_was_played(scenario: Scenario) -> None:
    """Check that every word was said that the schemas and this gateway have: what was not is not checked."""
    agent = [each.frame["payload"] for each in scenario.exchanged if each.method == "agent"]
    opened = [each.frame["payload"] for each in scenario.exchanged if each.method == "chat.startup"]
    nodes = [each.frame["payload"]["nodes"] for each in scenario.exchanged if each.method == "node.list"]

    assert told(scenario, "SessionRow", "kind") == {"direct", "group"}  # `test_sessions.py` has one that is global
    assert told(scenario, "SessionRow", "status") == {"queued", "running", "done", "failed", "killed", "timeout"}
    assert told(scenario, "SessionRow", "archived") == {True}
    assert told(scenario, "AgentEvent", "stream") == {"lifecycle", "assistant", "thinking", "retry", "tool"}
    assert told(scenario, "CronJob", "schedule", "kind") == {"every", "cron", "at"}
    assert told(scenario, "CronJob", "delivery", "mode") == {"none", "announce"}
    assert told(scenario, "CronRunLogEntry", "status") == {"ok", "error"}
    assert told(scenario, "ModelsListResult", "models", "*", "unavailableReason") == {"missing-auth"}
    assert told(scenario, "SessionsResolveResult", "ok") == {True, False}
    assert told(scenario, "SessionsCreateResult", "runStarted") == {True, False}
    assert told(scenario, "HelloOk", "auth", "role") == {"operator", "node"}
    assert told(scenario, "PresenceEntry", "roles", "*") == {"operator", "node"}
    assert {payload["status"] for payload in agent} == {"accepted", "ok"}
    assert any("inFlightRun" in payload for payload in opened) and any("resolution" in payload for payload in opened)
    assert any(nodes)


@pytest.mark.anyio
async def test_every_frame_fits_the_published_schemas_but_for_the_listed_differences(scenario: Scenario) -> None:
    called = {each.method for each in scenario.exchanged}
    refused = {refusal(each) for each in scenario.exchanged if not each.frame["ok"]}
    different = {line for shape, value in checked(scenario) for line in violations(shape, value)}
    heard = {event["event"] for event in scenario.events}
    states = {event["payload"]["state"] for event in scenario.events if event["event"] == "chat"}

    assert shared_methods() == called - {"connect"}
    assert refused - REFUSED.keys() == set(), "refused, and not listed"
    assert REFUSED.keys() - refused == set(), "listed, and no longer refused"
    assert {"agent", "chat", "tick", "shutdown", "sessions.changed", "session.message"} <= heard
    assert {"plugin.approval.requested", "plugin.approval.resolved"} <= heard
    assert {"delta", "final", "aborted", "error"} <= states
    assert different - DIFFERENCES.keys() == set(), "different, and not listed"
    assert DIFFERENCES.keys() - different == set(), "listed, and no longer different"
    assert_all_was_played(scenario)


def test_only_methods_that_both_gateways_have_ignore_unknown_parameters() -> None:
    lenient = {name for name, method in METHODS.items() if issubclass(method.params, SharedParams)}
    # Its clients call them, and no schema tells of them yet.
    newer = {"plugins.catalog.browse", "sessions.unsubscribe", "themes.list"}
    assert lenient - set(published()["methods"]) == newer


def test_every_answer_that_is_checked_is_of_a_method_that_both_gateways_have() -> None:
    assert ANSWERS.keys() - {"connect"} <= shared_methods()
