"""The tools of an agent, by the settings of all, the agent, sub-agents and the sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from backchannel.tools.registry import SESSION_TOOLS
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

SESSION = {tool.name for tool in SESSION_TOOLS}
OWN = {"look", "write"}
EVERYTHING = SESSION | OWN
"""Those of the workspace are off unless they are named, which `*` does not; a program's own `write` comes first."""
FOR_CHILDREN = EVERYTHING - {"sessions_spawn"}
"""What a sub-agent can have at most."""
MAIN, CRON, CHILD = "agent:main:main", "agent:main:cron:x", "agent:main:subagent:u1"


def config(
    tools: dict[str, Any] | None = None, agent: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None
) -> dict[str, Any]:
    entry = {"id": "main", "model": "scripted/test", **(agent or {})}
    return {"agents": {"list": [entry, {"id": "ops"}], "defaults": defaults or {}}, "tools": tools or {}}


def equip(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look() -> str:
        """Look around."""
        return "seen"

    @gateway.tool(effects="outside")
    async def write() -> str:
        """Write somewhere."""
        return "written"


async def names(shelf: Shelf, settings: dict[str, Any], key: str = MAIN) -> set[str]:
    async with shelf.opened(settings) as gateway:
        equip(gateway)
        return set(gateway.toolset.of("main", key))


@pytest.mark.parametrize(
    ("tools", "agent", "defaults", "expected"),
    [
        ({}, {}, {}, EVERYTHING),
        ({"allow": ["look"]}, {}, {}, {"look"}),
        ({"allow": []}, {}, {}, set()),
        ({"allow": ["group:sessions"]}, {}, {}, SESSION),
        ({"allow": ["group:sessions", "look"]}, {}, {}, SESSION | {"look"}),
        ({"allow": ["sessions_*"]}, {}, {}, {name for name in SESSION if name.startswith("sessions_")}),
        ({"allow": ["*"]}, {}, {}, EVERYTHING),
        ({"allow": ["group:fs"]}, {}, {}, {"read", "edit", "list", "search", "attach"}),
        ({"allow": ["group:exec", "look"], "deny": ["process"]}, {}, {}, {"exec", "look"}),
        ({"deny": ["*"]}, {}, {}, set()),
        ({"deny": ["group:sessions"]}, {}, {}, OWN),
        ({"deny": ["sessions_history", "write"]}, {}, {}, EVERYTHING - {"sessions_history", "write"}),
        ({"allow": ["look", "write"], "deny": ["write"]}, {}, {}, {"look"}),
        ({"allow": ["unheard-of"]}, {}, {}, set()),
        ({"allow": ["look"]}, {"tools": {"allow": ["write"]}}, {}, {"write"}),
        ({"allow": ["look"]}, {}, {"tools": {"allow": ["write"]}}, {"write"}),
        ({"deny": ["look"]}, {"tools": {"allow": ["look", "write"]}}, {}, {"write"}),
        ({"deny": ["look"]}, {"tools": {"deny": ["write"]}}, {}, SESSION),
        ({"deny": ["look"]}, {}, {"tools": {"deny": ["group:sessions"]}}, {"write"}),
        ({"deny": ["look"]}, {"tools": {"deny": []}}, {"tools": {"deny": ["write"]}}, EVERYTHING - {"look"}),
    ],
)
async def test_an_agent_has_what_is_allowed_and_not_denied(
    shelf: Shelf, tools: dict[str, Any], agent: dict[str, Any], defaults: dict[str, Any], expected: set[str]
) -> None:
    assert await names(shelf, config(tools, agent, defaults)) == expected


async def test_what_one_agent_is_denied_another_has(shelf: Shelf) -> None:
    async with shelf.opened(config(agent={"tools": {"deny": ["*"]}})) as gateway:
        equip(gateway)
        assert not gateway.toolset.of("main", MAIN)
        assert set(gateway.toolset.of("ops", "agent:ops:main")) == EVERYTHING


@pytest.mark.parametrize(
    ("subagents", "tools", "expected"),
    [
        ({}, {}, OWN),
        ({"allow": ["sessions_list"]}, {}, OWN | {"sessions_list"}),
        ({"allow": ["group:sessions"]}, {}, FOR_CHILDREN),
        ({"allow": ["*"]}, {}, FOR_CHILDREN),
        ({"deny": ["write"]}, {}, {"look"}),
        ({"allow": ["group:sessions"], "deny": ["sessions_history"]}, {}, FOR_CHILDREN - {"sessions_history"}),
        ({"allow": ["sessions_list"], "deny": ["group:sessions"]}, {}, OWN),
        ({"allow": ["group:sessions"]}, {"deny": ["sessions_list"]}, FOR_CHILDREN - {"sessions_list"}),
        ({"deny": ["*"]}, {}, set()),
        # It may give what the agent itself does not have, and takes away what it has.
        ({"allow": ["write"]}, {"allow": ["look"]}, {"look", "write"}),
        ({"allow": ["sessions_list"]}, {"allow": ["look"]}, {"look", "sessions_list"}),
        ({"allow": ["write"], "deny": ["*"]}, {"allow": ["look"]}, set()),
        ({"allow": ["write"]}, {"deny": ["write"]}, {"look"}),
    ],
)
async def test_a_sub_agent_has_its_agents_tools_without_the_session_tools_unless_given_back(
    shelf: Shelf, subagents: dict[str, Any], tools: dict[str, Any], expected: set[str]
) -> None:
    settings = config({**tools, "subagents": {"tools": subagents}})
    assert await names(shelf, settings, CHILD) == expected
    # What is said of sub-agents is said of no other session.
    assert await names(shelf, settings) == await names(shelf, config(tools))


@pytest.mark.parametrize("allow", [["sessions_spawn"], ["group:sessions"], ["*"], ["sessions_*"]])
async def test_a_sub_agent_never_spawns(shelf: Shelf, allow: list[str]) -> None:
    async with shelf.opened(config({"subagents": {"tools": {"allow": allow}}})) as gateway:
        assert "sessions_spawn" in gateway.toolset.of("main", MAIN)
        assert "sessions_spawn" not in gateway.toolset.of("main", CHILD)


@pytest.mark.parametrize(
    ("mode", "key", "is_sandboxed"),
    [
        ("off", MAIN, False),
        ("off", CRON, False),
        ("non-main", MAIN, False),
        ("non-main", CRON, True),
        ("non-main", CHILD, True),
        ("all", MAIN, True),
        ("all", CRON, True),
    ],
)
@pytest.mark.parametrize("where", ["agent", "defaults"])
async def test_a_sandboxed_session_has_no_tools_that_reach_outside(
    shelf: Shelf, mode: str, key: str, is_sandboxed: bool, where: str
) -> None:
    settings = config(**{where: {"sandbox": {"mode": mode}}})
    has = OWN if key == CHILD else EVERYTHING
    assert await names(shelf, settings, key) == has - ({"write"} if is_sandboxed else set())


async def test_a_model_is_told_of_the_tools_it_has_and_of_no_other(shelf: Shelf) -> None:
    model = ScriptedModel(replies=lambda request: "fine")
    async with shelf.opened(config({"deny": ["sessions_history", "write"]}), model) as gateway:
        equip(gateway)
        await gateway.ask("main", "hello")
        await gateway.ask(CHILD, "hello")
    told, child = [{tool.name: tool for tool in request.tools} for request in model.requests]
    assert set(told) == EVERYTHING - {"sessions_history", "write"} and set(child) == {"look"}
    listing = told["sessions_list"]
    assert listing.parameters["properties"]["limit"]["default"] == 50
    assert listing.parameters["additionalProperties"] is False
    for described in listing.parameters["properties"].values():
        assert described["description"].endswith((".", ")."))


async def test_a_tool_that_an_agent_does_not_have_cannot_be_called_all_the_same(shelf: Shelf) -> None:
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return [call("sessions_history", sessionKey="main")] if last.role is Role.USER else last.text

    model = ScriptedModel(replies=reply)
    async with shelf.opened(config({"deny": ["sessions_history"]}), model) as gateway:
        refused = "sessions_history is not among your tools: "
        assert (await gateway.ask("main", "hello")).startswith(refused)
        assert (await gateway.ask(CHILD, "hello")).startswith(refused)


async def test_an_agents_call_is_made_by_its_session_and_input_errors_are_results(shelf: Shelf) -> None:
    model = ScriptedModel(
        replies=[[call("sessions_list"), call("sessions_list", limit=0), call("session_status", {"x": 1})], "done"]
    )
    async with shelf.opened(config(), model) as gateway:
        await gateway.ask(CRON, "hello")
        session = await gateway.store.session(CRON)
        assert session is not None
        history = (await gateway.store.history(session.session_id, limit=10)).messages
    results = [message for message in history if message.role is Role.TOOL_RESULT]
    by_call = {message.tool_call_id: message for message in results}
    listed, bad_limit, unknown = [by_call[id] for id in sorted(by_call, key=str)]
    assert '"key":"cron:x"' in listed.text and listed.is_error is False
    assert "limit" in bad_limit.text and bad_limit.is_error is True
    assert "unknown parameter 'x'" in unknown.text and unknown.is_error is True
