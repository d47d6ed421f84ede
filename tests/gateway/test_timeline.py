"""`runs.timeline`: what a run did, step by step, and what happened to it, through a socket and over crashes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, ScriptedModel, call
from backchannel.core.contracts import ModelFailed
from backchannel.core.messages import Usage
from backchannel.core.policy.approvals import ApprovalDecided
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import listening
from tests.runtime.test_approvals import PostingTool, answer, asked
from tests.runtime.test_crash_loops import set_aside
from tests.support.clocks import StageClock
from tests.support.gateways import die_in, dying, ended, held, running, settled

from .client import OPERATOR, connected

pytestmark = pytest.mark.anyio

AGENT = {"id": "main", "model": "scripted/test", "tools": {"allow": ["*"]}}
CONFIG: dict[str, Any] = {"agents": {"list": [AGENT, {"id": "other", "model": "scripted/test"}]}}
ON_A_SOCKET: dict[str, Any] = {**CONFIG, "gateway": {"port": 0}}


async def timeline(gateway: Gateway, run_id: str) -> list[dict[str, Any]]:
    """Ask for a run's timeline through a socket."""
    async with listening(gateway, OPERATOR) as at, connected(at.websocket_url) as client:
        shown = await client.ask("runs.timeline", runId=run_id)
    assert shown["run"]["runId"] == run_id and "truncated" not in shown
    entries: list[dict[str, Any]] = shown["entries"]
    assert all(None not in entry.values() for entry in entries)
    assert [entry["at"] for entry in entries] == sorted(entry["at"] for entry in entries)
    return entries


def kinds(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["kind"] for entry in entries]


async def test_a_run_with_tools_shows_each_step_with_its_times_tokens_and_cost(tmp_path: Path) -> None:
    clock = StageClock()
    asking = Reply(
        thinking="I should look.",
        text="Let me see.",
        calls=(call("look", at="the sky"),),
        usage=Usage(input=10, output=3, cost=0.25),
    )
    cached = Usage(input=20, output=4, cache_read=180, cost=0.5)
    model = ScriptedModel(replies=[asking, Reply(text="It is blue.", usage=cached)])
    async with running(tmp_path, model, config=ON_A_SOCKET, clock=clock) as gateway:

        @gateway.tool(effects="outside")
        async def look(at: str) -> str:
            clock.move_on(120)
            return f"{at} is blue"

        run = await gateway.submit("main", "What colour is it?")
        await ended(gateway, run.id)
        queued, first, tool, second, last = await timeline(gateway, run.id)

    assert (queued["kind"], queued["text"], queued["endedAt"]) == ("queued", "What colour is it?", run.started_at)
    assert (first["kind"], first["step"], first["text"], first["thinking"]) == (
        *("model", 1, "Let me see.", "I should look."),
    )
    assert (first["tokensIn"], first["tokensOut"], first["cost"]) == (10, 3, 0.25)
    assert (tool["kind"], tool["name"], tool["arguments"]) == ("tool", "look", {"at": "the sky"})
    assert (tool["result"], tool["isError"], tool["callId"]) == ("the sky is blue", False, f"{run.id}/0/0")
    assert 120_000 <= tool["endedAt"] - tool["at"] < 180_000
    assert (second["step"], second["text"], second["cost"]) == (2, "It is blue.", 0.5)
    assert (second["tokensIn"], second["tokensCached"]) == (200, 180) and "tokensCached" not in first
    assert second["at"] >= tool["endedAt"] and second["endedAt"] - second["at"] < 60_000
    assert (last["kind"], last["status"]) == ("ended", "ok")


async def test_a_process_that_died_in_a_run_shows_and_that_another_went_on(tmp_path: Path) -> None:
    reached = asyncio.Event()
    first = ScriptedModel(replies=[[call("agents_list")], held("half a", reached=reached)])
    async with dying(tmp_path, first, config=CONFIG) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        await reached.wait()
        before = gateway.store.number
    async with running(tmp_path, ScriptedModel(replies=["a whole reply"]), config=ON_A_SOCKET) as gateway:
        await ended(gateway, "r")
        entries = await timeline(gateway, "r")
        after = gateway.store.number

    assert kinds(entries) == ["queued", "model", "tool", "interrupted", "resumed", "model", "ended"]
    died, resumed, again = entries[3:6]
    assert (died["process"], died["step"], died["text"]) == (before, 2, "the process died")
    assert (resumed["process"], resumed["step"]) == (after, 2)
    assert again["at"] >= resumed["at"], "what the dead process did of the step does not count"
    assert again["text"] == "a whole reply"


async def test_a_gateway_that_was_stopped_is_told_apart_from_one_that_died(tmp_path: Path) -> None:
    reached = asyncio.Event()
    async with running(tmp_path, ScriptedModel(replies=[held(reached=reached)]), config=CONFIG) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        await reached.wait()
    async with running(tmp_path, ScriptedModel(replies=["yes"]), config=ON_A_SOCKET) as gateway:
        await ended(gateway, "r")
        entries = await timeline(gateway, "r")
    assert kinds(entries) == ["queued", "interrupted", "resumed", "model", "ended"]
    assert entries[1]["text"] == "the gateway was stopped"


async def test_a_run_that_is_set_aside_shows_why_until_when_and_who_asked_for_it_again(tmp_path: Path) -> None:
    await die_in(tmp_path, "r", times=3)
    async with running(tmp_path, ScriptedModel(replies=["done"]), config=ON_A_SOCKET) as gateway:
        await set_aside(gateway, "r")
        entries = await timeline(gateway, "r")
        assert kinds(entries) == ["queued", *["interrupted", "resumed"] * 2, "interrupted", "setAside"]
        aside = entries[-1]
        assert aside["text"] == "the process died 3 times in step 1"
        assert 30_000 < aside["endedAt"] - aside["at"] <= 60_000
        await gateway.store.retry_run("r")
        await ended(gateway, "r")
        entries = await timeline(gateway, "r")
    assert kinds(entries)[-5:] == ["setAside", "retried", "resumed", "model", "ended"]


async def test_a_provider_that_failed_and_was_asked_again_shows_with_its_reason(tmp_path: Path) -> None:
    clock = StageClock()
    failures = [ModelFailed("overloaded", retryable=True), ModelFailed("still overloaded", retryable=True)]
    async with running(
        tmp_path, ScriptedModel(replies=[*failures, "well"]), config=ON_A_SOCKET, clock=clock
    ) as gateway:
        run = await gateway.submit("main", "hello")
        await ended(gateway, run.id)
        entries = await timeline(gateway, run.id)
    assert kinds(entries) == ["queued", "retry", "retry", "model", "ended"]
    assert [entry["error"] for entry in entries[1:3]] == ["overloaded", "still overloaded"]
    assert [entry["endedAt"] - entry["at"] for entry in entries[1:3]] == [500, 1000]
    assert entries[3]["at"] >= entries[2]["endedAt"]


async def test_those_who_watch_hear_that_a_model_is_asked_again(tmp_path: Path) -> None:
    odd = "half a character \ud83d and " + "much " * 1000
    model = ScriptedModel(replies=[ModelFailed(odd, retryable=True), "well"])
    async with running(tmp_path, model, config=ON_A_SOCKET, clock=StageClock()) as gateway:
        async with listening(gateway, OPERATOR) as at, connected(at.websocket_url) as client:
            await client.ask("sessions.subscribe")
            run = await gateway.submit("main", "hello")
            told = await client.event("agent", runId=run.id, stream="retry")
            await ended(gateway, run.id)
        entries = await timeline(gateway, run.id)
    assert (told["data"]["attempt"], told["data"]["attempts"]) == (1, 5) and told["data"]["retryAt"] > 0
    assert told["data"]["error"] == entries[1]["error"] and len(entries[1]["error"]) == 1000


async def test_whoever_looks_between_two_events_sees_that_a_model_is_asked_again(tmp_path: Path) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    failed = ModelFailed("overloaded, password=hunter2abc", retryable=True)
    model = ScriptedModel(replies=[failed, Reply(text="well", gate=gate, reached=reached), "and again"])
    async with (
        running(tmp_path, model, config=ON_A_SOCKET, clock=StageClock()) as gateway,
        listening(gateway, OPERATOR) as at,
        connected(at.websocket_url) as client,
    ):
        run = await gateway.submit("main", "hello")
        await reached.wait()
        shown = (await client.ask("runs.get", runId=run.id))["run"]["retry"]
        assert shown.pop("retryAt") > 0
        assert shown == {"attempt": 1, "attempts": 5, "error": "overloaded, password=[redacted]"}
        assert (await client.ask("runs.list"))["runs"][0]["retry"]["attempt"] == 1
        gate.set()
        await ended(gateway, run.id)
        assert "retry" not in (await client.ask("runs.get", runId=run.id))["run"]


async def test_a_failed_run_that_a_person_retries_shows_both_its_ends(tmp_path: Path) -> None:
    failure = ModelFailed("no such key", retryable=False)
    async with running(tmp_path, ScriptedModel(replies=[failure, "well"]), config=ON_A_SOCKET) as gateway:
        run = await gateway.submit("main", "hello")
        await ended(gateway, run.id)
        failed = await timeline(gateway, run.id)
        assert (kinds(failed), failed[-1]["error"]) == (["queued", "ended"], "no such key")
        await gateway.store.retry_run(run.id)
        await ended(gateway, run.id)
        entries = await timeline(gateway, run.id)
    assert kinds(entries) == ["queued", "retried", "resumed", "model", "ended"]
    assert entries[1]["text"] == "no such key"


async def test_what_a_run_does_now_has_no_end_yet(tmp_path: Path) -> None:
    reached = asyncio.Event()
    replies = [[call("sessions_send", sessionKey="agent:other:main", message="well?", timeoutSeconds=60)]]
    model = ScriptedModel(replies=[*replies, held(reached=reached)])
    async with running(tmp_path, model, config={**ON_A_SOCKET, **_OPEN}) as gateway:
        run = await gateway.submit("main", "ask the other")
        await reached.wait()
        (other,) = await gateway.store.runs(session_key="agent:other:main", limit=1)
        entries = await timeline(gateway, run.id)
        assert kinds(entries) == ["queued", "model", "tool", "waiting"]
        tool, waiting = entries[2:]
        assert "endedAt" not in tool and tool["exchangeId"] == other.exchange_id
        assert (waiting["sessionKey"], waiting["callId"]) == ("agent:other:main", tool["callId"])
        theirs = await timeline(gateway, other.id)
        assert kinds(theirs) == ["queued", "model"] and "endedAt" not in theirs[1]


_OPEN = {"tools": {"agentToAgent": {"enabled": True}, "sessions": {"visibility": "all"}}}


async def test_a_call_that_waits_for_a_persons_word_shows_for_how_long_and_what_was_said(tmp_path: Path) -> None:
    config = {**ON_A_SOCKET, "tools": {"approval": [{"tool": "post", "ask": "always"}]}}
    model = ScriptedModel(replies=[[call("post", text="hello")], "posted"])
    async with running(tmp_path, model, config=config, equip=PostingTool().equip) as gateway:
        run = await gateway.submit("main", "post hello")
        (approval,) = await asked(gateway)
        before = await timeline(gateway, run.id)
        assert kinds(before) == ["queued", "model", "tool", "waiting"]
        assert (before[3]["approvalId"], before[3]["status"], before[3]["name"]) == (approval.id, "pending", "post")
        assert "endedAt" not in before[3]
        await answer(gateway, approval, ApprovalDecided.APPROVE)
        await ended(gateway, run.id)
        after = await timeline(gateway, run.id)
    assert kinds(after) in (
        ["queued", "model", "waiting", "tool", "model", "ended"],
        ["queued", "model", "tool", "waiting", "model", "ended"],  # in the same millisecond
    )
    (waiting,) = [entry for entry in after if entry["kind"] == "waiting"]
    assert waiting["status"] == "approved" and waiting["endedAt"] >= waiting["at"]


async def test_a_call_that_started_a_sub_agent_leads_to_it_and_to_its_receipt(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("sessions_spawn", task="dig")], "sent", "dug", "it is dug", "thanks"])
    async with running(tmp_path, model, config=ON_A_SOCKET) as gateway:
        run = await gateway.submit("main", "dig for me")
        await settled(gateway)
        (tool,) = [entry for entry in await timeline(gateway, run.id) if entry["kind"] == "tool"]
        child = await gateway.store.session(tool["childKey"])
        assert child is not None and child.spawned_by == "agent:main:main"
        (own,) = [run for run in await gateway.store.runs(session_key=child.key, limit=9) if run.kind == "child"]
        assert (await timeline(gateway, own.id))[-1]["deliveryId"] == tool["deliveryId"]


async def test_the_calls_of_a_function_agent_are_steps_and_its_reply_is_one(tmp_path: Path) -> None:
    async with running(tmp_path, config={"gateway": {"port": 0}, "agents": {"list": [{"id": "clerk"}]}}) as gateway:

        @gateway.agent("clerk")
        async def clerk(context: FunctionContext) -> str:
            await context.call("agents_list")
            return "there is me"

        run = await gateway.submit("agent:clerk:main", "who is there?")
        await ended(gateway, run.id)
        entries = await timeline(gateway, run.id)
    assert kinds(entries) == ["queued", "tool", "model", "ended"]
    assert (entries[1]["name"], entries[2]["model"]) == ("agents_list", "function/clerk")


async def test_long_texts_are_cut_and_a_queued_run_shows_what_it_was_asked(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("agents_list", word="x" * 100_000)], held()])
    async with running(tmp_path, model, config=ON_A_SOCKET) as gateway:
        first = await gateway.submit("main", "y" * 100_000)
        second = await gateway.submit("main", "and then?")
        await model.asked(2)
        entries = await timeline(gateway, first.id)
        assert len(entries[0]["text"]) == 2000 and len(entries[2]["arguments"]) == 2000
        (queued,) = await timeline(gateway, second.id)
        assert (queued["kind"], queued["text"]) == ("queued", "and then?") and "endedAt" not in queued


async def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with (
        running(tmp_path, ScriptedModel(), config=ON_A_SOCKET) as gateway,
        listening(gateway, OPERATOR) as at,
        connected(at.websocket_url) as client,
    ):
        error = await client.refused("runs.timeline", {"runId": "nothing"})
    assert error["details"]["code"] == "run_not_found"
