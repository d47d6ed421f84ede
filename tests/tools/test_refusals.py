"""A refusal names what really decided, as whoever asked would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.channels.desk import desk
from tests.gateway.test_mcp import connected
from tests.support.far_end import FarEnd
from tests.support.gateways import MAIN
from tests.tools.door import doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

CHILD = "agent:main:subagent:u1"
LIST = {"tool": "sessions_list", "args": {}}


def config(agent: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None, **tools: Any) -> dict[str, Any]:
    return {"agents": {"list": [{"id": "main", **(agent or {})}], "defaults": defaults or {}}, "tools": tools}


@pytest.mark.parametrize(
    ("settings", "key", "decided"),
    [
        (config(), CHILD, "tools.subagents.tools.allow"),
        (config(subagents={"tools": {"allow": ["group:sessions"], "deny": ["sessions_list"]}}), CHILD,
         "tools.subagents.tools.deny"),
        (config(deny=["sessions_list"]), MAIN, ": tools.deny names it"),
        (config(allow=["look"]), MAIN, ": tools.allow does not name it"),
        (config({"tools": {"deny": ["sessions_*"]}}), MAIN, "agents.list[main].tools.deny names it"),
        (config({"tools": {"allow": []}}, allow=["*"]), MAIN, "agents.list[main].tools.allow does not name it"),
        (config(defaults={"tools": {"deny": ["group:sessions"]}}), MAIN, "agents.defaults.tools.deny names it"),
    ],
)  # fmt: skip
async def test_a_tool_that_the_caller_does_not_have_is_forbidden_by_the_setting_that_decided(
    shelf: Shelf, settings: dict[str, Any], key: str, decided: str
) -> None:
    shelf.session(CHILD, "hello", spawned_by=MAIN)
    async with doors(shelf, settings) as at:
        answer = await at.invoke(**LIST, sessionKey=key)
        assert answer.status_code == 403
        error = answer.json()["error"]
        assert error["code"] == "FORBIDDEN" and decided in error["message"]
        assert await at.client.refused("tools.invoke", {**LIST, "sessionKey": key}) == error


async def test_spawning_from_a_sub_agent_is_forbidden_through_every_door(shelf: Shelf) -> None:
    shelf.session(CHILD, "hello", spawned_by=MAIN)
    async with doors(shelf, config()) as at:
        spawn = {"tool": "sessions_spawn", "args": {"task": "dig"}, "sessionKey": CHILD}
        answers = [
            (await at.invoke(**spawn)).json()["result"],
            (await at.client.ask("tools.invoke", **spawn))["result"],
            await at.gateway.tools(CHILD).sessions_spawn(task="dig"),
        ]
        made = await at.client.ask("tokens.create", sessionKey=CHILD)
        async with connected(f"{at.at.url}/mcp", made["token"]) as client:
            answers.append((await client.call_tool("sessions_spawn", {"task": "dig"})).structured_content)
    assert {answer["status"] for answer in answers} == {"forbidden"}
    assert {answer["error"] for answer in answers} == {"a sub-agent may not spawn another"}


async def test_an_input_error_names_the_parameter_as_it_was_written(shelf: Shelf) -> None:
    async with doors(shelf, config()) as at:
        patch = await at.client.refused("sessions.patch", {"key": "main", "thinkingLevel": "deep"})
        assert patch["message"].startswith("thinkingLevel: 'deep'")
        send = await at.client.refused("chat.send", {"sessionKey": "main", "message": "x", "thinking": "deep"})
        assert send["message"].startswith("thinking: 'deep'")


async def test_send_off_says_what_happens_at_the_door_where_it_was_typed(tmp_path: Path, shelf: Shelf) -> None:
    async with doors(shelf, config(), echoing=("main",)) as at:
        said = await at.client.ask("chat.send", sessionKey="main", message="/send off")
        assert "messages from here are refused until /send on" in said["reply"]
        refused = await at.client.refused("chat.send", {"sessionKey": "main", "message": "hello"})
        assert refused["details"]["code"] == "policy_denied"
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings(owners=["ann"])}) as world:
        await world.say(text="/send off")
        (reply,) = await far_end.took(1)
        assert "messages to it are kept, not answered" in reply.text


async def test_the_shared_session_of_global_scope_is_shown_as_main(tmp_path: Path) -> None:
    scope = {"scope": "global"}
    channels = {}
    async with FarEnd() as far_end:
        channels["desk"] = far_end.settings()
        async with desk(tmp_path, channels, session=scope) as world:
            said = await world.say()
            assert said["sessionKey"] == MAIN
            await far_end.took(1)
            sent = await world.gateway.tools("main").sessions_send(sessionKey="agent:main:cron:x", message="hi")
            assert "global" not in str(sent)
            listed = await world.gateway.tools().sessions_list()
            assert [row["key"] for row in listed["sessions"]] == [MAIN]


async def test_errors_about_the_shared_session_of_global_scope_name_it_as_main(shelf: Shelf) -> None:
    async with doors(shelf, config() | {"session": {"scope": "global"}}, echoing=("main",)) as at:
        await at.gateway.ask("main", "hello")
        await at.client.ask("sessions.patch", key="main", label="shared")
        await at.client.ask("sessions.patch", key="agent:main:cron:x", displayName="x")
        for method, params in {
            "sessions.delete": {"key": "main"},
            "chat.abort": {"sessionKey": "main", "runId": "none"},
            "chat.send": {"sessionKey": "main", "message": "x", "sessionId": "another"},
            "sessions.patch": {"key": "agent:main:cron:x", "label": "shared"},
        }.items():
            refused = await at.client.refused(method, params)
            assert MAIN in refused["message"] and "global" not in str(refused), refused
