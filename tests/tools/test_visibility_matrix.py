"""The sessions that each caller sees: every mode, sandbox and relation, through every tool that reads."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from backchannel.gateway.app import Gateway
from tests.tools.shelf import Shelf, agents, encoded

pytestmark = pytest.mark.anyio

CALLER = "agent:main:discord:group:desk"
TARGETS = {
    "own": CALLER,
    "spawned": "agent:main:subagent:child",
    "spawned under another agent": "agent:stranger:subagent:child",
    "same agent": "agent:main:main",
    "spawned by another session of the agent": "agent:main:subagent:nephew",
    "other agent, allowed": "agent:friend:main",
    "other agent, not allowed": "agent:stranger:main",
}
PARENTS = {
    "agent:main:subagent:child": CALLER,
    "agent:stranger:subagent:child": CALLER,
    "agent:main:subagent:nephew": "agent:main:main",
}
SEEN = {
    "self": {"own"},
    "tree": {"own", "spawned", "spawned under another agent"},
    "agent": {
        "own",
        "spawned",
        "spawned under another agent",
        "same agent",
        "spawned by another session of the agent",
    },
    "all": {
        "own",
        "spawned",
        "spawned under another agent",
        "same agent",
        "spawned by another session of the agent",
        "other agent, allowed",
    },
}
MODES = ("self", "tree", "agent", "all")
TALKS: dict[str, dict[str, Any]] = {
    "some": {"enabled": True, "allow": ["MAIN", "fri*"]},
    "off": {"enabled": False, "allow": ["*"]},
    "nobody": {"enabled": True, "allow": []},
    "everyone": {"enabled": True},
    "each by name": {"enabled": True, "allow": ["main", "friend", "strange*"]},
    "not the caller": {"enabled": True, "allow": ["friend", "stranger"]},
}


def config(mode: str, sandbox: str, clamp: str, talk: str = "some") -> dict[str, Any]:
    defaults = {"sandbox": {"mode": sandbox, "sessionToolsVisibility": clamp}}
    tools = {"sessions": {"visibility": mode}, "agentToAgent": TALKS[talk]}
    return agents("main", "friend", "stranger", defaults=defaults, tools=tools)


def expected(mode: str, sandboxed: bool, clamp: str) -> set[str]:
    is_clamped = sandboxed and clamp == "spawned" and mode in ("agent", "all")
    return SEEN["tree" if is_clamped else mode]


@pytest.fixture
def family(shelf: Shelf) -> Shelf:
    """One session of each relation to the caller."""
    for key in TARGETS.values():
        shelf.session(key, f"said in {key}", spawned_by=PARENTS.get(key))
    return shelf


async def listed(gateway: Gateway, caller: str) -> set[str]:
    """Tell which relations a list shows."""
    rows = (await gateway.tools(caller).sessions_list(limit=200))["sessions"]
    ids = {row["sessionId"] for row in rows}
    full = (await gateway.tools().sessions_list(limit=200))["sessions"]
    keys = {row["key"] for row in full if row["sessionId"] in ids}
    return {name for name, key in TARGETS.items() if key in keys}


async def reached(gateway: Gateway, caller: str, tool: str) -> set[str]:
    """Tell which relations a tool that names its target gets to; every other must be refused."""
    found: set[str] = set()
    for name, key in TARGETS.items():
        answer = await gateway.tools(caller).call(tool, sessionKey=key)
        if "sessionId" in answer:
            found.add(name)
        else:
            assert answer.keys() == {"status", "error"} and answer["status"] == "forbidden", (name, answer)
            assert "tools." in answer["error"] or "sandbox" in answer["error"]
    return found


async def seen(gateway: Gateway, tool: str, caller: str = CALLER) -> set[str]:
    return await (listed(gateway, caller) if tool == "sessions_list" else reached(gateway, caller, tool))


TOOLS = ("sessions_list", "sessions_history", "session_status")


@pytest.mark.parametrize(
    ("mode", "sandboxed", "clamp", "tool"), list(product(MODES, (False, True), ("spawned", "all"), TOOLS))
)
async def test_a_session_sees_what_its_mode_and_sandbox_show(
    family: Shelf, mode: str, sandboxed: bool, clamp: str, tool: str
) -> None:
    async with family.opened(config(mode, "all" if sandboxed else "off", clamp)) as gateway:
        assert await seen(gateway, tool) == expected(mode, sandboxed, clamp)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("talk", "others"),
    [
        ("off", set()),
        ("nobody", set()),
        ("not the caller", set()),
        ("everyone", {"other agent, allowed", "other agent, not allowed"}),
    ],
)
async def test_other_agents_are_seen_as_agent_to_agent_permits(
    family: Shelf, talk: str, others: set[str], tool: str
) -> None:
    async with family.opened(config("all", "off", "spawned", talk)) as gateway:
        assert await seen(gateway, tool) == SEEN["agent"] | others


@pytest.mark.parametrize("tool", TOOLS)
async def test_the_main_session_is_outside_a_sandbox_for_all_but_the_main_session(family: Shelf, tool: str) -> None:
    async with family.opened(config("agent", "non-main", "spawned")) as gateway:
        assert await seen(gateway, tool) == SEEN["tree"]
        of_main = {name for name, key in TARGETS.items() if key.startswith("agent:main:")}
        assert await seen(gateway, tool, "agent:main:main") == of_main


@pytest.mark.parametrize("tool", TOOLS)
async def test_an_agent_may_see_more_or_less_than_the_others(family: Shelf, tool: str) -> None:
    settings = config("all", "off", "spawned", "everyone")
    settings["agents"]["list"][0]["tools"] = {"sessions": {"visibility": "self"}}
    async with family.opened(settings) as gateway:
        assert await seen(gateway, tool) == {"own"}
        assert await seen(gateway, tool, "agent:friend:main") == set(TARGETS)


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_child_sees_itself_and_not_who_spawned_it(family: Shelf, tool: str) -> None:
    async with family.opened(config("tree", "off", "spawned")) as gateway:
        assert await seen(gateway, tool, TARGETS["spawned"]) == {"spawned"}


@pytest.mark.parametrize("tool", TOOLS)
async def test_the_operator_sees_everything(family: Shelf, tool: str) -> None:
    async with family.opened(config("self", "all", "spawned")) as gateway:
        if tool == "sessions_list":
            assert (await gateway.tools().sessions_list())["count"] == len(TARGETS)
            return
        for key in TARGETS.values():
            assert "sessionId" in await gateway.tools().call(tool, sessionKey=key)


@pytest.mark.parametrize(
    ("mode", "sandbox", "clamp", "talk", "view"),
    [
        ("self", "off", "spawned", "some", {"mode": "self", "restricted": True}),
        ("self", "all", "spawned", "some", {"mode": "self", "restricted": True}),
        ("tree", "off", "spawned", "some", {"mode": "tree", "restricted": True}),
        ("agent", "off", "spawned", "some", {"mode": "agent", "restricted": True}),
        ("agent", "all", "spawned", "some", {"mode": "tree", "restricted": True}),
        ("agent", "all", "all", "some", {"mode": "agent", "restricted": True}),
        ("all", "off", "spawned", "some", {"mode": "all", "restricted": True}),
        ("all", "off", "spawned", "off", {"mode": "all", "restricted": True}),
        ("all", "off", "spawned", "everyone", {"mode": "all", "restricted": False}),
        ("all", "off", "spawned", "each by name", {"mode": "all", "restricted": False}),
        ("agent", "off", "spawned", "each by name", {"mode": "agent", "restricted": True}),
        ("all", "all", "spawned", "everyone", {"mode": "tree", "restricted": True}),
        ("all", "all", "all", "everyone", {"mode": "all", "restricted": False}),
    ],
)
async def test_a_list_tells_how_far_it_sees(
    family: Shelf, mode: str, sandbox: str, clamp: str, talk: str, view: dict[str, Any]
) -> None:
    async with family.opened(config(mode, sandbox, clamp, talk)) as gateway:
        assert (await gateway.tools(CALLER).sessions_list())["visibility"] == view
        assert (await gateway.tools().sessions_list())["visibility"] == {"mode": "all", "restricted": False}


UNKNOWN = (
    "agent:main:cron:never",
    "cron:never",
    "never",
    "agent:stranger:cron:never",
    "agent:nobody:main",
    "00000000-0000-4000-8000-000000000000",
    "global",
    "agent:main:global",
    "not a key:",
    "::",
    "",
    " ",
    "x" * 600,
)


@pytest.mark.parametrize("tool", ["sessions_history", "session_status"])
@pytest.mark.parametrize(("mode", "clamp"), list(product(MODES, ("spawned", "all"))))
async def test_to_a_sandboxed_session_unknown_and_invisible_are_byte_for_byte_the_same(
    family: Shelf, tool: str, mode: str, clamp: str
) -> None:
    gone = family.session("agent:stranger:cron:gone", "secret", archived_at=1)
    family.execute("UPDATE session_ids SET ended_at = 1, end_reason = 'deleted' WHERE session_id = ?", gone)
    old = family.session("agent:stranger:cron:new", "secret")
    family.execute("UPDATE sessions SET session_id = 'other' WHERE session_id = ?", old)
    family.execute("UPDATE session_ids SET ended_at = 1, end_reason = 'reset' WHERE session_id = ?", old)
    async with family.opened(config(mode, "all", clamp)) as gateway:
        rows = (await gateway.tools().sessions_list())["sessions"]
        ids = {row["key"]: row["sessionId"] for row in rows}
        visible = expected(mode, True, clamp)
        hidden = [key for name, key in TARGETS.items() if name not in visible]
        asked = [*UNKNOWN, *hidden, *(ids[key] for key in hidden), gone, old, "agent:stranger:cron:gone"]
        answers = {encoded(await gateway.tools(CALLER).call(tool, sessionKey=key)) for key in asked}
        assert len(answers) == 1
        (answer,) = answers
        assert b'"status":"forbidden"' in answer
        for key in hidden:
            assert key.encode() not in answer


@pytest.mark.parametrize("tool", ["sessions_history", "session_status"])
async def test_outside_a_sandbox_what_is_visible_but_not_there_is_not_found(family: Shelf, tool: str) -> None:
    async with family.opened(config("agent", "off", "spawned")) as gateway:
        for key in ("cron:never", "never", "00000000-0000-4000-8000-000000000000", "agent:main:global", ""):
            answer = await gateway.tools(CALLER).call(tool, sessionKey=key)
            assert answer.keys() == {"status", "error"} and answer["status"] == "error", key


@pytest.mark.parametrize(
    ("mode", "key", "named"),
    [
        ("self", TARGETS["spawned"], ['tools.sessions.visibility is "self"', '"tree" would allow it']),
        ("tree", TARGETS["same agent"], ['tools.sessions.visibility is "tree"', '"agent" would allow it']),
        ("agent", TARGETS["other agent, allowed"], ['tools.sessions.visibility is "agent"', '"all" would allow it']),
        ("all", TARGETS["other agent, not allowed"], ["tools.agentToAgent.allow", 'adding "stranger" would allow it']),
    ],
)
async def test_a_refusal_names_the_setting_and_the_value_that_would_allow_it(
    family: Shelf, mode: str, key: str, named: list[str]
) -> None:
    async with family.opened(config(mode, "off", "spawned")) as gateway:
        answer = await gateway.tools(CALLER).sessions_history(key)
        assert answer["status"] == "forbidden"
        for words in named:
            assert words in answer["error"]
