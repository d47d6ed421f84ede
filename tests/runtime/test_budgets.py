"""Budgets in runs: what parallel calls may spend, what happens at the limit, and what a crash costs."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelFailed, ModelRequest, Price
from backchannel.core.messages import Usage
from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import ApprovalDecided, ApprovalState
from backchannel.core.runs import RunState
from backchannel.errors import BudgetExceeded
from backchannel.gateway.app import Gateway
from backchannel.gateway.condition import examine
from backchannel.wire.shapes import plain
from tests.support.clocks import StageClock
from tests.support.gateways import CONFIG, dying, ended, held, running
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio

PRICE = Price(input=10.0, output=100.0)
LONGEST = 100
OWNER = Answerer("operator")


class Biller(ScriptedModel):
    """A model that counts its bill: each call costs what it used, whether or not the answer arrives."""

    max_tokens = LONGEST

    def __init__(self, *, seed: int = 1, replies: Any = None) -> None:
        super().__init__(price=PRICE, replies=replies or self._answer)
        self.random = random.Random(seed)
        self.bill = 0.0
        self.calls = 0
        self.tokens = 0

    def usage(self) -> Usage:
        sent, said = self.random.randint(50, 900), self.random.randint(1, LONGEST)
        usage = Usage(input=sent, output=said)
        self.calls += 1
        self.tokens += usage.total
        self.bill += PRICE.of(usage)
        return Usage(input=sent, output=said, cost=PRICE.of(usage))

    async def _answer(self, request: ModelRequest) -> Scripted:
        assert request.max_tokens == LONGEST
        usage = self.usage()
        await asyncio.sleep(0)
        return Reply(text="done", usage=usage)


def with_budgets(*budgets: dict[str, Any]) -> dict[str, Any]:
    base = {"scope": "gateway", "per": "total", "then": "stop"}
    return {**CONFIG, "budgets": [{**base, "name": f"b{n}", **budget} for n, budget in enumerate(budgets)]}


async def state_of(gateway: Gateway, number: int = 0) -> Any:
    (row,) = (await gateway.store.budgets())[number].rows
    return row


@pytest.mark.parametrize(
    ("limit", "spent"),
    [({"usd": 0.40}, "usd"), ({"tokens": 30_000}, "tokens"), ({"runs": 9}, "runs")],
    ids=["usd", "tokens", "runs"],
)
async def test_many_runs_at_once_never_pass_a_limit_and_leave_less_than_one_call(
    tmp_path: Path, limit: dict[str, Any], spent: str
) -> None:
    model = Biller()
    async with running(tmp_path, model, config=with_budgets(limit, {"usd": 100.0, "scope": "session"})) as gateway:
        accepted = 0
        for n in range(48):
            try:
                await gateway.submit(f"agent:main:s{n}", "hello", run_id=f"r{n}")
                accepted += 1
            except BudgetExceeded:
                continue
        runs = [await ended(gateway, f"r{n}") for n in range(accepted)]
        row = await state_of(gateway)
        stopped = [run for run in runs if run.state is RunState.ERROR]
        assert {run.error_code for run in stopped} <= {"budget_exceeded"}
        assert row.open_usd == row.open_tokens == 0
        total = {"usd": model.bill, "tokens": model.tokens, "runs": model.calls}[spent]
        most, one_call = {"usd": (0.40, 0.17), "tokens": (30_000, 13_000), "runs": (9, 1)}[spent]
        assert total <= most
        assert total > most - one_call, "more than one call was left"


async def test_a_run_whose_next_call_does_not_fit_ends_and_names_the_budget(tmp_path: Path) -> None:
    model = Biller()
    async with running(tmp_path, model, config=with_budgets({"usd": 0.02})) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        run = await ended(gateway, "r")
        assert (run.state, run.error_code) == (RunState.ERROR, "budget_exceeded")
        assert run.error is not None and "the budget b0 has spent" in run.error and "up to" in run.error
        assert model.calls == 0
        assert (await gateway.store.budgets())[0].rows == []


async def pending(gateway: Gateway) -> str:
    async with asyncio.timeout(20):
        while True:
            found = await gateway.store.approvals(state=ApprovalState.PENDING, limit=10)
            if found:
                (only,) = found
                return only.id
            await asyncio.sleep(0.01)


async def test_owners_are_asked_once_and_each_approval_grants_the_same_amount_again(tmp_path: Path) -> None:
    model = Biller()
    async with running(tmp_path, model, config=with_budgets({"runs": 1, "then": "ask"})) as gateway:
        for n in range(3):
            await gateway.submit(f"agent:main:s{n}", "hello", run_id=f"r{n}")
        asked = await pending(gateway)
        await gateway.store.answer_approval(asked, ApprovalDecided.APPROVE, OWNER)
        second = await pending(gateway)
        assert second != asked
        await gateway.store.answer_approval(second, ApprovalDecided.APPROVE, OWNER)
        assert [(await ended(gateway, f"r{n}")).state for n in range(3)] == [RunState.OK] * 3
        assert (await state_of(gateway)).granted == 2


async def test_runs_that_wait_for_money_say_so_and_status_tells_the_budget_and_its_end(tmp_path: Path) -> None:
    config = with_budgets({"runs": 1, "then": "ask", "per": "month"}, {"runs": 9, "name": "roomy"})
    async with running(tmp_path, Biller(), config=config) as gateway:
        await gateway.submit("agent:main:s0", "hello", run_id="r0")
        await ended(gateway, "r0")
        for n in (1, 2):
            await gateway.submit(f"agent:main:s{n}", "hello", run_id=f"r{n}")
        await _wait_for_money(gateway, 2)
        listed = await gateway.store.runs(limit=9)
        rows = {run.id: plain(gateway.parts.rows.run(run)) for run in listed}
        assert [rows[f"r{n}"].get("waitsFor") for n in range(3)] == [None, *[{"kind": "budget", "budget": "b0"}] * 2]
        problems = {problem.code: problem.message for problem in (await examine(gateway.parts)).problems}
        spent = problems["budget_used_up"]
        assert spent.startswith("The budget b0 has spent 1 run of 1 run this month; it begins anew at 20")
        assert problems["runs_waiting_for_budget"] == "2 runs wait for the budget b0."
        await gateway.store.reset_budget("b0")
        await _wait_for_money(gateway, 1)


async def _wait_for_money(gateway: Gateway, runs: int) -> None:
    async with asyncio.timeout(20):
        while True:
            if (await gateway.store.budgets())[0].waiting == runs:
                return
            await asyncio.sleep(0.01)


async def test_what_was_spent_is_told_by_day_by_agent_and_by_tree(tmp_path: Path) -> None:
    spawn = Reply(calls=(call("sessions_spawn", {"task": "dig"}),), usage=Usage(input=10, output=5, cost=0.25))
    said = Reply(text="done", usage=Usage(input=1, output=1, cost=0.5))
    async with running(tmp_path, ScriptedModel(replies=[spawn, *[said] * 9], price=PRICE), config=CONFIG) as gateway:
        await gateway.submit("agent:main:top", "hello")
        await at_rest(gateway)
        await gateway.ask("agent:main:other", "hello")
        found = await gateway.store.spending_by_tree(since=0, until=gateway.parts.clock.now_ms() + 1, limit=1)
        ((key, session, used),) = found.trees
        assert (key, found.total, session and session.key) == ("agent:main:top", 2, "agent:main:top")
        together = found.sums.agents["main"]
        assert len(found.sums.sessions) == 3 and used.runs == together.runs - 1 and used.cost == together.cost - 0.5
        assert sum(day.cost for day in found.sums.together.days.values()) == together.cost


async def test_a_denial_ends_what_waits_and_later_messages_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, Biller(), config=with_budgets({"runs": 1, "then": "ask"})) as gateway:
        for n in range(3):
            await gateway.submit(f"agent:main:s{n}", "hello", run_id=f"r{n}")
        await gateway.store.answer_approval(await pending(gateway), ApprovalDecided.DENY, OWNER)
        ends = [(await ended(gateway, f"r{n}")).error_code for n in range(3)]
        assert sorted(str(code) for code in ends) == ["None", "budget_exceeded", "budget_exceeded"]
        with pytest.raises(BudgetExceeded, match="owners denied more"):
            await gateway.submit("agent:main:late", "hello")
        await gateway.store.reset_budget("b0")
        await gateway.submit("agent:main:late", "hello", run_id="late")
        assert (await ended(gateway, "late")).state is RunState.OK


async def test_a_run_that_asks_for_more_waits_over_crashes_without_being_blamed_for_them(tmp_path: Path) -> None:
    config = with_budgets({"runs": 1, "then": "ask"})
    async with running(tmp_path, Biller(), config=config) as gateway:
        await gateway.submit("agent:main:first", "hello", run_id="first")
        await ended(gateway, "first")
    asked = set()
    for _ in range(3):
        async with dying(tmp_path, Biller(), config=config) as gateway:
            if await gateway.store.run("second") is None:
                await gateway.submit("agent:main:second", "hello", run_id="second")
            asked.add(await pending(gateway))
    async with running(tmp_path, Biller(), config=config) as gateway:
        waiting = await gateway.store.run("second")
        assert waiting is not None and waiting.crashes == 0
        (only,) = asked
        await gateway.store.answer_approval(only, ApprovalDecided.APPROVE, OWNER)
        assert (await ended(gateway, "second")).state is RunState.OK


async def test_a_call_that_a_crash_cut_off_counts_whole_and_its_run_goes_on(tmp_path: Path) -> None:
    config = with_budgets({"usd": 10.0})
    begun = asyncio.Event()
    async with dying(tmp_path, Biller(replies=[held(reached=begun)]), config=config) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        await begun.wait()
        whole = await state_of(gateway)
        assert whole.usd == whole.open_usd > 0
    model = Biller()
    async with running(tmp_path, model, config=config) as gateway:
        assert (await ended(gateway, "r")).state is RunState.OK
        row = await state_of(gateway)
        assert (row.open_usd, row.open_tokens, row.runs) == (0, 0, 1)
        assert row.usd == whole.usd + round(model.bill * 1_000_000)


async def test_a_budget_that_is_taken_away_and_comes_back_with_another_unit_counts_on(tmp_path: Path) -> None:
    begun = asyncio.Event()
    async with dying(tmp_path, Biller(replies=[held(reached=begun)]), config=with_budgets({"usd": 10.0})) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        await begun.wait()
        whole = await state_of(gateway)
    free = ScriptedModel(replies=lambda request: "done")
    async with running(tmp_path, free, config=CONFIG) as gateway:
        assert (await ended(gateway, "r")).state is RunState.OK
    async with running(tmp_path, Biller(), config=with_budgets({"tokens": 10**6})) as gateway:
        back = await state_of(gateway)
        assert (back.usd, back.tokens, back.runs) == (whole.usd, whole.tokens, 1), "the call that was cut off counts"
        assert (back.open_usd, back.open_tokens) == (0, 0)
        await gateway.ask("main", "again")
        assert (await state_of(gateway)).runs == 2


async def test_a_budget_that_begins_anew_keeps_the_calls_under_way_and_its_window_may_pass(tmp_path: Path) -> None:
    clock, gate, begun = StageClock.held("2026-05-04T12:59:00"), asyncio.Event(), asyncio.Event()
    reply = Reply(text="done", usage=Usage(input=100, output=10), gate=gate, reached=begun)
    config = with_budgets({"usd": 10.0, "per": "hour"}, {"usd": 10.0})
    async with running(tmp_path, Biller(replies=[reply, "next"]), config=config, clock=clock) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        await begun.wait()
        for name in ("b0", "b1"):
            await gateway.store.reset_budget(name)
        assert (await state_of(gateway, 1)).usd == (await state_of(gateway, 1)).open_usd > 0
        clock.move_on(120)
        gate.set()
        assert (await ended(gateway, "r")).state is RunState.OK
        assert (await gateway.store.budgets())[0].rows == [], "it counts in the hour in which it began"
        in_all = await state_of(gateway, 1)
        assert (in_all.usd, in_all.open_usd, in_all.tokens) == (2000, 0, 110)


async def test_a_refused_call_is_given_back_and_one_that_broke_off_counts(tmp_path: Path) -> None:
    refused = ModelFailed("no", retryable=False, is_billed=False)
    broken = ModelFailed("cut", retryable=False)
    model = Biller(replies=[refused, broken])
    async with running(tmp_path, model, config=with_budgets({"usd": 10.0})) as gateway:
        await gateway.submit("main", "hello", run_id="a")
        await ended(gateway, "a")
        assert (await state_of(gateway)).usd == 0
        await gateway.submit("main", "hello", run_id="b")
        await ended(gateway, "b")
        row = await state_of(gateway)
        assert row.usd > 0 and row.open_usd == 0


async def test_a_run_with_budgets_takes_no_further_commit(tmp_path: Path) -> None:
    async def units(config: dict[str, Any], state: Path) -> int:
        model = Biller()
        model._decide = partial(_talk, model)
        async with running(state, model, config=config) as gateway:
            for n in range(2):  # sizes are known from then on
                await gateway.submit("main", "hello there", run_id=f"warm{n}")
                await ended(gateway, f"warm{n}")
            before = gateway.store.driver.units
            await gateway.submit("main", "hello there", run_id="r")
            assert (await ended(gateway, "r")).state is RunState.OK
            return gateway.store.driver.units - before

    without = await units(CONFIG, tmp_path / "without")
    three = with_budgets({"usd": 100.0}, {"tokens": 10**9, "scope": "agent"}, {"runs": 1000, "scope": "session"})
    assert await units(three, tmp_path / "with") == without


def _talk(model: Biller, request: ModelRequest) -> Scripted:
    """Call a tool once, then answer."""
    last = request.messages[-1]
    usage = model.usage()
    if last.tool_call_id is None:
        return Reply(calls=(call("sessions_list"),), usage=usage)
    return Reply(text="done", usage=usage)
