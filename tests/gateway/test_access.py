"""Access through a socket: each caller and the methods it may call."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog
import websockets

from backchannel.gateway.table import METHODS
from backchannel.gateway.ws.throttling import CREDENTIAL_FAILURES
from backchannel.wire.frames import TokenScope

from .client import OPERATOR, Client, Refused, opened
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

ADMIN = {
    "agents.forget",
    "budgets.reset",
    "cron.add",
    "cron.remove",
    "cron.update",
    "device.pair.list",
    "device.pair.remove",
    "device.token.revoke",
    "sessions.reset",
    "sessions.delete",
    "tokens.create",
    "tokens.list",
    "tokens.revoke",
    "slots.end",
    "approval.resolve",
    "approvals.answer",
    "channels.pairing.approve",
    "channels.pairing.dismiss",
    "pairing.approve",
    "pairing.deny",
    "pairing.remove",
    "plugin.approval.resolve",
    "transcripts.list",
    "transcripts.rebuild",
}
WRITE = {
    "agent",
    "chat.send",
    "chat.abort",
    "chat.inject",
    "cron.run",
    "channels.test",
    "deliveries.confirm",
    "deliveries.drop",
    "deliveries.reroute",
    "deliveries.retry",
    "message.action",
    "node.event",
    "node.message",
    "node.pluginTools.update",
    "node.runnerInventory.update",
    "node.skills.update",
    "runs.retry",
    "wake",
    "send",
    "sessions.abort",
    "sessions.create",
    "sessions.compact",
    "sessions.patch",
    "slots.end",
    "sessions.send",
}


def test_every_method_has_the_scope_it_should() -> None:
    for name, method in METHODS.items():
        expected = TokenScope.ADMIN if name in ADMIN else TokenScope.WRITE if name in WRITE else TokenScope.READ
        assert method.scope is expected, name


@pytest.mark.parametrize("asked", ["read", "write", "admin"])
async def test_each_method_needs_its_scope(world: World, asked: str) -> None:
    granted = {"read": 0, "write": 1, "admin": 2}[asked]
    async with world.client(scopes=[asked]) as client:
        for name, method in METHODS.items():
            error = await client.refused(name, ["not an object"])
            is_open = list(TokenScope).index(method.scope) <= granted
            refusal = "forbidden" if method.for_nodes else "scope_missing"
            assert error["details"]["code"] == ("bad_params" if is_open and not method.for_nodes else refusal), name


async def test_a_stored_token_gets_no_more_than_it_has(client: Client, world: World) -> None:
    made = await client.ask("tokens.create", scopes=["write"], label="for the script")
    assert made["scopes"] == ["operator.read", "operator.write"]
    async with world.client(made["token"], scopes=["operator.admin", "operator.approvals"]) as limited:
        assert limited.hello["auth"]["scopes"] == ["operator.read", "operator.write"]
        error = await limited.refused("tokens.list")
        assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "scope_missing")
        assert error["details"]["scope"] == "operator.admin"


async def test_a_list_of_tokens_shows_none_of_them(client: Client) -> None:
    made = await client.ask("tokens.create", scopes=["read"], label="reader")
    listed = await client.ask("tokens.list")
    assert made["token"] not in json.dumps(listed)
    assert listed["tokens"][0]["id"] == made["id"] and listed["tokens"][0]["label"] == "reader"


async def test_a_revoked_token_loses_its_connections_and_does_not_come_in_again(client: Client, world: World) -> None:
    made = await client.ask("tokens.create", scopes=["read"])
    async with world.client(made["token"]) as other:
        assert await client.ask("tokens.revoke", id=made["id"]) == {"ok": True, "id": made["id"]}
        assert await other.closed() == 1008
    async with opened(world.url) as again:
        with pytest.raises(Refused):
            await again.connect(made["token"])
    assert (await client.refused("tokens.revoke", {"id": made["id"]}))["details"]["code"] == "token_not_found"
    assert (await client.ask("tokens.list"))["tokens"][0]["revokedAt"] > 0


@pytest.mark.parametrize(
    "given",
    [{}, {"scopes": []}, {"scopes": ["root"]}, {"scopes": ["read"], "sessionKey": "main"}],
)
async def test_a_token_without_a_clear_purpose_is_not_made(client: Client, given: dict[str, Any]) -> None:
    assert (await client.refused("tokens.create", given))["details"]["code"] == "bad_params"
    assert (await client.ask("tokens.list"))["tokens"] == []


async def test_an_agents_token_needs_a_session_that_exists_or_a_main_one(client: Client) -> None:
    error = await client.refused("tokens.create", {"sessionKey": "cron:never"})
    assert error["details"]["code"] == "session_not_found"
    error = await client.refused("tokens.create", {"sessionKey": "agent:nobody:main"})
    assert error["details"]["code"] == "unknown_agent"
    assert (await client.ask("tokens.create", sessionKey="main"))["sessionKey"] == "agent:main:main"


class TestAgentTokens:
    async def test_it_may_use_the_tools_and_wait_for_runs_of_its_own_session_and_do_nothing_else(
        self, client: Client, world: World
    ) -> None:
        own = await client.run(message="hi", agentId="echo")
        other = await client.run(message="hi", agentId="main")
        made = await client.ask("tokens.create", sessionKey="agent:echo:main")
        async with world.client(made["token"]) as agent:
            assert agent.hello["auth"] == {"role": "agent", "scopes": []}
            assert (await agent.ask("agent.wait", runId=own["runId"]))["reply"] == "echo hi"
            refused = [await agent.refused("agent.wait", {"runId": id}) for id in (other["runId"], "nothing")]
            assert [error["details"]["code"] for error in refused] == ["forbidden", "forbidden"]
            assert refused[0]["message"] == refused[1]["message"]
            status = await agent.ask("tools.invoke", tool="session_status")
            assert status["result"]["agentId"] == "echo"
            for name in METHODS.keys() - {"agent.wait", "tools.invoke"}:
                error = await agent.refused(name, {})
                assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "forbidden"), name

    async def test_it_may_wait_for_the_run_that_its_send_started_and_for_no_other_of_the_exchange(
        self, make_world: MakeWorld
    ) -> None:
        seeing = {"tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}}
        async with make_world(seeing) as world, world.client() as client:
            tokens = {
                agent: (await client.ask("tokens.create", sessionKey=f"agent:{agent}:main"))["token"]
                for agent in ("echo", "main")
            }
            await client.run(message="hi", agentId="echo")
            run = await client.ask("chat.send", sessionKey="agent:held:main", message="hi")
            async with world.client(tokens["echo"]) as echo, world.client(tokens["main"]) as other:
                args = {"sessionKey": "agent:held:main", "message": "hello", "timeoutSeconds": 0}
                sent = (await echo.ask("tools.invoke", tool="sessions_send", args=args))["result"]
                assert (await echo.ask("agent.wait", runId=sent["runId"], timeoutMs=0))["queued"] is True
                refused = [
                    await asking.refused("agent.wait", {"runId": id, "timeoutMs": 0})
                    for asking, id in ((other, sent["runId"]), (echo, run["runId"]), (other, "nothing"))
                ]
                assert len({error["message"] for error in refused}) == 1
                assert {error["details"]["code"] for error in refused} == {"forbidden"}
                world.release.set()
                assert (await echo.ask("agent.wait", runId=sent["runId"]))["reply"].startswith("released hello")
                await client.event("delivery", state="sent")
                story = (await client.ask("exchanges.get", runId=sent["runId"]))["exchange"]
                theirs = [shown for shown in story["runs"] if shown["sessionKey"] == "agent:held:main"]
                assert {shown["kind"] for shown in theirs} == {"primary", "turn", "announce"}
                for shown in theirs[1:]:
                    await echo.refused("agent.wait", {"runId": shown["runId"], "timeoutMs": 0})

    async def test_it_may_wait_for_the_run_that_its_spawn_started(self, client: Client, world: World) -> None:
        await client.run(message="hi", agentId="echo")
        tokens = [
            (await client.ask("tokens.create", sessionKey=f"agent:{agent}:main"))["token"] for agent in ("echo", "main")
        ]
        async with world.client(tokens[0]) as echo, world.client(tokens[1]) as other:
            spawned = (await echo.ask("tools.invoke", tool="sessions_spawn", args={"task": "say it"}))["result"]
            assert (await echo.ask("agent.wait", runId=spawned["runId"]))["status"] == "ok"
            await other.refused("agent.wait", {"runId": spawned["runId"]})

    async def test_asking_for_scopes_gives_it_none(self, client: Client, world: World) -> None:
        made = await client.ask("tokens.create", sessionKey="main")
        async with world.client(made["token"], scopes=["admin"]) as agent:
            assert agent.hello["auth"]["scopes"] == []
            await agent.refused("health")

    async def test_it_hears_no_events_of_sessions(self, client: Client, world: World) -> None:
        made = await client.ask("tokens.create", sessionKey="agent:echo:main")
        async with world.client(made["token"]) as agent:
            ended = await client.run(message="hi", agentId="echo")
            await agent.ask("agent.wait", runId=ended["runId"])
            assert [frame["event"] for frame in agent.events] == ["connect.challenge"]


async def test_a_wrong_token_is_slowed_down_and_a_right_one_is_not(client: Client, world: World) -> None:
    for _ in range(CREDENTIAL_FAILURES):
        async with opened(world.url) as guesser:
            with pytest.raises(Refused):
                await guesser.connect("wrong")
    async with opened(world.url) as guesser:
        with pytest.raises(Refused) as slowed:
            await guesser.connect("wrong")
        assert slowed.value.code == "rate_limited"
        assert slowed.value.error["retryable"] is True
        assert slowed.value.error["retryAfterMs"] > 0
        assert await guesser.closed() == 1008
    async with world.client() as another:
        assert (await another.ask("health"))["ok"] is True
    assert (await client.ask("health"))["ok"] is True


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_a_foreign_page_is_told_why_it_cannot_connect_and_nothing_else(world: World, origin: str) -> None:
    async with opened(world.url, additional_headers={"Origin": origin}) as page:
        with pytest.raises(Refused, match="allowedOrigins") as refused:
            await page.connect(OPERATOR)
        assert refused.value.error["code"] == "FORBIDDEN"
        assert refused.value.code == "CONTROL_UI_ORIGIN_NOT_ALLOWED"
        assert await page.closed() == 1008
        assert [frame["event"] for frame in page.events] == ["connect.challenge"]


async def test_a_foreign_page_cannot_try_tokens_or_ask_anything(world: World) -> None:
    for _ in range(CREDENTIAL_FAILURES + 1):
        async with opened(world.url, additional_headers={"Origin": "https://evil.example"}) as page:
            with pytest.raises(Refused) as refused:
                await page.connect("a-guess")
            assert refused.value.code == "CONTROL_UI_ORIGIN_NOT_ALLOWED", "whether the token is right is not looked at"
    async with opened(world.url, additional_headers={"Origin": "https://evil.example"}) as page:
        assert (await page.refused("health"))["details"]["code"] == "CONTROL_UI_ORIGIN_NOT_ALLOWED"
        assert await page.closed() == 1008
    async with world.client() as operator:
        assert (await operator.ask("health"))["ok"] is True


async def test_a_page_of_the_gateway_or_a_configured_one_can(make_world: MakeWorld) -> None:
    theirs = {"allowedOrigins": ["https://control.example"]}
    config = {"gateway": {"allowedOrigins": ["https://chat.example"], "controlUi": theirs}}
    async with make_world(config) as world:
        for origin in (world.at.url, "https://chat.example", "https://control.example"):
            async with opened(world.url, additional_headers={"Origin": origin}) as client:
                await client.connect()


async def test_a_name_that_is_not_the_gateways_is_refused(world: World) -> None:
    url = world.url.replace("127.0.0.1", "evil.example")
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(url, host="127.0.0.1", port=world.at.port)
    assert refused.value.response.status_code == 403


async def test_a_token_in_the_query_is_not_looked_at(world: World) -> None:
    async with opened(f"{world.url}?token={OPERATOR}") as client:
        with pytest.raises(Refused):
            await client.connect(None)


async def test_no_secret_is_logged(world: World) -> None:
    with structlog.testing.capture_logs() as logs:
        async with opened(f"{world.url}?token={OPERATOR}") as client:
            with pytest.raises(Refused):
                await client.connect("a-wrong-guess")
        async with world.client() as operator:
            made = await operator.ask("tokens.create", scopes=["read"])
            await operator.refused("runs.list", {"token": OPERATOR})
    text = repr(logs)
    assert "login refused" in text
    for secret in (OPERATOR, "a-wrong-guess", made["token"]):
        assert secret not in text
