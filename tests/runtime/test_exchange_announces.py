"""The announce step, its receipt, and control words: what people get to see of an exchange, and what not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext, ToolFailed
from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.contracts import ModelFailed
from backchannel.core.messages import ProvenanceKind
from backchannel.core.sessions import Address, write_address
from backchannel.errors import InvalidRequest
from backchannel.runtime.events import ReplyGrew
from tests.support.gateways import Heard, settled
from tests.support.talks import A, B, Player, config, send, talking
from tests.tools.door import doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

AB = config("a", "b")
WEBCHAT = write_address(Address(channel="webchat"))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path / "state")
    shelf.session(B, "hello", delivery_context=WEBCHAT)
    return shelf


async def test_the_announce_is_asked_for_once_with_the_whole_story_and_no_tools(shelf: Shelf) -> None:
    a = {"person": send(message="the request"), "turn": ["from a", "the last of a"]}
    b = {"request": "the first of b", "turn": ["from b", "REPLY_SKIP"], "announce": "We have talked."}
    async with talking(shelf.state, AB, a=a, b=b) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        await settled(talk.gateway)
        (asked,) = talk.players["b"].requests("announce")
        assert not asked.uses_tools and asked.tools == talk.players["b"].requests("request")[0].tools
        (prompt,) = talk.players["b"].prompts("announce")
        for told in ("the request", "the first of b", "the last of a", '"webchat"', "ANNOUNCE_SKIP", B, A):
            assert told in prompt
        message = (await talk.said_to(B))[-1]
        assert message.provenance is not None
        assert message.provenance.kind is ProvenanceKind.INTERNAL_SYSTEM
        assert message.provenance.exchange_id == talk.exchange()["id"]
        assert talk.rows("SELECT state, text, channel FROM deliveries") == [("sent", "We have talked.", "webchat")]
        assert [kind for _, kind, _ in talk.runs()].count("announce") == 1
        assert talk.rows("SELECT count(*) FROM runs WHERE deliver = 1") == [(0,)]


@pytest.mark.parametrize("reply", ["ANNOUNCE_SKIP", "\n ANNOUNCE_SKIP ", "", "NO_REPLY", "REPLY_SKIP"])
async def test_silence_is_a_skipped_receipt(shelf: Shelf, reply: str) -> None:
    async with talking(shelf.state, AB, b={"request": "fine", "announce": reply}) as talk:
        await talk.gateway.tools().sessions_send(sessionKey=B, message="hello")
        await settled(talk.gateway)
        assert [state for state, _ in talk.receipts()] == ["skipped"]


async def test_a_sentence_with_the_word_is_announced(shelf: Shelf) -> None:
    async with talking(shelf.state, AB, b={"request": "fine", "announce": "ANNOUNCE_SKIP it is"}) as talk:
        result = await talk.gateway.tools().sessions_send(sessionKey=B, message="hello")
        await settled(talk.gateway)
        assert talk.rows("SELECT id, state, text FROM deliveries") == [
            (result["delivery"]["id"], "sent", "ANNOUNCE_SKIP it is")
        ]


async def test_a_failed_announce_is_a_failed_receipt_and_its_retry_sends_it(shelf: Shelf) -> None:
    failing = ModelFailed("no ink", retryable=False)
    async with talking(shelf.state, AB, b={"request": "fine", "announce": [failing, "at last"]}) as talk:
        await talk.gateway.tools().sessions_send(sessionKey=B, message="hello")
        await settled(talk.gateway)
        assert talk.receipts() == [("failed", "the announce run ended as error: no ink")]
        await talk.gateway.store.retry_run((await talk.run_of("announce")).id)
        assert talk.receipts() == [("pending", None)]
        await settled(talk.gateway)
        assert talk.rows("SELECT state, text, error FROM deliveries") == [("sent", "at last", None)]


async def test_a_run_that_its_exchange_would_not_hear_of_is_not_retried(shelf: Shelf) -> None:
    failing = ModelFailed("no ink", retryable=False)
    a = {"person": send(), "turn": failing}
    async with talking(shelf.state, AB, a=a, b={"request": "fine", "announce": [failing, "at last"]}) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        await settled(talk.gateway)
        first = await talk.run_of("announce")
        ((delivery_id,),) = talk.rows("SELECT id FROM deliveries")
        await talk.gateway.store.retry_delivery(delivery_id)
        await settled(talk.gateway)
        for run in (first, await talk.run_of("turn")):
            with pytest.raises(InvalidRequest, match="its exchange is over"):
                await talk.gateway.store.retry_run(run.id)
        assert [(kind, state) for _, kind, state in talk.runs()] == [
            ("message", "ok"),
            ("primary", "ok"),
            ("turn", "error"),
            ("announce", "error"),
            ("announce", "ok"),
        ]


async def test_a_failed_primary_run_announces_nothing(shelf: Shelf) -> None:
    async with talking(shelf.state, AB, b={"request": ModelFailed("no", retryable=False)}) as talk:
        await talk.gateway.tools().sessions_send(sessionKey=B, message="hello")
        await settled(talk.gateway)
        assert [kind for _, kind, _ in talk.runs()] == ["primary"]
        assert [state for state, _ in talk.receipts()] == ["cancelled"]


@pytest.mark.parametrize("key", ["agent:b:subagent:6f0d", "agent:b:cron:nightly", "agent:b:quiet"])
async def test_where_there_is_no_channel_nothing_is_announced(shelf: Shelf, key: str) -> None:
    shelf.session(key, "hello", delivery_context=WEBCHAT if "subagent" in key else None)
    async with talking(shelf.state, AB, b={"request": "fine", "announce": "hear"}) as talk:
        await talk.gateway.tools().sessions_send(sessionKey=key, message="hello")
        await settled(talk.gateway)
        assert [kind for _, kind, _ in talk.runs()] == ["primary"]
        assert [state for state, _ in talk.receipts()] == ["no_channel"]


async def test_an_address_that_comes_while_they_talk_is_used_when_there_was_none(tmp_path: Path) -> None:
    gate = asyncio.Event()
    b = {"request": Reply(text="fine", gate=gate), "person": "hi", "announce": "hear"}
    async with talking(tmp_path, AB, b=b) as talk:
        await talk.gateway.tools().sessions_send(sessionKey=B, message="hello", timeoutSeconds=0)
        talk.execute("UPDATE sessions SET delivery_context = ? WHERE key = ?", WEBCHAT, B)
        gate.set()
        await settled(talk.gateway)
        assert talk.rows("SELECT state, text, channel FROM deliveries") == [("sent", "hear", "webchat")]


async def test_a_function_agent_has_no_tools_in_the_announce_either(shelf: Shelf) -> None:
    async def b(context: FunctionContext) -> str:
        if "announce step" not in context.text:
            return "fine"
        with pytest.raises(ToolFailed, match="no tool"):
            await context.call("sessions_list")
        return "quiet"

    async with talking(shelf.state, AB) as talk:
        talk.gateway.add_agent("b", b)
        await talk.gateway.tools().sessions_send(sessionKey=B, message="hello")
        await settled(talk.gateway)
        assert [(kind, state) for _, kind, state in talk.runs()] == [("primary", "ok"), ("announce", "ok")]
        assert [state for state, _ in talk.receipts()] == ["sent"]


# Control words are never shown


def split(word: str) -> Reply:
    return Reply(text=tuple(word))


async def test_no_event_shows_a_control_word_of_an_exchange(shelf: Shelf) -> None:
    a = {"person": send(), "turn": split(" REPLY_SKIP\n")}
    b = {"request": "fine", "announce": split("ANNOUNCE_SKIP")}
    async with talking(shelf.state, AB, a=a, b=b) as talk:
        heard = Heard(talk.gateway)
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        await settled(talk.gateway)
        shown = [event.text for event in heard.of(ReplyGrew) if event.text.strip()]
        assert set(shown) <= {"fine", "I see."}


async def test_a_text_that_only_begins_like_one_is_shown_whole(tmp_path: Path) -> None:
    async with talking(tmp_path, AB, a={"person": split("NO_REPLYing now")}) as talk:
        heard = Heard(talk.gateway)
        await talk.gateway.ask(A, "hello", timeout_s=20)
        shown = [event.text for event in heard.of(ReplyGrew)]
        assert shown[-1] == "NO_REPLYing now"
        assert "".join(event.delta for event in heard.of(ReplyGrew)) == "NO_REPLYing now"


@pytest.mark.parametrize("word", ["NO_REPLY", "REPLY_SKIP", " ANNOUNCE_SKIP "])
async def test_no_chat_event_shows_a_control_word(tmp_path: Path, word: str) -> None:
    shelf = Shelf(tmp_path / "chat")
    settings: dict[str, Any] = config("a")
    async with doors(shelf, settings, ScriptedModel("scripted/a", replies=[split(word)])) as open_doors:
        sent = await open_doors.client.ask("chat.send", sessionKey=A, message="hello")
        await open_doors.client.event("chat", runId=sent["runId"], state="final")
        chat = open_doors.client.seen("chat") + open_doors.client.seen("agent")
        assert not [event for event in chat if word.strip() in str(event)]


async def test_runs_of_an_exchange_send_internal_agent_events_and_only_the_announce_has_a_chat_event_with_text(
    shelf: Shelf,
) -> None:
    a, b = Player("a", person=send()), Player("b", request="fine", announce="hear")
    async with doors(shelf, AB, a.model, b.model) as open_doors:
        await open_doors.client.ask("sessions.subscribe")
        sent = await open_doors.client.ask("chat.send", sessionKey=A, message="ask b")
        await open_doors.client.ask("agent.wait", runId=sent["runId"])
        await settled(open_doors.gateway)
        await open_doors.client.ask("health")
        chat = [event for event in open_doors.client.seen("chat") if event["runId"] != sent["runId"]]
        said = [event for event in chat if "message" in event]
        assert [(event["state"], event["message"]["content"][0]["text"]) for event in said] == [("final", "hear")]
        internal = {event["runId"] for event in open_doors.client.seen("agent") if "backchannel" in event["data"]}
        others = {event["runId"] for event in open_doors.client.seen("agent") if "backchannel" not in event["data"]}
        assert others == {sent["runId"]}
        assert len(internal) == 3
        assert {event["runId"] for event in chat} == internal  # each that was shown to begin is shown to end
