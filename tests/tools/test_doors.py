"""The session tools through every door: the same call gives the same result, and a token decides who calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role, ToolCallBlock
from tests.gateway.client import OPERATOR, connected
from tests.tools.door import Doors, doors
from tests.tools.shelf import Shelf, agents, message, result

pytestmark = pytest.mark.anyio

MAIN, CRON = "agent:main:main", "agent:main:cron:nightly"
KEY = "ghp_" + "aB3dE5gH7j" * 4


def reply(request: ModelRequest) -> Any:
    """Call the tool that the message names, then say what it returned."""
    last = request.messages[-1]
    if last.role is Role.USER:
        asked = json.loads(last.text)
        return [call(asked["tool"], asked["args"])]
    return last.text


CONFIG = agents(
    "main",
    "ops",
    defaults={"model": "scripted/test"},
    tools={"sessions": {"visibility": "agent"}},
)


@pytest.fixture
async def open_doors(shelf: Shelf, anyio_backend: str) -> AsyncIterator[Doors]:
    asked = message("looking", Role.ASSISTANT, ToolCallBlock(id="r/0/0", name="look", arguments={"x": None}))
    shelf.session(CRON, "go", asked, result(f"found {KEY}"), "x" * 5000, label="the job", tokens_in=5)
    shelf.session("agent:main:subagent:u1", "work", spawned_by=CRON, label="helper")
    shelf.session("agent:ops:main", "secret")
    async with doors(shelf, CONFIG, ScriptedModel(replies=reply)) as opened:
        yield opened


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("sessions_list", {"label": "the job", "messageLimit": 20}),
    ("sessions_list", {"search": "nothing has this text"}),
    ("sessions_history", {"sessionKey": "cron:nightly", "includeTools": True}),
    ("sessions_history", {"sessionKey": "agent:ops:main"}),
    ("sessions_history", {"sessionKey": "cron:never"}),
    ("agents_list", {}),
    ("sessions_search", {"query": "found", "sessionKey": "cron:nightly", "includeTools": True}),
    ("sessions_search", {"query": "secret", "sessionKey": "agent:ops:main"}),
    ("session_status", {"sessionKey": "cron:nightly"}),
]


@pytest.mark.parametrize(("tool", "arguments"), CALLS)
async def test_the_same_call_gives_the_same_result_through_every_door(
    open_doors: Doors, tool: str, arguments: dict[str, Any]
) -> None:
    gateway = open_doors.gateway
    python = await gateway.tools(MAIN).call(tool, **arguments)
    by_agent = json.loads(await gateway.ask("main", json.dumps({"tool": tool, "args": arguments})))
    socket = await open_doors.client.ask("tools.invoke", tool=tool, args=arguments, sessionKey="main")
    http = (await open_doors.invoke(tool=tool, args=arguments, sessionKey="main")).json()
    token = (await open_doors.client.ask("tokens.create", sessionKey=MAIN))["token"]
    bound = (await open_doors.invoke(token, tool=tool, args=arguments)).json()
    assert python == by_agent
    assert socket == http == bound == {"ok": True, "result": python}


@pytest.mark.parametrize(("tool", "arguments"), CALLS)
async def test_an_operator_gets_the_same_through_every_door(
    open_doors: Doors, tool: str, arguments: dict[str, Any]
) -> None:
    python = await open_doors.gateway.tools().call(tool, **arguments)
    socket = await open_doors.client.ask("tools.invoke", tool=tool, args=arguments)
    http = await open_doors.invoke(tool=tool, args=arguments)
    assert http.status_code == 200 and http.json() == socket == {"ok": True, "result": python}


class TestCallers:
    async def test_an_operator_sees_all_and_a_session_only_what_it_may(self, open_doors: Doors) -> None:
        operator = (await open_doors.invoke(tool="sessions_list")).json()["result"]
        as_session = (await open_doors.invoke(tool="sessions_list", sessionKey=CRON)).json()["result"]
        assert {row["agentId"] for row in operator["sessions"]} == {"main", "ops"}
        assert operator["visibility"] == {"mode": "all", "restricted": False}
        assert {row["key"] for row in as_session["sessions"]} == {"cron:nightly", "agent:main:subagent:u1"}
        assert as_session["visibility"] == {"mode": "agent", "restricted": True}

    @pytest.mark.parametrize("name", [CRON, "cron:nightly", "main", "agent:ops:main", "the id"])
    async def test_an_operator_may_call_as_a_session_that_exists_or_is_a_main_one(
        self, open_doors: Doors, name: str
    ) -> None:
        if name == "the id":
            name = (await open_doors.gateway.tools().session_status(sessionKey=CRON))["sessionId"]
        answer = await open_doors.invoke(tool="agents_list", sessionKey=name)
        assert answer.status_code == 200
        assert answer.json()["result"]["requester"] == ("ops" if "ops" in name else "main")

    async def test_calling_as_a_session_makes_none(self, open_doors: Doors, shelf: Shelf) -> None:
        before = shelf.count("sessions")
        status = (await open_doors.invoke(tool="session_status", sessionKey="main")).json()["result"]
        assert status["status"] == "error"
        assert shelf.count("sessions") == before

    @pytest.mark.parametrize(
        "name",
        [
            "cron:never",
            "agent:main:cron:never",
            "agent:nobody:main",
            "agent:nobody:cron:x",
            "00000000-0000-4000-8000-000000000000",
            "current",
            "global",
            "agent:main:global",
            "never",
            "::",
            "",
            "x" * 600,
        ],
    )
    async def test_a_session_that_does_not_exist_cannot_be_the_caller(self, open_doors: Doors, name: str) -> None:
        answer = await open_doors.invoke(tool="sessions_list", sessionKey=name)
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "FORBIDDEN"
        error = await open_doors.client.refused("tools.invoke", {"tool": "sessions_list", "sessionKey": name})
        assert error == answer.json()["error"]
        explained = await open_doors.client.refused("policy.explain", {"target": "main", "caller": name})
        assert explained["code"] == "FORBIDDEN"

    async def test_a_session_that_was_archived_cannot_be_the_caller(self, open_doors: Doors) -> None:
        token = (await open_doors.client.ask("tokens.create", sessionKey=CRON))["token"]
        await open_doors.gateway.runtime.delete(SessionKey.parse(CRON))
        for answer in (
            await open_doors.invoke(tool="sessions_list", sessionKey=CRON),
            await open_doors.invoke(token, tool="sessions_list"),
        ):
            assert answer.status_code == 403

    async def test_an_agents_token_is_bound_to_its_session(self, open_doors: Doors) -> None:
        token = (await open_doors.client.ask("tokens.create", sessionKey=CRON))["token"]
        own = (await open_doors.invoke(token, tool="session_status")).json()["result"]
        assert own["key"] == "cron:nightly"
        for same in ("current", CRON, "cron:nightly", own["sessionId"]):
            assert (await open_doors.invoke(token, tool="sessions_list", sessionKey=same)).status_code == 200
        others = ["main", MAIN, "agent:ops:main", "cron:never", "agent:nobody:main", "", "::", "global"]
        answers = [await open_doors.invoke(token, tool="sessions_list", sessionKey=other) for other in others]
        assert {answer.status_code for answer in answers} == {403}
        assert len({answer.content for answer in answers}) == 1, "none of them tells what exists"

    async def test_an_agents_token_over_a_connection_can_use_the_tools_and_only_as_itself(
        self, open_doors: Doors
    ) -> None:
        token = (await open_doors.client.ask("tokens.create", sessionKey=CRON))["token"]
        async with connected(open_doors.at.websocket_url, token) as agent:
            answer = await agent.ask("tools.invoke", tool="session_status")
            assert answer["result"]["key"] == "cron:nightly"
            for other in ("main", "agent:ops:main"):
                error = await agent.refused("tools.invoke", {"tool": "session_status", "sessionKey": other})
                assert error["code"] == "FORBIDDEN"
            assert (await agent.refused("policy.explain", {"target": "main"}))["code"] == "FORBIDDEN"

    async def test_a_session_calls_only_the_tools_that_it_has(self, shelf: Shelf) -> None:
        child = "agent:main:subagent:u1"
        shelf.session(child, spawned_by=MAIN)
        config = {**CONFIG, "tools": {"deny": ["sessions_history"], "subagents": {"tools": {"allow": ["agents_list"]}}}}
        async with doors(shelf, config, ScriptedModel()) as open_doors:
            for caller, tool, status in (
                (MAIN, "sessions_list", 200),
                (MAIN, "sessions_history", 403),
                (child, "agents_list", 200),
                (child, "sessions_list", 403),
            ):
                token = (await open_doors.client.ask("tokens.create", sessionKey=caller))["token"]
                arguments = {"sessionKey": "main"} if tool == "sessions_history" else {}
                for answer in (
                    await open_doors.invoke(tool=tool, args=arguments, sessionKey=caller),
                    await open_doors.invoke(token, tool=tool, args=arguments),
                ):
                    assert answer.status_code == status, (caller, tool)
            assert (await open_doors.invoke(tool="sessions_history", args={"sessionKey": "main"})).status_code == 200

    async def test_no_argument_of_a_tool_makes_somebody_else_the_caller(self, open_doors: Doors) -> None:
        token = (await open_doors.client.ask("tokens.create", sessionKey=CRON))["token"]
        for name in ("caller", "agentId", "requester", "sessionKey"):
            answer = await open_doors.invoke(token, tool="agents_list", args={name: "agent:ops:main"})
            assert answer.status_code == 400

    async def test_a_token_without_read_may_not_look(self, open_doors: Doors) -> None:
        made = await open_doors.client.ask("tokens.create", scopes=["read"])
        for tool, arguments in CALLS:
            answer = await open_doors.invoke(made["token"], tool=tool, args=arguments)
            assert answer.status_code == 200
        async with connected(open_doors.at.websocket_url, made["token"], scopes=["operator.approvals"]) as nobody:
            error = await nobody.refused("tools.invoke", {"tool": "sessions_list"})
            assert error["details"]["code"] == "scope_missing"


class TestHttp:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'"x"',
            b"{}",
            b'{"tool":7}',
            b'{"tool":"sessions_list","args":[]}',
            b'{"tool":"sessions_list","args":null}',
            b'{"tool":"sessions_list","arguments":{}}',
            b'{"tool":"sessions_list","args":{"limit":0}}',
            b'{"tool":"sessions_list","args":{"nothing":1}}',
            b'{"tool":"sessions_history","args":{}}',
            b'{"tool":"sessions_list","sessionKey":7}',
            b'{"tool":"sessions_list","args":{"search":"\xff"}}',
            b'{"tool":"\xff"}',
            b"\xff\xfe",
            b'{"tool":"sessions_list","args":{"search":"\\ud800"}}',
            b'{"tool":"sessions_list","args":{"search":' + b"[" * 5000 + b"]" * 5000 + b"}}",
            b'{"tool":"sessions_list","args":{"limit":' + b"9" * 5000 + b"}}",
            b'{"tool":"sessions_list","args":{"limit":1e999}}',
            b'{"tool":"sessions_list","args":{"limit":NaN}}',
        ],
    )
    async def test_a_bad_request_is_400_and_says_what_is_wrong(self, open_doors: Doors, body: bytes) -> None:
        answer = await open_doors.http.post("/tools/invoke", content=body)
        assert answer.status_code == 400
        shown = answer.json()
        assert shown["ok"] is False and shown["error"]["code"] == "INVALID_REQUEST" and shown["error"]["message"]

    @pytest.mark.parametrize("tool", ["sessions_lst", "", "chat.send", "x" * 5000, "../etc", "SESSIONS_LIST"])
    async def test_an_unknown_tool_is_404_and_names_those_there_are(self, open_doors: Doors, tool: str) -> None:
        answer = await open_doors.invoke(tool=tool)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["details"]["code"]) == (404, "NOT_FOUND", "unknown_tool")
        assert "sessions_list" in error["message"] and len(error["message"]) < 500

    @pytest.mark.parametrize("header", [{}, {"Authorization": ""}, {"Authorization": "Bearer wrong"}])
    async def test_without_a_token_it_is_401(self, open_doors: Doors, header: dict[str, str]) -> None:
        del open_doors.http.headers["Authorization"]
        for body in ({"tool": "sessions_list"}, {"tool": "unknown"}, {}):
            answer = await open_doors.http.post("/tools/invoke", json=body, headers=header)
            assert answer.status_code == 401 and answer.json()["ok"] is False
            assert answer.headers["WWW-Authenticate"] == "Bearer"

    async def test_a_token_in_the_query_is_no_token(self, open_doors: Doors) -> None:
        del open_doors.http.headers["Authorization"]
        answer = await open_doors.http.post(f"/tools/invoke?token={OPERATOR}", json={"tool": "sessions_list"})
        assert answer.status_code == 401

    async def test_too_large_a_body_is_413(self, open_doors: Doors) -> None:
        answer = await open_doors.invoke(tool="sessions_list", args={"search": "x" * (1024 * 1024)})
        assert answer.status_code == 413 and answer.json()["error"]["details"]["code"] == "payload_too_large"

    async def test_only_post_is_served(self, open_doors: Doors) -> None:
        for method in ("GET", "PUT", "DELETE"):
            assert (await open_doors.http.request(method, "/tools/invoke")).status_code == 405

    async def test_an_outcome_of_a_tool_is_200_whatever_it_is(self, open_doors: Doors) -> None:
        for key, status in (("cron:never", "error"), ("agent:ops:main", "forbidden")):
            answer = await open_doors.invoke(tool="sessions_history", args={"sessionKey": key}, sessionKey=CRON)
            assert answer.status_code == 200 and answer.json()["ok"] is True
            assert answer.json()["result"]["status"] == status

    async def test_an_idempotency_key_is_taken(self, open_doors: Doors) -> None:
        answers = [await open_doors.invoke(tool="agents_list", idempotencyKey="k") for _ in range(2)]
        assert answers[0].json() == answers[1].json() and answers[0].status_code == 200


class TestExplain:
    async def explain(self, open_doors: Doors, **params: Any) -> dict[str, Any]:
        return await open_doors.client.ask("policy.explain", **params)

    async def test_it_tells_what_each_tool_and_a_send_would_do(self, open_doors: Doors) -> None:
        told = await self.explain(open_doors, caller=CRON, target="agent:ops:main")
        assert (told["caller"], told["target"]) == (CRON, "agent:ops:main")
        assert [tool["what"] for tool in told["tools"]] == [
            *("sessions_list", "sessions_history", "sessions_search", "session_status", "sessions_send"),
        ]
        for tool in told["tools"]:
            assert tool["allowed"] is False and tool["rule"] == "tools.sessions.visibility"
            assert '"all" would allow it' in tool["reason"]
        assert told["send"] == {
            "what": "send",
            "allowed": True,
            "reason": 'no rule denies, and session.sendPolicy.default is "allow"',
            "rule": "session.sendPolicy.default",
        }

    async def test_what_it_says_is_what_the_tools_do(self, open_doors: Doors) -> None:
        for caller in (None, MAIN, CRON, "agent:ops:main"):
            for target in (CRON, "agent:main:subagent:u1", "agent:ops:main"):
                named = {} if caller is None else {"caller": caller}
                told = await self.explain(open_doors, target=target, **named)
                answer = await open_doors.gateway.tools(caller).sessions_history(target)
                assert {tool["allowed"] for tool in told["tools"]} == {"sessionId" in answer}

    async def test_an_operator_sees_every_session(self, open_doors: Doors) -> None:
        told = await self.explain(open_doors, target="cron:nightly")
        assert told["caller"] == "operator" and told["target"] == CRON
        assert all(tool["allowed"] for tool in told["tools"])

    async def test_a_channel_and_a_chat_type_can_be_supposed(self, shelf: Shelf) -> None:
        rule = {"match": {"channel": "discord", "chatType": "group"}, "action": "deny"}
        config = {**CONFIG, "session": {"sendPolicy": {"rules": [rule]}}}
        async with doors(shelf, config, ScriptedModel()) as open_doors:
            plain = await self.explain(open_doors, target="main")
            supposed = await self.explain(open_doors, target="main", channel="discord", chatType="group")
            in_key = await self.explain(open_doors, target="discord:group:7")
        assert plain["send"]["allowed"] is True
        assert supposed["send"]["allowed"] is in_key["send"]["allowed"] is False
        assert supposed["send"]["rule"] == "session.sendPolicy.rules[0]"

    async def test_a_shadow_is_told_as_one(self, shelf: Shelf) -> None:
        config = {**CONFIG, "session": {"sendPolicy": {"default": "deny", "shadow": True}}}
        async with doors(shelf, config, ScriptedModel()) as open_doors:
            send = (await self.explain(open_doors, target="main"))["send"]
            assert send["allowed"] is True and "session.sendPolicy.shadow is true" in send["reason"]
            assert open_doors.gateway.runtime.guard.shadowed == 0

    @pytest.mark.parametrize(
        "params", [{}, {"target": "::"}, {"target": "main", "chatType": "crowd"}, {"target": "current"}, {"target": 7}]
    )
    async def test_what_cannot_be_explained_is_an_error(self, open_doors: Doors, params: dict[str, Any]) -> None:
        error = await open_doors.client.refused("policy.explain", params)
        assert error["code"] == "INVALID_REQUEST"
