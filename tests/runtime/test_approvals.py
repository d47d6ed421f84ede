"""Tool calls that a person has to allow: the run waits, over restarts, and nothing is carried out twice."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext, ToolFailed
from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest, ToolContext
from backchannel.core.facts import ApprovalChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import Approval, ApprovalDecided, ApprovalState
from backchannel.core.runs import RunState
from backchannel.errors import ApprovalNotFound, InvalidRequest
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.clocks import StageClock
from tests.support.gateways import Heard, dying, ended, request, running, stored, texts_of, transcript_of
from tests.support.kill import kill_at_every_commit

pytestmark = pytest.mark.anyio
NOON = "2026-03-02T12:00:00"
APPROVAL: dict[str, Any] = {"approval": [{"tool": "post", "ask": "always"}]}
AGENTS: dict[str, Any] = {"list": [{"id": "main", "model": "scripted/test"}]}
OLGA = Answerer("olga")
ASKING: dict[str, Any] = {"agents": AGENTS, "tools": APPROVAL}


class PostingTool:
    """A tool that posts, and what was posted."""

    def __init__(self) -> None:
        self.posted: list[str] = []

    def equip(self, gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def post(text: str, context: ToolContext) -> str:
            self.posted.append(text)
            return f"posted {text}"


def posting(request: ModelRequest) -> Scripted:
    """Post what the message says, and tell what came of it."""
    newest = request.messages[-1]
    return f"so: {newest.text}" if newest.role is Role.TOOL_RESULT else [call("post", text=newest.text)]


def model() -> ScriptedModel:
    return ScriptedModel(replies=posting)


async def asked(gateway: Gateway, count: int = 1) -> list[Approval]:
    """Wait until so many calls wait for a word, and list them, oldest first."""
    heard, seen = Heard(gateway), 0
    while len(pending := await gateway.store.approvals(state=ApprovalState.PENDING, limit=100)) < count:
        await heard.until(lambda told=seen: len(heard.of(ApprovalChanged)) > told)  # type: ignore[misc]  # bound now
        seen = len(heard.of(ApprovalChanged))
    return pending[::-1]


async def waits_again(state: Path, gateway: Gateway) -> None:
    """Wait until this process waits for the word: a function gets there from its beginning."""
    await asked(gateway)
    with closing(sqlite3.connect(state / "backchannel.db")) as database:
        async with asyncio.timeout(20):
            while database.execute("SELECT fence FROM approvals").fetchone() != (gateway.store.number,):
                await gateway.store.check_writable()


async def answer(gateway: Gateway, approval: Approval, decision: ApprovalDecided, **more: Any) -> Approval:
    return await gateway.store.answer_approval(approval.id, decision, OLGA, **more)


async def test_a_call_waits_for_a_word_and_goes_ahead_with_it(tmp_path: Path) -> None:
    desk = PostingTool()
    async with running(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        (approval,) = await asked(gateway)
        assert (approval.run_id, approval.tool, approval.args) == ("r", "post", {"text": "hello"})
        assert desk.posted == [] and (await stored(gateway, "r")).state is RunState.RUNNING
        answered = await answer(gateway, approval, ApprovalDecided.APPROVE)
        assert (answered.state, answered.answered_by) == (ApprovalState.APPROVED, "olga")
        assert (await ended(gateway, "r")).reply == "so: posted hello"
    assert desk.posted == ["hello"]


async def test_a_call_that_is_denied_is_not_carried_out_and_the_model_is_told(tmp_path: Path) -> None:
    desk = PostingTool()
    async with running(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        await answer(gateway, (await asked(gateway))[0], ApprovalDecided.DENY)
        assert "denied" in ((await ended(gateway, "r")).reply or "")
    assert desk.posted == []


async def test_while_it_waits_its_slot_is_free_and_its_lane_is_not(tmp_path: Path) -> None:
    agents = {**AGENTS, "defaults": {"maxConcurrent": 1}}
    async with running(tmp_path, model(), config={**ASKING, "agents": agents}, equip=PostingTool().equip) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        (approval,) = await asked(gateway)
        await gateway.submit("main", "behind", run_id="behind")
        other = await gateway.submit("agent:main:other", "hello there", run_id="other")
        (_, second) = await asked(gateway, 2)
        assert second.run_id == other.id
        assert (await stored(gateway, "behind")).state is RunState.QUEUED
        for each in (second, approval):
            await answer(gateway, each, ApprovalDecided.APPROVE)
            await ended(gateway, each.run_id)
        await answer(gateway, (await asked(gateway))[0], ApprovalDecided.APPROVE)
        assert (await ended(gateway, "behind")).state is RunState.OK


async def test_the_question_stands_over_any_number_of_crashes_and_is_asked_once(tmp_path: Path) -> None:
    desk = PostingTool()
    for _ in range(5):
        async with dying(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
            await gateway.submit("main", "hello", run_id="r")
            await waits_again(tmp_path, gateway)
    async with running(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
        (approval,) = await asked(gateway)
        run = await stored(gateway, "r")
        assert (run.state, run.crashes) == (RunState.RUNNING, 0)
        await answer(gateway, approval, ApprovalDecided.APPROVE)
        assert (await ended(gateway, "r")).reply == "so: posted hello"
    assert desk.posted == ["hello"]


@pytest.mark.parametrize("lost", ["the rule", "the tool"])
async def test_a_question_stands_if_the_rule_or_the_tool_is_gone_after_a_start(tmp_path: Path, lost: str) -> None:
    desk = PostingTool()
    async with dying(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        await asked(gateway)
    config = {"agents": AGENTS} if lost == "the rule" else ASKING
    async with running(tmp_path, model(), config=config) as gateway:
        await waits_again(tmp_path, gateway)
        desk.equip(gateway)  # as a server that takes long to start
        await answer(gateway, (await asked(gateway))[0], ApprovalDecided.APPROVE)
        assert (await ended(gateway, "r")).reply == "so: posted hello"
    assert desk.posted == ["hello"]


async def test_an_approved_call_whose_tool_does_not_come_back_is_told_as_that(tmp_path: Path) -> None:
    async with dying(tmp_path, model(), config=ASKING, equip=PostingTool().equip) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        (approval,) = await asked(gateway)
    async with running(tmp_path, model(), config=ASKING) as gateway:
        await answer(gateway, approval, ApprovalDecided.APPROVE)
        assert "there is no tool 'post'" in ((await ended(gateway, "r")).reply or "")


@pytest.mark.parametrize("change", ["reset", "delete"])
async def test_what_was_allowed_for_good_ends_with_the_conversation(tmp_path: Path, change: str) -> None:
    desk, key = PostingTool(), SessionKey.stored("agent:main:other")
    async with running(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
        await gateway.submit(str(key), "first", run_id="first")
        await answer(gateway, (await asked(gateway))[0], ApprovalDecided.APPROVE, always=True)
        await ended(gateway, "first")
        await (gateway.runtime.delete(key) if change == "delete" else gateway.store.reset_session(key))
        await gateway.submit(str(key), "second", run_id="second")
        await answer(gateway, (await asked(gateway))[0], ApprovalDecided.DENY)
        await ended(gateway, "second")
    assert desk.posted == ["first"]


async def test_a_word_that_comes_right_after_a_start_counts_wherever_the_run_is(tmp_path: Path) -> None:
    desk = PostingTool()
    async with dying(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        (approval,) = await asked(gateway)
    async with running(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
        await answer(gateway, approval, ApprovalDecided.DENY)
        assert "denied" in ((await ended(gateway, "r")).reply or "")
    assert desk.posted == []


async def test_no_time_passes_for_a_run_that_waits(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    async with running(tmp_path, model(), config=ASKING, equip=PostingTool().equip, clock=clock) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        (approval,) = await asked(gateway)
        clock.move_on(3600)
        await answer(gateway, approval, ApprovalDecided.APPROVE)
        run = await ended(gateway, "r")
        assert (run.state, run.ran_ms < 3_600_000) == (RunState.OK, True)


async def test_the_limit_of_a_run_does_not_end_its_wait(tmp_path: Path) -> None:
    async with running(tmp_path, model(), config=ASKING, equip=PostingTool().equip) as gateway:
        await gateway.runtime.submit(request("agent:main:main", "hello", id="r", timeout_s=0.4))
        (approval,) = await asked(gateway)
        run = await gateway.runtime.wait("r", 0.6)
        assert run.state is RunState.RUNNING
        await answer(gateway, approval, ApprovalDecided.APPROVE)
        assert (await ended(gateway, "r")).state is RunState.OK


async def test_after_its_time_a_question_has_expired_and_the_model_is_told(tmp_path: Path) -> None:
    desk, clock = PostingTool(), StageClock.held(NOON)
    config = {**ASKING, "tools": {**APPROVAL, "approvalTimeoutMinutes": 10}}
    async with running(tmp_path, model(), config=config, equip=desk.equip, clock=clock) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        (approval,) = await asked(gateway)
        clock.move_on(601)
        assert "in time" in ((await ended(gateway, "r")).reply or "")
        with pytest.raises(InvalidRequest, match="expired already"):
            await answer(gateway, approval, ApprovalDecided.APPROVE)
    assert desk.posted == []


async def test_an_abort_takes_the_question_back(tmp_path: Path) -> None:
    async with running(tmp_path, model(), config=ASKING, equip=PostingTool().equip) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        (approval,) = await asked(gateway)
        await gateway.runtime.abort("agent:main:main", "r")
        assert (await ended(gateway, "r")).state is RunState.ABORTED
        found = await gateway.store.approval(approval.id)
        assert found is not None and found.state is ApprovalState.EXPIRED


async def test_a_tool_that_is_allowed_for_good_is_not_asked_for_in_that_session_again(tmp_path: Path) -> None:
    desk = PostingTool()
    async with running(tmp_path, model(), config=ASKING, equip=desk.equip) as gateway:
        await gateway.submit("main", "one", run_id="r")
        await answer(gateway, (await asked(gateway))[0], ApprovalDecided.APPROVE, always=True)
        await ended(gateway, "r")
        assert await gateway.ask("main", "two") == "so: posted two"
        await gateway.submit("agent:main:other", "three", run_id="other")
        assert [approval.run_id for approval in await asked(gateway)] == ["other"]
    assert desk.posted == ["one", "two"]


async def test_a_question_is_answered_once(tmp_path: Path) -> None:
    async with running(tmp_path, model(), config=ASKING, equip=PostingTool().equip) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        (approval,) = await asked(gateway)
        first = await answer(gateway, approval, ApprovalDecided.APPROVE)
        assert await answer(gateway, approval, ApprovalDecided.APPROVE) == first
        with pytest.raises(InvalidRequest, match="approved already"):
            await answer(gateway, approval, ApprovalDecided.DENY)
        with pytest.raises(ApprovalNotFound):
            await gateway.store.answer_approval("nobody", ApprovalDecided.DENY, OLGA)
        with pytest.raises(InvalidRequest, match="not denied"):
            await answer(gateway, approval, ApprovalDecided.DENY, always=True)


async def test_calls_of_one_reply_are_asked_for_side_by_side(tmp_path: Path) -> None:
    desk = PostingTool()
    replies: list[Scripted] = [[call("post", text="a"), call("post", text="b")], "done"]
    async with running(tmp_path, ScriptedModel(replies=replies), config=ASKING, equip=desk.equip) as gateway:
        await gateway.submit("main", "both", run_id="r")
        first, second = await asked(gateway, 2)
        await answer(gateway, second, ApprovalDecided.APPROVE)
        await answer(gateway, first, ApprovalDecided.DENY)
        assert (await ended(gateway, "r")).reply == "done"
        results = [
            bool(message.is_error) for message in await transcript_of(gateway) if message.role is Role.TOOL_RESULT
        ]
        assert sorted(results) == [False, True]


async def test_a_call_of_a_function_agent_is_asked_for_too_over_crashes(tmp_path: Path) -> None:
    desk = PostingTool()

    def equip(gateway: Gateway) -> None:
        desk.equip(gateway)

        @gateway.agent("main")
        async def clerk(context: FunctionContext) -> str:
            try:
                return str(await context.call("post", text=context.text))
            except ToolFailed as failed:
                return f"no: {failed}"

    config = {"tools": APPROVAL}
    for _ in range(4):
        async with dying(tmp_path, config=config, equip=equip) as gateway:
            await gateway.submit("main", "hello", run_id="r")
            await waits_again(tmp_path, gateway)
    async with running(tmp_path, config=config, equip=equip) as gateway:
        await answer(gateway, (await asked(gateway))[0], ApprovalDecided.APPROVE)
        assert (await ended(gateway, "r")).reply == "posted hello"
        assert await texts_of(gateway) == ["hello", "", "posted hello", "posted hello"]
    assert desk.posted == ["hello"]


class Approved:
    """A call is asked for, allowed, carried out; the process dies at each of these commits."""

    def __init__(self) -> None:
        self.model = model()
        self.posted: Counter[str] = Counter()

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

        @gateway.tool(effects="outside")
        async def post(text: str, context: ToolContext) -> str:
            self.posted[context.call_id] += 1
            return f"posted {text}"

    async def drive(self, gateway: Gateway) -> None:
        run = await gateway.submit("main", "hello", run_id="r")
        while not (run.is_finished or (known := await gateway.store.approvals(limit=1))):
            await asyncio.sleep(0)
            run = await stored(gateway, "r")
        if not run.is_finished:
            await answer(gateway, known[0], ApprovalDecided.APPROVE)
        await gateway.runtime.wait("r", 10)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        assert max(self.posted.values(), default=0) <= 1
        (state,) = database.execute("SELECT state FROM runs").fetchone()
        assert state == "ok"
        assert database.execute("SELECT state, answered_by FROM approvals").fetchall() == [("approved", "olga")]


async def test_killed_at_any_commit_an_approved_call_is_carried_out_at_most_once(
    record_property: Callable[[str, object], None],
) -> None:
    points = await kill_at_every_commit(Approved, ASKING)
    record_property(CRASH_POINTS, ("Approved", points))
    assert points >= 8
