"""Chat commands of operators: `chat.send` with each scope, and the doors through which the same text is only text."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel
from backchannel.core.commands.commands import COMMANDS, Command, CommandName, Rank, parse
from backchannel.core.contracts import ModelRequest
from backchannel.core.runs import RunState
from backchannel.gateway.app import Gateway
from tests.channels.desk import desk
from tests.support.far_end import FarEnd
from tests.support.gateways import MAIN, Heard, dying, ended, request, running, session_of, settled
from tests.support.talks import A, config, send, talking

from .client import OPERATOR, Client, connected
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
HELD = "agent:held:main"
HOOK_TOKEN = "the-hook-token-of-the-tests"


def text_of(event: dict[str, Any]) -> str:
    return str(event["message"]["content"][0]["text"])


async def command(client: Client, text: str, key: str = "main", **more: Any) -> str:
    """Send a command; its answer and its event say the same."""
    done = await client.ask("chat.send", sessionKey=key, message=text, **more)
    assert done["status"] == "ok"
    told = await client.event("chat", runId=done["runId"], state="final")
    assert text_of(told) == done["reply"] and told["message"]["role"] == "assistant"
    return str(done["reply"])


# Who may


async def test_an_owner_is_who_has_the_scope_admin_and_who_may_only_read_may_not_send_at_all(world: World) -> None:
    async with (
        world.client(scopes=["read"]) as reader,
        world.client(scopes=["write"]) as writer,
        world.client(scopes=["admin"]) as admin,
    ):
        error = await reader.refused("chat.send", {"sessionKey": "main", "message": "/status"})
        assert error["code"] == "FORBIDDEN" and error["details"]["code"] == "scope_missing"
        answer = await command(writer, "/send off")
        assert answer.startswith("/send is for owners only") and "the scope admin" in answer
        assert await world.gateway.store.session(MAIN) is None
        assert (await command(writer, "/status")).startswith("Status: idle")
        assert "/send" not in await command(writer, "/help")
        assert "held back" in await command(admin, "/SEND: off")
        assert (await session_of(world.gateway)).send_policy == "deny"
        assert "/send on|off|inherit" in await command(admin, "/help")


async def test_an_agents_token_has_no_commands(world: World, client: Client) -> None:
    await client.run(message="hello", sessionKey="agent:echo:main")
    token = (await client.ask("tokens.create", sessionKey="agent:echo:main"))["token"]
    async with world.client(token) as agent:
        error = await agent.refused("chat.send", {"sessionKey": "main", "message": "/stop"})
        assert error["details"]["code"] == "forbidden"


# What comes of it


async def test_every_command_is_answered_and_none_is_in_the_history(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: f"re: {request.messages[-1].text}")
    async with desk(tmp_path, {}, model=model) as world, connected(world.url) as client:
        await client.ask("sessions.messages.subscribe", key="main")
        run = await client.ask("chat.send", sessionKey="main", message="hello")
        await client.event("chat", runId=run["runId"], state="final")
        told = [await command(client, f"/{spec.name} {form}") for spec in COMMANDS for form in ("", "list", "on", "?")]
        last = await client.ask("chat.send", sessionKey="main", message="the end")
        await client.event("chat", runId=last["runId"], state="final")
        history = json.dumps(await client.ask("chat.history", sessionKey="main"))
        heard = json.dumps([*client.seen("session.message"), *client.seen("agent")])
        read = json.dumps([[message.text for message in request.messages] for request in model.requests])
    for where in (history, heard, read):
        assert "the end" in where
        assert [text for text in told if json.dumps(text)[1:-1] in where] == []
        assert [spec.name for spec in COMMANDS if f"/{spec.name}" in where] == []
    assert len(model.requests) == 2


async def test_a_command_does_not_wait_for_the_run_that_is_under_way(world: World, client: Client) -> None:
    first = await client.ask("chat.send", sessionKey=HELD, message="think")
    second = await client.ask("chat.send", sessionKey=HELD, message="this waits")
    status = await command(client, "/status", HELD)
    assert re.match(r"Status: running for \d+s, 1 message waiting", status)
    assert await command(client, "/stop", HELD) == "Stopped 1 run."
    assert (await ended(world.gateway, first["runId"])).state is RunState.ABORTED
    history = await client.ask("chat.history", sessionKey=HELD)
    assert "/" not in json.dumps([message["content"] for message in history["messages"] + history["pending"]])
    world.release.set()
    assert (await ended(world.gateway, second["runId"])).state is RunState.OK


async def test_a_command_under_the_same_key_is_carried_out_once_and_answered_again(
    world: World, client: Client
) -> None:
    await client.run(message="hello", sessionKey="agent:echo:main")
    said = {"sessionKey": "agent:echo:main", "message": "/new", "idempotencyKey": "k"}
    first = await client.ask("chat.send", **said)
    session = await session_of(world.gateway, "agent:echo:main")
    async with world.client() as later:
        assert await later.ask("chat.send", **said) == first
        assert text_of(await later.event("chat", runId="k")) == first["reply"]
    assert (await session_of(world.gateway, "agent:echo:main")).session_id == session.session_id
    for other in ({**said, "message": "/stop"}, {**said, "message": "hello"}, {**said, "sessionKey": "main"}):
        assert (await client.refused("chat.send", other))["details"]["code"] == "idempotency_conflict"


async def test_a_command_for_a_transcript_that_is_gone_is_refused(world: World, client: Client) -> None:
    await client.run(message="hello", sessionKey="agent:echo:main")
    session = await session_of(world.gateway, "agent:echo:main")
    said = {"sessionKey": "agent:echo:main", "message": "/new", "sessionId": session.session_id}
    await client.ask("chat.send", **said)
    assert (await client.refused("chat.send", said))["details"]["code"] == "session_id_replaced"


async def test_an_answer_is_for_whoever_wrote_the_command(world: World, client: Client) -> None:
    async with world.client() as other:
        await other.ask("chat.history", sessionKey="main")
        await other.ask("sessions.subscribe")
        await command(client, "/status")
        await other.ask("health")
        assert other.seen("chat") == []


async def test_a_command_is_done_once_though_the_gateway_dies_before_it_answers(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: "hi")
    async with dying(tmp_path, model) as gateway:
        await gateway.ask("main", "hello")
        before = await session_of(gateway)
        first = await _carry_out(gateway, "/new")
    async with running(tmp_path, model) as gateway:
        after = await session_of(gateway)
        assert await _carry_out(gateway, "/new") == first
        assert (await session_of(gateway)).session_id == after.session_id != before.session_id


async def _carry_out(gateway: Gateway, text: str) -> str:
    written = parse(text)
    assert written is not None
    return await gateway.commands.carry_out(written, gateway.key("main"), Rank.OWNER, idempotency_key="k", digest="d")


async def test_stop_counts_the_turn_that_waits_behind_the_run(tmp_path: Path) -> None:
    asked, busy = asyncio.Event(), asyncio.Event()
    a = {"person": [send(timeoutSeconds=0), Reply(text="busy", gate=asyncio.Event(), reached=busy)]}
    b = {"request": Reply(text="fine", gate=asked)}
    async with talking(tmp_path, config("a", "b"), a=a, b=b) as talk:
        await talk.gateway.ask(A, "ask b")
        await talk.gateway.runtime.submit(request(A, "something else"))
        await busy.wait()
        heard = Heard(talk.gateway)
        asked.set()
        await heard.until(lambda: ("turn", "queued") in [(kind, state) for _, kind, state in talk.runs()])
        written = Command(CommandName.STOP)
        said = await talk.gateway.commands.carry_out(written, talk.gateway.key(A), Rank.OWNER)
        assert said == "Stopped 2 runs."
        await settled(talk.gateway)
        assert [state for _, kind, state in talk.runs() if kind == "turn"] == ["aborted"]


# What is only text


async def _by_agent(world: World, client: Client, text: str) -> str:
    return str((await client.run(message=text, sessionKey="agent:echo:main"))["result"]["payloads"][0]["text"])


async def _by_hook(world: World, client: Client, text: str) -> str:
    async with httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as http:
        headers = {"Authorization": f"Bearer {HOOK_TOKEN}"}
        taken = await http.post("/hooks/agent", json={"message": text, "agentId": "echo"}, headers=headers)
    return str((await ended(world.gateway, taken.json()["runId"])).reply)


async def _by_cron(world: World, client: Client, text: str) -> str:
    await client.ask("cron.add", id="job", schedule="every 1h", message=text, agentId="echo")
    fired = await client.ask("cron.run", id="job")
    return str((await ended(world.gateway, fired["runId"])).reply)


async def _by_node(world: World, client: Client, text: str) -> str:
    async with world.client(role="node", nodeId="kitchen") as node:
        sent = await node.ask("node.message", text=text)
        return str((await ended(world.gateway, sent["runId"])).reply)


async def _by_session(world: World, client: Client, text: str) -> str:
    args = {"sessionKey": "agent:echo:main", "message": text}
    return str((await client.ask("tools.invoke", tool="sessions_send", args=args))["result"]["reply"])


async def _by_openai(world: World, client: Client, text: str) -> str:
    body = {"model": "echo", "user": "u", "messages": [{"role": "user", "content": text}]}
    async with httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as http:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        answer = await http.post("/v1/chat/completions", json=body, headers=headers)
    return str(answer.json()["choices"][0]["message"]["content"])


async def _by_lines(world: World, client: Client, text: str) -> str:
    sent = await client.ask("chat.send", sessionKey="agent:echo:main", message=f"{text}\nnow")
    return text_of(await client.event("chat", runId=sent["runId"], state="final"))


Door = Callable[[World, Client, str], Awaitable[str]]
DOORS: tuple[Door, ...] = (_by_agent, _by_hook, _by_cron, _by_node, _by_session, _by_openai, _by_lines)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("text", ["/stop", "/new"])
async def test_what_is_not_a_persons_message_is_only_text(make_world: MakeWorld, door: Door, text: str) -> None:
    settings = {
        "agents": {"list": [{"id": "echo", "default": True}, {"id": "held"}, {"id": "broken"}]},
        "hooks": {"enabled": True, "token": HOOK_TOKEN},
        "gateway": {"http": {"chatCompletions": True}},
    }
    async with make_world(settings) as world, world.client() as client:
        assert text in await door(world, client, text)
        await settled(world.gateway)


async def test_what_an_agent_sends_to_a_session_at_work_stops_nothing_there(tmp_path: Path) -> None:
    gate = asyncio.Event()

    def replies(request: ModelRequest) -> Scripted:
        return Reply(text="fine", gate=gate)

    async with FarEnd() as far_end:
        model = ScriptedModel(replies=replies)
        async with desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
            said = await world.say(text="think")
            await model.asked()
            sent = await world.gateway.tools(None).sessions_send(sessionKey="main", message="/stop", timeoutSeconds=0)
            assert sent["status"] == "accepted"
            gate.set()
            assert (await ended(world.gateway, said["runId"])).state is RunState.OK
            assert (await ended(world.gateway, sent["runId"])).state is RunState.OK
            assert "/stop" in model.requests[1].messages[-1].text
            await settled(world.gateway)
