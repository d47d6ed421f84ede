"""Deliveries to webchat: the message is in the transcript, and its `chat` event follows the commit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.contracts import ModelFailed
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.facts import DeliveryChanged
from backchannel.core.messages import Role
from backchannel.core.sessions import WEBCHAT, Address, write_address
from tests.support.gateways import Heard, dying, running, settled, transcript_of
from tests.support.talks import A, B, Player, config, send
from tests.tools.door import Doors, doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

AB = config("a", "b")


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path / "state")
    shelf.session(B, "hello", delivery_context=write_address(WEBCHAT))
    return shelf


def players(announce: Any = "We have talked.") -> list[Any]:
    return [Player("a", person=send()).model, Player("b", request="fine", announce=announce, person="hi").model]


async def receipt_of(open_doors: Doors) -> dict[str, Any]:
    (receipt,) = (await open_doors.client.ask("deliveries.list"))["deliveries"]
    return dict(receipt)


async def test_an_announce_to_webchat_is_a_chat_event_and_one_message(shelf: Shelf) -> None:
    async with doors(shelf, AB, *players()) as open_doors:
        client = open_doors.client
        await client.ask("chat.history", sessionKey=B)  # who reads a chat watches it
        await client.ask("tools.invoke", tool="sessions_send", args={"sessionKey": B, "message": "hello"})
        told = await client.said(state="final")
        (announce,) = [run for run in (await client.ask("runs.list"))["runs"] if run["kind"] == "announce"]
        assert (told["runId"], told["sessionKey"]) == (announce["runId"], B)
        assert told["message"]["role"] == "assistant"
        assert told["message"]["content"] == [{"type": "text", "text": "We have talked."}]
        receipt = await receipt_of(open_doors)
        assert (receipt["state"], receipt["channel"], receipt["runId"]) == ("sent", "webchat", announce["runId"])
        assert "to" not in receipt
        assert [end["runId"] for end in client.seen("chat")].count(announce["runId"]) == 1, "no empty end before it"
        assert told["seq"] > max(event["seq"] for event in client.seen("agent") if event["runId"] == announce["runId"])
        said = [message for message in await transcript_of(open_doors.gateway, B) if message.role is Role.ASSISTANT]
        assert [message.text for message in said].count("We have talked.") == 1


async def test_a_session_only_ever_spoken_to_by_webchat_is_announced_to_there(tmp_path: Path) -> None:
    async with doors(Shelf(tmp_path / "state"), AB, *players()) as open_doors:
        client = open_doors.client
        run = await client.ask("chat.send", sessionKey=B, message="hello")
        await client.event("chat", runId=run["runId"], state="final")
        await client.ask("tools.invoke", tool="sessions_send", args={"sessionKey": B, "message": "hello"})
        sent = await client.event("delivery", state="sent", channel="webchat")
        told = await client.said(runId=sent["runId"])
        assert (told["state"], told["message"]["content"][0]["text"]) == ("final", "We have talked.")


@pytest.mark.parametrize("by", ["rule", "override"])
async def test_the_send_policy_is_asked_for_webchat_too(shelf: Shelf, by: str) -> None:
    denying: dict[str, Any] = {"rules": [{"match": {"channel": "webchat"}, "action": "deny"}]}
    settings = config("a", "b", sendPolicy=denying if by == "rule" else {})
    key = "agent:b:side"
    shelf.session(key, "hello")  # without an address, so that the send itself is not asked about webchat
    gate = asyncio.Event()
    a, b = Player("a"), Player("b", request=Reply(text="fine", gate=gate), announce="We have talked.")
    async with doors(shelf, settings, a.model, b.model) as open_doors:
        client = open_doors.client
        await client.ask("sessions.subscribe")
        listening = Heard(open_doors.gateway)
        sent = await client.ask(
            "tools.invoke", tool="sessions_send", args={"sessionKey": key, "message": "x", "timeoutSeconds": 0}
        )
        shelf.execute("UPDATE sessions SET delivery_context = ? WHERE key = ?", write_address(WEBCHAT), key)
        if by == "override":
            await client.ask("sessions.patch", key=key, sendPolicy="deny")
        gate.set()
        delivery_id = sent["result"]["delivery"]["id"]
        await listening.until(lambda: DeliveryState.SUPPRESSED in states(listening, delivery_id))
        await client.ask("health")
        assert client.all_said() == []
        (announce,) = [run for run in (await client.ask("runs.list"))["runs"] if run["kind"] == "announce"]
        assert [end["state"] for end in client.seen("chat") if end["runId"] == announce["runId"]] == ["final"]
        assert (await receipt_of(open_doors))["error"].startswith(
            "session.sendPolicy.rules[0]" if by == "rule" else "the session's own sendPolicy"
        )


def states(listening: Heard, delivery_id: str) -> list[DeliveryState]:
    return [fact.delivery.state for fact in listening.of(DeliveryChanged) if fact.delivery.id == delivery_id]


async def test_any_text_that_is_posted_to_webchat_is_a_chat_event_of_its_session(shelf: Shelf) -> None:
    async with doors(shelf, AB, *players()) as open_doors:
        client = open_doors.client
        await client.ask("chat.history", sessionKey=B)
        first = await open_doors.gateway.store.post(Post(session_key=B, address=WEBCHAT, text="one"))
        await open_doors.gateway.store.post(Post(session_key=A, address=WEBCHAT, text="not for b"))
        elsewhere = Address(channel="webchat", to="somebody")
        await open_doors.gateway.store.post(Post(session_key=B, address=elsewhere, text="two", run_id="r1"))
        await client.event("chat", runId="r1")
        assert [(event["runId"], event["message"]["content"][0]["text"]) for event in client.seen("chat")] == [
            (first.delivery.id, "one"),
            ("r1", "two"),
        ]


async def test_a_failed_announce_to_webchat_is_sent_by_its_retry_once(shelf: Shelf) -> None:
    failing = ModelFailed("no ink", retryable=False)
    async with doors(shelf, AB, *players([failing, "at last"])) as open_doors:
        client = open_doors.client
        await client.ask("chat.history", sessionKey=B)
        await client.ask("tools.invoke", tool="sessions_send", args={"sessionKey": B, "message": "hello"})
        failed = await client.event("delivery", state="failed")
        await client.ask("deliveries.retry", id=failed["id"])
        told = await client.said(state="final")
        assert told["message"]["content"][0]["text"] == "at last"
        assert told["runId"].endswith("/announce/2")
        error = await client.refused("deliveries.retry", {"id": failed["id"]})
        assert "it has arrived" in error["message"]
        assert len(client.all_said()) == 1


async def test_nothing_is_rerouted_to_webchat(shelf: Shelf) -> None:
    """Webchat shows the transcript: what shall be seen there is written into it."""
    async with doors(shelf, AB, *players()) as open_doors:
        shelf.execute(
            "INSERT INTO deliveries (id, session_key, state, channel, target, text, created_at, updated_at) "
            "VALUES ('d1', ?, 'failed', 'gone', 'C1', 'lost', 1, 1)",
            B,
        )
        error = await open_doors.client.refused("deliveries.reroute", {"id": "d1", "channel": "webchat", "to": B})
        assert error["details"]["code"] == "unknown_channel"
        assert "chat.inject" in error["message"]
        assert (await receipt_of(open_doors))["state"] == "failed"


async def test_what_was_for_webchat_when_the_process_died_is_settled_at_the_next_start(tmp_path: Path) -> None:
    models = players()
    async with dying(tmp_path, *models, config=AB) as gateway:
        await gateway.ask(B, "hello", timeout_s=20)
    Shelf(tmp_path).execute(
        "INSERT INTO deliveries (id, session_key, state, channel, account_id, target, text, created_at, updated_at) "
        "VALUES ('d1', ?, 'pending', 'webchat', 'default', ?, 'late', 1, 1)",
        B,
        B,
    )
    async with running(tmp_path, *models, config=AB) as gateway:
        await settled(gateway)
        receipt = await gateway.store.receipt("d1")
        assert receipt.delivery.state is DeliveryState.SENT
        assert [part.state for part in receipt.parts] == [DeliveryState.SENT]
