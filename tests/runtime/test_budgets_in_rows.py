"""Budgets where models stand in a row: each attempt is reserved at its own price, and a waiting run holds nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel
from backchannel.core.contracts import ModelFailed, ModelRequest, Price
from backchannel.core.messages import Usage
from backchannel.core.runs import RunState
from backchannel.errors import StartupError
from backchannel.gateway.app import Gateway
from tests.runtime.test_budgets import state_of, with_budgets
from tests.runtime.test_compaction import FILLER, say
from tests.runtime.test_model_waits import START, TurnedClock, row, waiting
from tests.support.clocks import StageClock
from tests.support.gateways import ended, running, session_of

pytestmark = pytest.mark.anyio

REFUSED = ModelFailed("overloaded", retryable=True, is_billed=False)
CUT_OFF = ModelFailed("the connection was cut", retryable=True)
USED = Usage(input=100, output=10)
FREE = Price(0.0, 0.0)


class Priced(ScriptedModel):
    """A model that fails until it is up. It keeps what was open in the ledger at each of its calls."""

    def __init__(self, ref: str, price: float, longest: int, failure: ModelFailed | None = None) -> None:
        super().__init__(ref, price=Price(price, price), replies=self._answer)
        self.max_tokens = longest
        self.failure = failure
        self.gateway: Gateway | None = None
        self.told: Usage | None = None
        self.open: list[int] = []

    async def _answer(self, request: ModelRequest) -> Scripted:
        assert self.gateway is not None and self.price is not None
        assert request.max_tokens == self.max_tokens
        self.open.append((await state_of(self.gateway)).open_usd)
        usage = self.told or Usage(input=100, output=10, cost=self.price.of(USED))
        return self.failure or Reply(text="done", usage=usage)


def config(*fallbacks: str, **budget: Any) -> dict[str, Any]:
    return with_budgets({"usd": 100.0, **budget}) | row(*fallbacks)


@pytest.fixture
def clock() -> StageClock:
    return TurnedClock.held(START)


@pytest.mark.parametrize("failure", [REFUSED, CUT_OFF], ids=["refused", "cut off"])
async def test_each_attempt_is_reserved_and_a_fallback_by_its_own_price(
    tmp_path: Path, clock: StageClock, failure: ModelFailed
) -> None:
    cheap, dear = Priced("scripted/test", 1.0, 100, failure), Priced("other/dear", 50.0, 300)
    async with running(tmp_path, cheap, dear, config=config("other/dear"), clock=clock) as gateway:
        cheap.gateway = dear.gateway = gateway
        await gateway.submit("main", "hello", run_id="r")
        assert (await ended(gateway, "r")).answered_by == "other/dear"
        spent = await state_of(gateway)
    assert len(cheap.open) == 5 and len(set(cheap.open)) == 1 and cheap.open[0] > 0
    assert len(dear.open) == 1 and dear.open[0] > 40 * cheap.open[0]
    unknown = 5 * cheap.open[0] if failure.is_billed else 0
    assert (spent.usd, spent.open_usd, spent.open_tokens, spent.runs) == (unknown + 110 * 50, 0, 0, 1)


@pytest.mark.parametrize("failure", [REFUSED, CUT_OFF], ids=["refused", "cut off"])
async def test_a_run_that_waits_for_its_model_holds_nothing_and_reserves_anew(
    tmp_path: Path, clock: StageClock, failure: ModelFailed
) -> None:
    model = Priced("scripted/test", 10.0, 100, failure)
    async with running(tmp_path, model, config=config(), clock=clock) as gateway:
        model.gateway = gateway
        await gateway.submit("main", "hello", run_id="r")
        await waiting(gateway, "r")
        whole = model.open[0]
        waits = await state_of(gateway)
        unknown = 5 * whole if failure.is_billed else 0
        assert (waits.usd, waits.open_usd, waits.open_tokens, waits.runs) == (unknown, 0, 0, 1)
        model.failure = None
        clock.move_on(70)
        assert (await ended(gateway, "r")).state is RunState.OK
        assert len(model.open) == 6 and model.open[-1] >= whole
        spent = await state_of(gateway)
    assert (spent.usd, spent.open_usd, spent.open_tokens, spent.runs) == (unknown + 1100, 0, 0, 1)


async def test_a_run_is_told_of_the_limit_when_its_unknown_attempts_have_used_it_up(
    tmp_path: Path, clock: StageClock
) -> None:
    model = Priced("scripted/test", 10.0, 100, CUT_OFF)
    async with running(tmp_path, model, config=config(usd=0.3), clock=clock) as gateway:
        model.gateway = gateway
        await gateway.submit("main", "hello", run_id="r")
        run = await ended(gateway, "r")
        spent = await state_of(gateway)
    assert (run.state, run.error_code) == (RunState.ERROR, "budget_exceeded")
    assert len(model.open) * model.open[0] == spent.usd <= 300_000 < spent.usd + model.open[0]
    assert spent.open_usd == 0


@pytest.mark.parametrize("failure", [REFUSED, CUT_OFF], ids=["refused", "cut off"])
async def test_a_summary_is_reserved_for_each_model_of_its_row_at_its_own_price(
    tmp_path: Path, failure: ModelFailed
) -> None:
    talker = ScriptedModel(replies=lambda request: Reply(text="noted", usage=Usage(input=1, output=1)), price=FREE)
    first, second = Priced("other/first", 1.0, 100, failure), Priced("other/second", 50.0, 300)
    settings = config() | {"tools": {"deny": ["*"]}}
    settings["agents"]["defaults"] = {"context": {"model": {"primary": "other/first", "fallbacks": ["other/second"]}}}
    async with running(tmp_path, talker, first, second, config=settings) as gateway:
        first.gateway = second.gateway = gateway
        await say(gateway, *(f"{n}: {FILLER}" for n in range(6)))
        assert (await gateway.runtime.compaction.asked(await session_of(gateway), None)).entry is not None
        spent = await state_of(gateway)
    assert len(first.open) == len(second.open) == 1 and second.open[0] > 40 * first.open[0] > 0
    unknown = first.open[0] if failure.is_billed else 0
    assert (spent.usd, spent.open_usd, spent.open_tokens, spent.runs) == (unknown + 110 * 50, 0, 0, 6)


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input=10**18, output=10**30, cost=math.inf),
        Usage(input=-(10**18), output=-5, cost=-3.0),
        Usage(input=10, output=1, cost=math.nan),
        Usage(),
    ],
    ids=["huge", "negative", "no number", "missing"],
)
async def test_numbers_that_cannot_be_true_never_make_a_call_cheaper(tmp_path: Path, usage: Usage) -> None:
    model = Priced("scripted/test", 10.0, 100)
    model.told = usage
    async with running(tmp_path, model, config=config(usd=0.4)) as gateway:
        model.gateway = gateway
        run = await ended(gateway, (await gateway.submit("main", "hello")).id)
        spent = await state_of(gateway)
    assert run.state is RunState.OK and run.tokens_in >= 0
    assert (spent.open_usd, spent.open_tokens) == (0, 0)
    assert spent.usd >= model.open[0] and 0 <= spent.tokens < 1 << 40


UNPRICED = "scripted/unpriced"


@pytest.mark.parametrize(
    "agents",
    [
        {"list": [{"id": "main", "model": {"primary": "scripted/test", "fallbacks": [UNPRICED]}}]},
        {"list": [{"id": "main", "subagents": {"model": UNPRICED}}]},
        {"list": [{"id": "main"}], "defaults": {"context": {"model": UNPRICED}}},
        {"list": [{"id": "main"}, {"id": "other"}]},
    ],
    ids=["fallback", "sub-agents", "summaries", "cron job"],
)
async def test_a_gateway_does_not_start_where_dollars_are_counted_of_a_model_without_price(
    tmp_path: Path, agents: dict[str, Any]
) -> None:
    job = {"id": "j", "schedule": "every 1h", "message": "go", "agentId": "main"}
    job["model"] = UNPRICED if len(agents["list"]) == 2 else "scripted/test"
    agents = {**agents, "defaults": {"model": "scripted/test", **agents.get("defaults", {})}}
    models = Priced("scripted/test", 1.0, 9), ScriptedModel(UNPRICED, replies=["hi"])
    settings = with_budgets({"usd": 1.0, "match": {"agentId": "main"}}) | {"agents": agents, "cron": {"jobs": [job]}}
    with pytest.raises(StartupError, match="scripted/unpriced has no known price, and the budget b0"):
        async with running(tmp_path, *models, config=settings):
            pass


async def test_an_agent_whose_dollars_nobody_counts_needs_no_price(tmp_path: Path) -> None:
    agents = {"list": [{"id": "main", "model": UNPRICED}, {"id": "other", "model": "scripted/test"}]}
    settings = with_budgets({"usd": 1.0, "match": {"agentId": "other"}}, {"tokens": 10**9}) | {"agents": agents}
    models = Priced("scripted/test", 1.0, 9), ScriptedModel(UNPRICED, replies=["hi"])
    async with running(tmp_path, *models, config=settings) as gateway:
        assert await gateway.ask("main", "hello") == "hi"
