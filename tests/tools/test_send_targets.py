"""The targets of `sessions_send`, its arguments, and a refused send that leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.errors import InvalidRequest
from tests.support.gateways import session_of, settled
from tests.support.talks import A, B, Talk, config, talking
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

AB = config("a", "b")
QUIET = {"request": "fine"}


async def refused(talk: Talk, caller: str | None, **arguments: Any) -> dict[str, Any]:
    """Send what must be refused; nothing at all may have happened by it."""
    before = talk.counts()
    result = await talk.gateway.tools(caller).sessions_send(message="hello", **arguments)
    assert talk.counts() == before
    assert result["status"] in ("error", "forbidden")
    assert result.keys() <= {"status", "error", "sessionKey"}
    return result


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"message": ""}, "message"),
        ({"message": " \n\t "}, "message"),
        ({"message": 7}, "message"),
        ({"message": "hi", "timeoutSeconds": -1}, "timeoutSeconds"),
        ({"message": "hi", "timeoutSeconds": 3600.5}, "timeoutSeconds"),
        ({"message": "hi", "timeoutSeconds": "30"}, "timeoutSeconds"),
        ({"message": "hi", "timeoutSeconds": True}, "timeoutSeconds"),
        ({"message": "hi", "timeoutSeconds": None}, "timeoutSeconds"),
        ({"message": "hi", "timeoutSeconds": float("nan")}, "timeoutSeconds"),
        ({"message": "hi", "label": "x"}, "sessionKey"),
        ({"message": "hi", "agentId": "b"}, "agentId"),
        ({"message": "hi", "wait": 3}, "wait"),
    ],
)
async def test_bad_input_names_the_parameter_and_does_nothing(
    tmp_path: Path, arguments: dict[str, Any], param: str
) -> None:
    async with talking(tmp_path, AB, a={}, b=QUIET) as talk:
        before = talk.counts()
        with pytest.raises(InvalidRequest, match=param):
            await talk.gateway.tools(A).sessions_send(sessionKey=B, **arguments)
        assert talk.counts() == before


async def test_a_send_without_a_target_is_bad_input(tmp_path: Path) -> None:
    async with talking(tmp_path, AB, a={}, b=QUIET) as talk:
        with pytest.raises(InvalidRequest, match="sessionKey and label"):
            await talk.gateway.tools(A).sessions_send(message="hi")


async def test_the_main_session_of_a_configured_agent_is_made_by_the_first_send(tmp_path: Path) -> None:
    async with talking(tmp_path, AB, a={}, b=QUIET) as talk:
        result = await talk.gateway.tools().sessions_send(sessionKey=B, message="hello")
        assert (result["status"], result["reply"], result["sessionKey"]) == ("ok", "fine", B)
        await settled(talk.gateway)
        assert [kind for _, kind, _ in talk.runs()] == ["primary"]


@pytest.mark.parametrize(
    "target",
    [
        "agent:b:telegram:group:9",
        "agent:ghost:main",
        "cron:nightly",
        "agent::main",
        "",
        "global",
        "unknown",
        "a b",
        "x",
    ],
)
@pytest.mark.parametrize("caller", [None, A])
async def test_nothing_else_that_is_not_there_can_be_sent_to(tmp_path: Path, caller: str | None, target: str) -> None:
    async with talking(tmp_path, AB, a={}, b=QUIET) as talk:
        result = await refused(talk, caller, sessionKey=target)
        assert result["error"]


async def test_a_session_whose_agent_is_no_longer_configured_cannot_be_sent_to(tmp_path: Path, shelf: Shelf) -> None:
    shelf.session("agent:ghost:telegram:group:1", "hello")
    shelf.session("agent:ghost:main", "hello", label="ghost")
    async with talking(shelf.state, AB, a={}, b=QUIET) as talk:
        for target in ("agent:ghost:telegram:group:1", "agent:ghost:main"):
            result = await refused(talk, None, sessionKey=target)
            assert result["status"] == "error"
            assert "ghost" in result["error"]
        assert "ghost" in (await refused(talk, None, label="ghost"))["error"]


async def test_every_way_to_write_a_key_reaches_the_session(shelf: Shelf) -> None:
    cron = shelf.session("agent:a:cron:nightly", "hello")
    shelf.session("agent:a:discord:group:7", "hello")
    shelf.session("agent:a:main", "hello")
    async with talking(shelf.state, AB, a=QUIET, b=QUIET) as talk:
        ways = {
            "cron:nightly": "cron:nightly",
            cron: "cron:nightly",
            "agent:a:cron:nightly": "cron:nightly",
            "discord:group:7": "agent:a:discord:group:7",
            "AGENT:A:Discord:GROUP:7": "agent:a:discord:group:7",
            "agent:a:main": "main",
        }
        for written, shown in ways.items():
            tools = talk.gateway.tools("agent:a:discord:group:7" if "cron" in shown or shown == "main" else A)
            result = await tools.sessions_send(sessionKey=written, message=f"to {written}")
            assert (result["status"], result["sessionKey"]) == ("ok", shown), written
        result = await talk.gateway.tools().sessions_send(sessionKey="main", message="hello")
        assert result["sessionKey"] == A, "the operator's main is the default agent's, in full"
        await settled(talk.gateway)


async def test_an_id_that_a_reset_replaced_names_the_key(shelf: Shelf) -> None:
    old = shelf.session(B, "hello")
    async with talking(shelf.state, AB, a={}, b=QUIET) as talk:
        await talk.gateway.store.reset_session(talk.gateway.key(B))
        assert B in (await refused(talk, A, sessionKey=old))["error"]


async def test_an_archived_session_cannot_be_sent_to(shelf: Shelf) -> None:
    old = shelf.session("agent:b:side", "hello", label="side")
    async with talking(shelf.state, AB, a={}, b=QUIET) as talk:
        await talk.gateway.runtime.delete(talk.gateway.key("agent:b:side"))
        for target in ({"sessionKey": "agent:b:side"}, {"sessionKey": old}, {"label": "side"}):
            assert (await refused(talk, A, **target))["status"] == "error"


async def test_a_label_reaches_its_session_and_an_agent_narrows_it(shelf: Shelf) -> None:
    shelf.session("agent:a:one", "hello", label="notes")
    shelf.session("agent:b:two", "hello", label="notes")
    shelf.session("agent:b:three", "hello", label="other")
    async with talking(shelf.state, AB, a=QUIET, b=QUIET) as talk:
        for caller in (None, A):
            result = await refused(talk, caller, label="notes")
            assert result["status"] == "error"
            assert "agent:a:one" in result["error"] and "agent:b:two" in result["error"]
            tools = talk.gateway.tools(caller)
            reached = await tools.sessions_send(label="notes", agentId="b", message="hi")
            assert (reached["status"], reached["sessionKey"]) == ("ok", "agent:b:two")
            assert (await tools.sessions_send(label="notes", agentId="B", message="hi"))["status"] == "ok"
            assert (await tools.sessions_send(label="other", message="hi"))["sessionKey"] == "agent:b:three"
            await settled(talk.gateway)  # a session gets turns, which write while others are refused
            for absent in ({"label": "nobody"}, {"label": ""}, {"label": "other", "agentId": "a"}):
                assert (await refused(talk, caller, **absent))["status"] == "error"


async def test_a_label_that_only_invisible_sessions_have_is_not_found(shelf: Shelf) -> None:
    shelf.session("agent:b:two", "hello", label="secret")
    settings = {**AB, "tools": {"sessions": {"visibility": "agent"}}}
    async with talking(shelf.state, settings, a={}, b=QUIET) as talk:
        result = await refused(talk, A, label="secret")
        assert result["status"] == "error"
        assert "agent:b:two" not in result["error"]
        unknown = await refused(talk, A, label="sacred")
        assert unknown["error"].replace("sacred", "secret") == result["error"]


async def test_a_label_of_one_visible_and_one_invisible_session_is_not_ambiguous(shelf: Shelf) -> None:
    shelf.session("agent:b:two", "hello", label="notes")
    shelf.session("agent:a:one", "hello", label="notes")
    settings = {**AB, "tools": {"sessions": {"visibility": "agent"}}}
    async with talking(shelf.state, settings, a=QUIET, b=QUIET) as talk:
        result = await talk.gateway.tools(A).sessions_send(label="notes", message="hi")
        assert (result["status"], result["sessionKey"]) == ("ok", "agent:a:one")
        await settled(talk.gateway)


@pytest.mark.parametrize(
    ("tools", "setting"),
    [
        ({"sessions": {"visibility": "self"}}, "tools.sessions.visibility"),
        ({"sessions": {"visibility": "all"}}, "tools.agentToAgent"),
        ({"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True, "allow": ["a"]}}, "tools.agentToAgent"),
    ],
)
async def test_what_the_caller_may_not_see_is_forbidden_with_the_setting(
    tmp_path: Path, tools: dict[str, Any], setting: str
) -> None:
    async with talking(tmp_path, {**AB, "tools": tools}, a={}, b=QUIET) as talk:
        for target in (B, "agent:b:side"):
            result = await refused(talk, A, sessionKey=target)
            assert result["status"] == "forbidden"
            assert setting in result["error"]


async def test_the_send_policy_makes_it_an_error_and_nothing_happens(tmp_path: Path, shelf: Shelf) -> None:
    shelf.session("agent:b:discord:group:7", "hello")
    shelf.session("agent:b:own", "hello", send_policy="deny")
    policy = {
        "rules": [
            {"match": {"channel": "discord"}, "action": "deny"},
            {"match": {"keyPrefix": "main"}, "action": "deny"},
        ]
    }
    async with talking(shelf.state, config("a", "b", sendPolicy=policy), a={}, b=QUIET) as talk:
        for target, rule in (
            ("agent:b:discord:group:7", "rules[0]"),
            (B, "rules[1]"),
            ("agent:b:own", "own sendPolicy"),
        ):
            result = await refused(talk, A, sessionKey=target)
            assert (result["status"], result["sessionKey"]) == ("error", target)
            assert rule in result["error"]
        assert await talk.gateway.store.session(B) is None
        assert (await session_of(talk.gateway, "agent:b:own")).queued == 0
