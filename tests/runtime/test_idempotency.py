"""Idempotency: the same key never starts a second run, and another request under it learns nothing of the first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.runs import RunState
from backchannel.errors import IdempotencyConflict, SessionIdReplaced
from backchannel.gateway.app import Gateway
from tests.support.gateways import MAIN, dying, ended, request, running, session_of, texts_of, transcript_of

pytestmark = pytest.mark.anyio
SIDE = "agent:main:side"


async def test_the_same_key_again_answers_with_the_first_runs_state(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate)])
    async with running(tmp_path, model) as gateway:
        first = await gateway.submit("main", "go", run_id="k")
        again = await gateway.submit("main", "go", run_id="k")
        assert (first.id, again.id, again.state) == ("k", "k", RunState.RUNNING)
        gate.set()
        await ended(gateway, "k")
        last = await gateway.submit("main", "go", run_id="k")
        assert (last.state, last.reply) == (RunState.OK, "done")
        assert await texts_of(gateway) == ["go", "done"]
    assert len(model.requests) == 1


async def test_the_answer_tells_a_repeat_from_a_first(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["done"])) as gateway:
        accepted = [await gateway.runtime.submit(request(MAIN, "go", id="k", digest="d")) for _ in range(3)]
        assert [answer.is_repeat for answer in accepted] == [False, True, True]
        assert [answer.started is not None for answer in accepted] == [True, False, False]


async def test_fifty_that_come_at_once_are_one_run(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: "done")
    async with running(tmp_path, model) as gateway:
        runs = await asyncio.gather(*(gateway.submit("main", "go", run_id="k") for _ in range(50)))
        assert {run.id for run in runs} == {"k"}
        await ended(gateway, "k")
        assert await texts_of(gateway) == ["go", "done"]
        assert await gateway.ask("main", "next") == "done"
    assert len(model.requests) == 2


async def test_fifty_that_come_at_once_behind_another_run_are_one_run(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="first", gate=gate), "done"])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "holds the lane")
        await asyncio.gather(*(gateway.submit("main", "go", run_id="k") for _ in range(50)))
        assert (await session_of(gateway)).queued == 1
        gate.set()
        assert (await ended(gateway, "k")).reply == "done"


async def test_the_same_key_after_a_restart_is_the_same_run(tmp_path: Path) -> None:
    model = ScriptedModel(replies=["done"])
    async with running(tmp_path, model) as gateway:
        assert await gateway.ask("main", "go", run_id="k") == "done"
    async with running(tmp_path, model) as gateway:
        assert await gateway.ask("main", "go", run_id="k") == "done"
    assert len(model.requests) == 1


async def test_the_same_key_after_a_crash_joins_the_run_that_goes_on(tmp_path: Path) -> None:
    async with dying(tmp_path, ScriptedModel(replies=[Reply(text="never", gate=asyncio.Event())])) as gateway:
        await gateway.submit("main", "go", run_id="k")
        await gateway.submit("main", "later", run_id="q")
    model = ScriptedModel(replies=["done", "later done"])
    async with running(tmp_path, model) as gateway:
        assert await gateway.ask("main", "go", run_id="k") == "done"
        assert await gateway.ask("main", "later", run_id="q") == "later done"
        assert await texts_of(gateway) == ["go", "done", "later", "later done"]
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"text": "something else"},
        {"key": SIDE},
        {"digest": "another token"},
        {"digest": None},
    ],
    ids=["message", "session", "token", "no digest"],
)
async def test_the_same_key_for_something_else_is_a_conflict_that_shows_nothing(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    async with running(tmp_path, ScriptedModel(replies=["a secret reply"])) as gateway:
        await submit(gateway)
        await ended(gateway, "k")
        before = await transcript_of(gateway)
        with pytest.raises(IdempotencyConflict) as conflict:
            await submit(gateway, **other)
        told = f"{conflict.value} {vars(conflict.value)}"
        assert "secret" not in told and "the message" not in told and MAIN not in told
        assert await transcript_of(gateway) == before
        assert await gateway.store.session(SIDE) is None
        assert len(await gateway.store.runs(limit=10)) == 1


async def submit(gateway: Gateway, key: str = MAIN, text: str = "the message", **more: Any) -> None:
    """Send a message as a door does: the digest says who sent what, and where to."""
    digest = more.get("digest", f"{key} {text}")
    await gateway.runtime.submit(request(key, text, id="k", digest=digest))


async def test_the_id_of_a_run_that_had_no_key_cannot_be_taken_as_one(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["a secret reply"])) as gateway:
        run = await gateway.submit("main", "go")
        await ended(gateway, run.id)
        with pytest.raises(IdempotencyConflict):
            await gateway.submit("main", "go", run_id=run.id)


async def test_concurrent_conflicts_leave_one_run(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: "done")
    async with running(tmp_path, model) as gateway:
        sent = (gateway.submit("main", f"message {n}", run_id="k") for n in range(20))
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert sum(isinstance(outcome, IdempotencyConflict) for outcome in outcomes) == 19
        await ended(gateway, "k")
        assert len(await texts_of(gateway)) == 2


@pytest.mark.parametrize("key", ["a/b c", "ключ", "x" * 500, "'; DROP TABLE runs; --", "cron:nightly:2026-01-01"])
async def test_any_text_is_a_key(tmp_path: Path, key: str) -> None:
    async with running(tmp_path, ScriptedModel(replies=["done"])) as gateway:
        assert await gateway.ask("main", "go", run_id=key) == "done"
        assert await gateway.ask("main", "go", run_id=key) == "done"


async def test_a_refused_message_does_not_use_up_its_key(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["done"])) as gateway:
        with pytest.raises(SessionIdReplaced, match="has not the id"):
            await gateway.runtime.submit(request(MAIN, "go", id="k", digest="d", expected_session_id="another"))
        await gateway.runtime.submit(request(MAIN, "go", id="k", digest="d"))
        assert (await ended(gateway, "k")).reply == "done"
