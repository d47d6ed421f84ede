"""Refusals of used-up budgets, as chats and agents see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from tests.channels.desk import desk
from tests.support.children import config as children_config
from tests.support.children import family, spawn
from tests.support.clocks import StageClock
from tests.support.far_end import FarEnd
from tests.support.gateways import ended, running
from tests.support.resting import at_rest
from tests.support.stub_provider import StubProvider
from tests.support.talks import A, send, talking
from tests.support.talks import config as talk_config
from tests.triggers.clockwork import clockwork, job

pytestmark = pytest.mark.anyio


async def test_a_chat_is_told_once_that_a_budget_is_used_up(tmp_path: Path) -> None:
    person = {"name": "person", "scope": "sender", "per": "total", "runs": 1, "then": "stop"}
    model = ScriptedModel(replies=lambda request: "done")
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings()}
        async with desk(tmp_path, channels, model=model, budgets=[person]) as world:
            first = await world.say(messageId="m0", text="message 0")
            await ended(world.gateway, first["runId"])
            said = [await world.say(messageId=f"m{n}", text=f"message {n}") for n in (1, 2)]
            await at_rest(world.gateway)
    assert [answer["verdict"] for answer in said] == ["ignore", "ignore"]
    assert "the budget person" in said[0]["reason"]
    assert far_end.texts == ["done", "The budget person is used up, so this message was not taken."]


async def test_an_agent_is_told_that_the_other_agents_budget_is_used_up(tmp_path: Path) -> None:
    b = {"name": "b", "scope": "agent", "match": {"agentId": "b"}, "per": "total", "runs": 1, "then": "stop"}
    settings = {**talk_config("a", "b"), "budgets": [b]}
    async with talking(tmp_path, settings, a={"person": send()}, b={"person": "hi", "request": "fine"}) as talk:
        await talk.gateway.ask("agent:b:main", "first")
        await talk.gateway.ask(A, "ask b")
        (result,) = await talk.results(A)
        await at_rest(talk.gateway)
    assert result["status"] == "error" and "the budget b of b has spent 1 run of 1 run in all" in result["error"]


async def test_a_cron_job_skips_its_times_while_its_budget_is_used_up(tmp_path: Path) -> None:
    hourly = {"name": "hourly", "scope": "gateway", "per": "hour", "runs": 1, "then": "stop"}
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, job("every 20m"), budgets=[hourly], tz="UTC") as world:
        await world.turn_to("2026-06-01T08:20", "2026-06-01T08:40", "2026-06-01T09:00")
        assert await world.fired() == ["2026-06-01T08:20:00Z", "2026-06-01T09:00:00Z"]
        (found,) = await world.gateway.cron.list()
    assert {reason: skips.count for reason, skips in found.stored.skips_by_reason.items()} == {"budget": 1}


async def test_all_that_one_message_causes_counts_in_its_chain_and_another_chain_has_its_own(tmp_path: Path) -> None:
    chain = {"name": "chain", "scope": "chain", "per": "total", "runs": 4, "then": "stop"}
    settings = {**talk_config("a", "b", "c"), "budgets": [chain]}
    parts = {"person": send(), "result": "sent", "request": "fine", "turn": "and so on", "announce": "told"}
    async with talking(tmp_path, settings, a=parts, b=parts, c={"person": "hi"}) as talk:
        await talk.gateway.submit(A, "ask b", run_id="first")
        await ended(talk.gateway, "first")
        await at_rest(talk.gateway)
        await talk.gateway.submit("agent:c:main", "hello", run_id="second")
        await ended(talk.gateway, "second")
        runs = await talk.gateway.store.runs(limit=50)
        rows = {row.subject: row.runs for row in (await talk.gateway.store.budgets())[0].rows}
    assert rows == {"first": 4, "second": 1}
    assert {run.chain_id for run in runs} == {"first", "second"}
    assert all(run.is_finished for run in runs)
    assert {run.error_code for run in runs if run.error_code} == {"budget_exceeded"}, "its turns meet the limit"


async def test_children_count_in_the_chain_that_started_them(tmp_path: Path) -> None:
    chain = {"name": "chain", "scope": "chain", "per": "total", "runs": 2, "then": "stop"}
    says: dict[str, Any] = {"person": [[spawn("dig"), spawn("fill")]], "result": "started"}
    async with family(tmp_path, {**children_config(), "budgets": [chain]}, **says) as household:
        await household.gateway.submit("main", "go", run_id="r")
        await ended(household.gateway, "r")
        await at_rest(household.gateway)
        runs = await household.gateway.store.runs(limit=50)
        (row,) = (await household.gateway.store.budgets())[0].rows
    assert (row.subject, row.runs) == ("r", 2)
    assert all(run.is_finished and run.chain_id == "r" for run in runs)
    assert sum(run.error_code is None for run in runs) == 2
    assert {run.error_code for run in runs} == {None, "budget_exceeded"}


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_the_longest_reply_that_is_reserved_stands_in_the_request(tmp_path: Path, api: str) -> None:
    async with StubProvider() as stub:
        own = {"id": "own", "maxTokens": 321}
        acme = {"api": api, "baseUrl": stub.base_url, "apiKey": "k", "models": [own, {"id": "other"}]}
        settings = {
            "models": {"providers": {"acme": acme}},
            "agents": {"list": [{"id": "main", "model": "acme/own"}, {"id": "b", "model": "acme/other"}]},
            "budgets": [{"name": "all", "scope": "gateway", "per": "day", "tokens": 10**9, "then": "stop"}],
        }
        async with running(tmp_path, config=settings) as gateway:
            await gateway.ask("agent:main:main", "hello")
            await gateway.ask("agent:b:main", "hello")
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    sent = [[asked.body[name] for name in names if name in asked.body] for asked in stub.requests]
    assert sent == [[321], [8192]]
