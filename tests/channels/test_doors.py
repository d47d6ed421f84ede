"""Deliveries through the doors: methods, events, and replies that `agent` and `chat.send` have delivered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backchannel.cli.main import app
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.sessions import Address
from tests.channels.desk import desk
from tests.gateway.client import OPERATOR, connected
from tests.support.far_end import FarEnd, Fault
from tests.support.gateways import MAIN, session_of, texts_of

pytestmark = pytest.mark.anyio
S = DeliveryState


async def test_send_answers_with_a_receipt_and_events_tell_what_follows(tmp_path: Path) -> None:
    async with (
        FarEnd() as far_end,
        desk(tmp_path, {"desk": far_end.settings()}) as world,
        connected(world.url) as client,
    ):
        await client.ask("sessions.subscribe")
        sent = await client.ask("send", channel="desk", to="C", message="hello", idempotencyKey="k")
        assert sent["state"] == "pending" and sent["sessionKey"] == "agent:main:main" and sent["to"] == "C"
        told = await client.event("delivery", id=sent["id"], state="sent")
        assert "text" not in told and told["channel"] == "desk"
        again = await client.ask("send", channel="desk", to="C", message="hello", idempotencyKey="k")
        assert again["id"] == sent["id"] and again["state"] == "sent"
        assert again["parts"] == [{"n": 1, "state": "sent", "messageId": "m1", "attempts": 1}]
        other = {"channel": "desk", "to": "C", "message": "other", "idempotencyKey": "k"}
        assert (await client.refused("send", other))["details"]["code"] == "idempotency_conflict"
        nowhere = await client.refused("send", {"channel": "fax", "to": "C", "message": "x"})
        assert nowhere["details"]["code"] == "unknown_channel" and "desk" in nowhere["message"]
        assert (await client.refused("send", {"channel": "desk", "to": "C", "message": " "}))["message"]
    assert far_end.texts == ["hello"]


async def test_failed_deliveries_are_listed_retried_rerouted_and_dropped(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        far_end.then(*[Fault(404)] * 3)
        async with connected(world.url) as client:
            ids = [(await client.ask("send", channel="desk", to=f"C{n}", message=f"t{n}"))["id"] for n in range(3)]
            for delivery_id in ids:
                await world.becomes(S.FAILED, delivery_id)
            page = await client.ask("deliveries.list", state="failed", limit=2)
            rest = await client.ask("deliveries.list", state="failed", limit=2, cursor=page["nextCursor"])
            assert [row["id"] for row in page["deliveries"] + rest["deliveries"]] == ids[::-1]
            assert page["hasMore"] and not rest["hasMore"]
            await client.ask("deliveries.retry", id=ids[0])
            await client.ask("deliveries.reroute", id=ids[1], channel="desk", to="elsewhere")
            await client.ask("deliveries.drop", id=ids[2])
            await world.becomes(S.SENT, ids[0])
            await world.becomes(S.SENT, ids[1])
            states = {row["id"]: row["state"] for row in (await client.ask("deliveries.list"))["deliveries"]}
            assert [states[delivery_id] for delivery_id in ids] == ["sent", "sent", "dropped"]
            refused = await client.refused("deliveries.retry", {"id": ids[2]})
            assert refused["details"]["code"] == "bad_params" and "dropped" in refused["message"]
            unknown = await client.refused("deliveries.get", {"id": "nobody"})
            assert unknown["details"]["code"] == "delivery_not_found"
    assert sorted((message.to, message.text) for message in far_end.messages) == [("C0", "t0"), ("elsewhere", "t1")]


async def test_a_reply_is_delivered_where_the_call_says_and_only_if_it_says_so(tmp_path: Path) -> None:
    async with (
        FarEnd() as far_end,
        desk(tmp_path, {"desk": far_end.settings()}) as world,
        connected(world.url) as client,
    ):
        place = {"channel": "desk", "to": "Named", "accountId": "work"}
        await client.run(message="one", sessionKey="agent:main:side", deliver=True, **place)
        await far_end.took(1)
        await client.run(message="two", sessionKey="agent:main:side", **place)
        await world.say(chatId="Ann's")
        await far_end.took(2)
        sent = await client.ask("chat.send", sessionKey="main", message="three", deliver=True)
        await client.event("chat", runId=sent["runId"], state="final")
        await far_end.took(3)
        alone = await client.run(message="four", sessionKey="agent:main:alone", deliver=True)
        nowhere = await world.becomes(S.NO_CHANNEL)
        assert nowhere.delivery.run_id == alone["runId"]
    assert [(message.to, message.account_id) for message in far_end.messages] == [
        ("Named", "work"),
        ("Ann's", None),
        ("Ann's", None),
    ]
    assert far_end.texts[0] == "re: one" and far_end.texts[2] == "re: three"


async def test_a_command_of_an_operator_is_carried_out_at_once_and_never_reaches_the_model(tmp_path: Path) -> None:
    async with (
        desk(tmp_path, {}) as world,
        connected(world.url) as client,
        connected(world.url, scopes=["write"]) as guest,
    ):
        await client.run(message="hello")
        before = await session_of(world.gateway)
        for _ in range(2):
            done = await client.ask("chat.send", sessionKey="main", message="/new", idempotencyKey="n")
            assert (done["runId"], done["status"]) == ("n", "ok") and "new conversation" in done["reply"]
        told = await client.event("chat", runId="n", state="final")
        assert "new conversation" in told["message"]["content"][0]["text"]
        after = await session_of(world.gateway)
        assert after.session_id != before.session_id and await texts_of(world.gateway) == []
        denied = await guest.ask("chat.send", sessionKey="main", message="/send off")
        told = await guest.event("chat", runId=denied["runId"])
        assert "owners" in told["message"]["content"][0]["text"]
        await client.ask("chat.send", sessionKey="main", message="/send off")
        assert (await session_of(world.gateway)).send_policy == "deny"
        await client.ask("chat.send", sessionKey="main", message="/send on")  # commands pass the policy


async def test_the_command_line_shows_and_settles_deliveries(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:

        async def program(*words: str) -> str:
            env = {"BACKCHANNEL_URL": world.url.removesuffix("/ws"), "BACKCHANNEL_TOKEN": OPERATOR}
            done = await asyncio.to_thread(CliRunner().invoke, app, list(words), env=env)
            assert done.exit_code == 0, done.output
            return done.output

        assert "There are no deliveries." in await program("deliveries")
        far_end.then(Fault(404, body="no such chat"))
        post = Post(session_key=MAIN, address=Address(channel="desk", to="C"), text="hello")
        delivery_id = await world.send(post)
        await world.becomes(S.FAILED, delivery_id)
        listed = await program("deliveries", "list", "--status", "failed")
        assert delivery_id in listed and "desk C" in listed and "no such chat" in listed
        assert "no such chat" in await program("deliveries", "show", delivery_id)
        assert "to        desk D" in await program("deliveries", "reroute", delivery_id, "desk", "D")
        await world.becomes(S.SENT, delivery_id)
        assert "2 sent as m1" in await program("deliveries", "show", delivery_id)
        far_end.then(Fault(404), Fault(404))
        other = await world.send(post)
        await world.becomes(S.FAILED, other)
        await program("deliveries", "retry", other)
        failures = [S.FAILED, S.PENDING, S.SENDING, S.FAILED]
        await world.heard.until(lambda: world.states(other)[-4:] == failures)
        assert "dropped" in await program("deliveries", "drop", other)


async def test_the_commands_are_listed(tmp_path: Path) -> None:
    async with desk(tmp_path, {}) as world, connected(world.url) as client:
        listed = {command["name"]: command for command in (await client.ask("commands.list"))["commands"]}
    assert listed["send"]["backchannel"]["needs"] == "owner"
    assert (listed["stop"]["backchannel"]["usage"], listed["stop"]["acceptsArgs"]) == ("/stop", False)
    assert (listed["model"]["textAliases"], listed["model"]["acceptsArgs"]) == (["/model"], True)
