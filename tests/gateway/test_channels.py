"""`channels.list` and `channels.test`, and the tools that `agents.list` tells of, through a socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backchannel.core.delivery.channels import Channel, ChannelSilent, ChannelUnusable, InboundTaker, OutboundPart, Sent
from tests.support.far_end import FarEnd, Fault, event, signed
from tests.support.gateways import settled

from .client import Client
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio


async def test_webchat_is_a_channel_and_nothing_waits_there(client: Client) -> None:
    (webchat,) = (await client.ask("channels.list"))["channels"]
    assert webchat == {
        "name": "webchat", "adapter": "webchat", "status": "ok", "waiting": 0, "failed": 0, "uncertain": 0,
    }  # fmt: skip


async def test_a_channel_shows_what_failed_and_its_settings_without_a_secret(make_world: MakeWorld) -> None:
    async with FarEnd() as far_end:
        far_end.then(Fault(404))
        settings = {**far_end.settings(), "owners": ["u1"], "requireMention": False}
        async with make_world({"channels": {"desk": settings}}) as world, world.client() as client:
            await client.ask("sessions.subscribe")
            body, headers = signed(event(text="hello"))
            await world.gateway.inbound.post("desk", body, headers)
            await client.event("delivery", state="failed")
            _, shown = (await client.ask("channels.list"))["channels"]
            await settled(world.gateway)
    assert (shown["name"], shown["adapter"], shown["status"]) == ("desk", "bridge", "ok")
    assert (shown["waiting"], shown["failed"], shown["uncertain"]) == (0, 1, 0) and shown["since"] > 0
    assert shown["settings"]["owners"] == ["u1"] and shown["settings"]["requireMention"] is False
    assert settings["secret"] not in json.dumps(shown) and settings["url"] not in json.dumps(shown)


class Broken(Channel):
    """A channel whose platform cannot be reached."""

    name = "broken"

    async def send(self, part: OutboundPart) -> Sent:
        return Sent()

    async def run(self, inbound: InboundTaker) -> None:
        raise ConnectionError("nobody is there")


async def test_a_channel_that_is_down_says_why_and_since_when(client: Client, world: World) -> None:
    world.gateway.add_channel(Broken())
    shown = {"status": "ok"}
    while shown["status"] == "ok":
        _, shown = (await client.ask("channels.list"))["channels"]
    assert shown["adapter"] == "Broken" and shown["lastError"] == "ConnectionError: nobody is there"
    assert int(shown["since"]) > 0


class Frail(Broken):
    """A channel that can be asked who it is, and fails at that in one way or another."""

    name = "frail"

    def __init__(self, answer: str | Exception) -> None:
        self._answer = answer

    async def run(self, inbound: InboundTaker) -> None: ...

    async def test(self) -> str:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "status", "detail"),
    [
        ("@my_bot, id 42", "ok", "@my_bot, id 42"),
        ("@\x1b[2Jbot\nid 42", "ok", "@ bot id 42"),
        (ChannelUnusable("the token is wrong"), "failed", "the token is wrong"),
        (ChannelSilent("nobody answers"), "failed", "nobody answers"),
        (RuntimeError("with a secret"), "failed", "the channel failed: RuntimeError"),
    ],
)
async def test_a_channel_is_asked_who_it_is(
    client: Client, world: World, answer: str | Exception, status: str, detail: str
) -> None:
    world.gateway.add_channel(Frail(answer))
    assert await client.ask("channels.test", name="frail") == {"name": "frail", "status": status, "detail": detail}


@pytest.mark.parametrize(
    "answer", ["by swordfish", ChannelSilent("no 0123456789abcdef by swordfish, password=hunter2")]
)
async def test_no_secret_is_in_what_a_channel_says_of_itself(make_world: MakeWorld, answer: str | Exception) -> None:
    desk = {"adapter": "bridge", "url": "http://localhost:1/?key=swordfish", "secret": "0123456789abcdef"}
    async with make_world({"channels": {"desk": desk}}) as world, world.client() as client:
        world.gateway.add_channel(Frail(answer))
        told = (await client.ask("channels.test", name="frail"))["detail"]
    assert told in ("by [hidden]", "no [hidden] by [hidden], password=[redacted]")


async def test_what_cannot_be_asked_says_so_and_trying_needs_the_scope_write(client: Client, world: World) -> None:
    world.gateway.add_channel(Broken())
    assert (await client.ask("channels.test", name="broken"))["status"] == "untested"
    assert (await client.ask("channels.test", name="webchat"))["status"] == "ok"
    assert (await client.refused("channels.test", {"name": "fax"}))["details"]["code"] == "unknown_channel"
    assert (await client.refused("channels.test", {}))["details"]["code"] == "bad_params"
    reader = await client.ask("tokens.create", scopes=["read"])
    async with world.client(reader["token"]) as other:
        assert (await other.refused("channels.test", {"name": "broken"}))["details"]["code"] == "scope_missing"


async def test_an_agent_is_listed_with_its_tools_and_why_it_lacks_others(make_world: MakeWorld) -> None:
    agents = [
        {"id": "main", "default": True, "tools": {"deny": ["sessions_send"]}, "subagents": {"allowAgents": ["*"]}},
        {"id": "other"},
    ]
    async with make_world({"agents": {"list": agents}}) as world, world.client() as client:
        told = {agent["id"]: agent["backchannel"] for agent in (await client.ask("agents.list"))["agents"]}
    tools = {tool["name"]: tool for tool in told["main"]["tools"]}
    assert tools["sessions_list"] == {"name": "sessions_list", "allowed": True}
    assert tools["sessions_send"]["allowed"] is False
    assert tools["sessions_send"]["because"].startswith("agents.list[main].tools.deny")
    assert told["main"]["subagents"]["allowAgents"] == ["*"]
    lacks = {tool["name"]: tool["because"] for tool in told["other"]["tools"] if not tool["allowed"]}
    assert "sessions_send" not in lacks and "tools.allow" in lacks["exec"]


async def test_an_agent_is_listed_with_its_workspace_if_it_may_use_it(make_world: MakeWorld, tmp_path: Path) -> None:
    agents = [
        {"id": "main", "tools": {"allow": ["group:sessions", "read"]}, "workspace": str(tmp_path / "desk")},
        {"id": "clerk", "tools": {"allow": ["group:exec"]}},
        {"id": "other"},
    ]
    async with make_world({"agents": {"list": agents}}) as world, world.client() as client:
        told = {agent["id"]: agent["backchannel"] for agent in (await client.ask("agents.list"))["agents"]}
    assert told["main"]["workspace"] == str(tmp_path / "desk")
    assert told["clerk"]["workspace"].endswith("agents/clerk/workspace")
    assert "workspace" not in told["other"]
