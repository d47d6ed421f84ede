"""`sessions_send`: every outcome of it, with its exact fields."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.contracts import ModelFailed
from backchannel.runtime import active as calls
from tests.support.gateways import ended, settled
from tests.support.talks import A, B, Talk, config, send, talking

pytestmark = pytest.mark.anyio

AB = config("a", "b")


def delivery(talk: Talk, state: str) -> dict[str, Any]:
    ((delivery_id,),) = talk.rows("SELECT id FROM deliveries")
    return {"id": delivery_id, "status": state, "mode": "announce"}


def primary(talk: Talk) -> str:
    ((run_id,),) = talk.rows("SELECT id FROM runs WHERE kind = 'primary'")
    return str(run_id)


async def test_a_reply_in_time_is_ok_with_the_reply_and_the_receipt(tmp_path: Path) -> None:
    async with talking(tmp_path, AB, a={"person": send()}, b={"request": "fine"}) as talk:
        assert await talk.gateway.ask(A, "ask b", timeout_s=20) == "I see."
        (result,) = await talk.results()
        assert result == {
            "runId": primary(talk),
            "status": "ok",
            "reply": "fine",
            "sessionKey": B,
            "delivery": delivery(talk, "pending"),
        }
        await settled(talk.gateway)
        assert talk.receipts() == [("no_channel", "the target has no channel to announce to")]


async def test_a_run_without_text_is_ok_with_an_empty_reply(tmp_path: Path) -> None:
    async with talking(tmp_path, AB, a={"person": send()}, b={"request": Reply(thinking="hm")}) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        (result,) = await talk.results()
        assert (result["status"], result["reply"]) == ("ok", "")
        await settled(talk.gateway)
        assert [kind for _, kind, _ in talk.runs()] == ["message", "primary"]


async def test_not_waiting_is_accepted_at_once(tmp_path: Path) -> None:
    gate = asyncio.Event()
    b = {"request": Reply(text="late", gate=gate)}
    async with talking(tmp_path, AB, a={"person": send(timeoutSeconds=0)}, b=b) as talk:
        assert await talk.gateway.ask(A, "ask b", timeout_s=20) == "I see."
        (result,) = await talk.results()
        assert result == {
            "runId": primary(talk),
            "status": "accepted",
            "sessionKey": B,
            "delivery": delivery(talk, "pending"),
        }
        gate.set()
        await settled(talk.gateway)
        assert talk.runs()[-1] == (A, "turn", "ok")


async def test_a_wait_of_less_than_a_millisecond_is_none(tmp_path: Path) -> None:
    async with talking(tmp_path, AB, a={"person": send(timeoutSeconds=0.0001)}, b={"request": "fine"}) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        assert [result["status"] for result in await talk.results()] == ["accepted"]
        result = await talk.gateway.tools().sessions_send(sessionKey=B, message="hello", timeoutSeconds=0.0001)
        assert result["status"] == "accepted"
        await settled(talk.gateway)


@pytest.mark.parametrize("state", ["queued", "running"])
async def test_a_wait_that_ends_first_says_where_the_run_is_and_that_it_goes_on(tmp_path: Path, state: str) -> None:
    gate = asyncio.Event()
    b = {"request": Reply(text="late", gate=gate), "person": Reply(text="busy", gate=gate)}
    async with talking(tmp_path, AB, a={"person": send(timeoutSeconds=0.3)}, b=b) as talk:
        if state == "queued":
            await talk.gateway.submit(B, "work")
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        (result,) = await talk.results()
        assert result == {
            "runId": primary(talk),
            "status": "timeout",
            "error": result["error"],
            "sessionKey": B,
            "delivery": delivery(talk, "pending"),
        }
        for told in (f"still {state}", "goes on", "do not send", "sessions_history", B):
            assert told in result["error"]
        assert not talk.rows("SELECT * FROM waits")
        gate.set()
        assert (await ended(talk.gateway, primary(talk), 20)).reply == "late"
        await settled(talk.gateway)
        (told,) = talk.players["a"].prompts("turn")
        assert "this is the reply you were no longer waiting for" in told
        assert "late" in told


async def test_a_run_that_fails_is_an_error_that_says_so(tmp_path: Path) -> None:
    failing = ModelFailed("the provider is on fire", retryable=False)
    async with talking(tmp_path, AB, a={"person": send()}, b={"request": failing}) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        (result,) = await talk.results()
        assert result == {
            "runId": primary(talk),
            "status": "error",
            "error": "the run ended as error: the provider is on fire",
            "sessionKey": B,
        }
        await settled(talk.gateway)
        assert talk.receipts()[0][0] == "cancelled"
        assert [kind for _, kind, _ in talk.runs()] == ["message", "primary"]


async def test_a_run_that_times_out_is_an_error_that_says_so(tmp_path: Path) -> None:
    held = Reply(text="never", gate=asyncio.Event())
    settings = config("b", defaults={"timeoutSeconds": 0.3})
    async with talking(tmp_path, settings, b={"request": held}) as talk:
        result = await talk.gateway.tools().sessions_send(sessionKey=B, message="hello")
        assert result == {
            "runId": primary(talk),
            "status": "error",
            "error": "the run ended as timeout: the run's limit of 0.3 s was over",
            "sessionKey": B,
        }
        assert talk.receipts()[0][0] == "cancelled"


async def test_a_run_that_is_aborted_is_an_error_that_says_so(tmp_path: Path) -> None:
    held = Reply(text="never", gate=asyncio.Event(), reached=asyncio.Event())
    async with talking(tmp_path, AB, a={"person": send()}, b={"request": held}) as talk:
        asking = asyncio.create_task(talk.gateway.ask(A, "ask b", timeout_s=20))
        async with asyncio.timeout(20):
            assert held.reached is not None
            await held.reached.wait()
        assert await talk.gateway.runtime.abort(B, primary(talk)) == [primary(talk)]
        await asking
        (result,) = await talk.results()
        assert (result["status"], result["error"]) == ("error", "the run ended as aborted: aborted")
        await settled(talk.gateway)
        assert talk.receipts()[0][0] == "cancelled"


async def test_a_wait_may_last_longer_than_other_tools_may_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "TOOL_CALL_LIMIT_S", 0.05)
    async with talking(
        tmp_path, AB, a={"person": send(timeoutSeconds=0.3)}, b={"request": Reply(gate=asyncio.Event())}
    ) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        (result,) = await talk.results()
        assert result["status"] == "timeout"


async def test_under_the_global_scope_the_shared_session_is_called_main_everywhere(tmp_path: Path) -> None:
    settings = config("a", "b", scope="global")
    async with talking(tmp_path, settings, a={"person": send("agent:b:main")}, b={"request": send("current")}) as talk:
        await talk.gateway.ask("main", "ask b", timeout_s=20)
        await settled(talk.gateway)
        (result,) = await talk.results("agent:a:global")
        assert (result["status"], result["sessionKey"]) == ("ok", B)
        (refused,) = await talk.results("agent:b:global")
        assert f"{B} → {B}" in refused["error"]
        shown = [message for key in ("a", "b") for message in await talk.said_to(f"agent:{key}:global")]
        assert len(shown) == 3
        for message in shown:
            assert ":global" not in message.text
            source = message.provenance.source_session_key if message.provenance else None
            assert source in (None, A, B)
