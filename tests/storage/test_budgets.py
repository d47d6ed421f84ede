"""The ledger of budgets: whatever happens in whatever order, it is never negative and never over its limit."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backchannel.config.zones import period_at
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Usage
from backchannel.core.money.amounts import Amount, CallRates, read_reservation
from backchannel.core.money.budgets import BudgetAnswer, BudgetRules, BudgetSettings
from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import ApprovalDecided, ApprovalState
from backchannel.core.policy.queues import SessionRules
from backchannel.core.runs import RunStarted
from backchannel.errors import BudgetExceeded
from backchannel.storage.ids import new_id
from backchannel.storage.tx import NoOutlets
from tests.storage.support import FAILED, Host, request, result_of, step

T = TypeVar("T")

RATES = CallRates(input=2.0, output=10.0, max_tokens=50)
OWNER = Answerer("operator")
KEYS = [SessionKey.of("main", f"s{n}") for n in range(4)]


def budget(name: str, **more: Any) -> BudgetSettings:
    fields = {"scope": "gateway", "per": "hour", "then": "stop", **more, "name": name}
    return msgspec.convert(
        {{"warn_at": "warnAt"}.get(key, key): value for key, value in fields.items()}, BudgetSettings
    )


def rules_of(*budgets: BudgetSettings) -> SessionRules:
    rules = BudgetRules(budgets, partial(period_at, UTC))
    rules.quotes.learn("test/model", RATES, "main", 10)
    return SessionRules(budgets=rules)


class LedgerMachine(RuleBasedStateMachine):
    """Runs of four sessions on one database, with crashes, grants, resets and the passing of hours."""

    @initialize(
        then=st.sampled_from(["stop", "ask"]),
        limit=st.sampled_from([{"usd": 0.02}, {"tokens": 9000}, {"runs": 4}]),
        scope=st.sampled_from(["gateway", "agent", "session", "chain"]),
    )
    def start(self, then: str, limit: dict[str, Any], scope: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.Runner()
        self.host = Host(Path(self.folder.name) / "state", f"sqlite:///{self.folder.name}/state/backchannel.db")
        self.host.rules = rules_of(
            budget("tight", then=then, scope=scope, **limit),
            budget("wide", usd=100.0, per="total"),
            budget("told", scope="session", tokens=100, then="warn"),
        )
        self.do(self.host.start())
        self.running: dict[SessionKey, RunStarted] = {}
        self.billed: dict[str, Amount] = {}
        """The bill of each window, at least."""

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def wait() -> T:
            return await work

        return self.loop.run(wait())

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        for key in list(self.running):
            self.end(key, is_billed=True)
        self.do(self.host.restart())  # a process that dies leaves no hold behind
        try:
            for (count,) in self.host.rows("SELECT open_usd + open_tokens FROM budget_windows"):
                assert count == 0, "something is reserved for ever"
            assert self.host.rows("SELECT count(*) FROM budget_holds") == [(0,)]
        finally:
            self.do(self.host.end())
            self.loop.close()
            self.folder.cleanup()

    async def _write(self, future: asyncio.Future[T]) -> T:
        return await future

    @rule(key=st.sampled_from(KEYS), text=st.text(max_size=200))
    def begin(self, key: SessionKey, text: str) -> None:
        if key in self.running:
            return

        async def accept() -> None:
            with suppress(BudgetExceeded):
                accepted = await self.host.store.accept_run(request(text, key), start=True)
                assert accepted.started is not None
                self.running[key] = accepted.started

        self.do(accept())

    @rule(key=st.sampled_from(KEYS), tokens=st.integers(1, 3000), is_sent=st.booleans())
    def reserve(self, key: SessionKey, tokens: int, is_sent: bool) -> None:
        if key not in self.running:
            return
        started = self.running[key]

        async def ask() -> None:
            try:
                made = await self.host.store.reserve_call(started.fence, RATES.highest(tokens), is_sent=is_sent)
            except BudgetExceeded:
                await self.host.store.finish_run(
                    started.fence, FAILED, reply=None, at_step=started.run.step, ran_ms=1, is_billed=is_sent
                )
                del self.running[key]
                return
            assert made.answer in (BudgetAnswer.FITS, BudgetAnswer.WAIT, BudgetAnswer.ASK)
            assert (made.answer is BudgetAnswer.ASK) == (made.approval is not None)

        self.do(ask())

    @rule(key=st.sampled_from(KEYS), share=st.floats(0, 1), has_calls=st.booleans())
    def reply(self, key: SessionKey, share: float, has_calls: bool) -> None:
        """A call is answered; it used at most what was reserved."""
        if key not in self.running:
            return
        started = self.running[key]

        async def answer() -> None:
            run = await self.host.store.run(started.run.id)
            assert run is not None
            made = read_reservation(run.reserved)
            if made is None or made.step != run.step or not made.windows:
                return  # no call without a reservation
            tokens = max(1, int(made.tokens * share))
            usage = Usage(input=tokens, cost=made.usd * share / 1_000_000)
            calls = ["look"] if has_calls else []
            made_step = step(started, "hi", calls, number=run.step, usage=usage)
            committed = await self.host.store.commit_reply(started.fence, made_step)
            for window in made.windows:
                usd, tokens_before, _ = self.billed.get(window, Amount())
                self.billed[window] = Amount(usd + int(made.usd * share), tokens_before + tokens)
            if not committed.calls:
                del self.running[key]
                return
            await self.host.store.commit_result(started.fence, result_of(committed.calls[0]), 5)

        self.do(answer())

    @rule(key=st.sampled_from(KEYS), is_billed=st.booleans())
    def end(self, key: SessionKey, is_billed: bool) -> None:
        if key in self.running:
            started = self.running.pop(key)

            async def finish() -> None:
                await self.host.store.finish_run(
                    started.fence, FAILED, reply=None, at_step=0, ran_ms=1, is_billed=is_billed
                )

            self.do(finish())

    @rule(key=st.sampled_from(KEYS), is_sent=st.booleans())
    def retry(self, key: SessionKey, is_sent: bool) -> None:
        if key in self.running:
            self.do(self._write(self.host.store.note_retry(self.running[key].fence, "busy", 1, is_sent=is_sent)))

    @rule()
    def crash(self) -> None:
        async def restart() -> None:
            store = await self.host.restart()
            for key, started in list(self.running.items()):
                again = await store.resume_run(started.run.id)
                if again is None:  # it crashed too often, and is set aside
                    del self.running[key]
                else:
                    self.running[key] = again

        self.do(restart())

    @rule(hours=st.sampled_from([1, 24]))
    def pass_time(self, hours: int) -> None:
        self.host.clock.move_on(hours * 3600)

    @rule(decision=st.sampled_from(ApprovalDecided))
    def decide(self, decision: ApprovalDecided) -> None:
        async def answer() -> None:
            for asked in await self.host.store.approvals(state=ApprovalState.PENDING, limit=10):
                await self.host.store.answer_approval(asked.id, decision, OWNER)

        self.do(answer())

    @rule(name=st.sampled_from(["tight", "wide"]))
    def reset(self, name: str) -> None:
        self.do(self._write(self.host.store.reset_budget(name)))
        self.billed = {window: bill for window, bill in self.billed.items() if not window.startswith(f"{name}/")}

    @rule(is_known=st.booleans())
    def summarise(self, is_known: bool) -> None:
        async def hold() -> None:
            if await self.host.store.session(str(KEYS[0])) is None:
                return
            with suppress(BudgetExceeded):
                hold_id = new_id()
                await self.host.store.hold_call(hold_id, RATES.highest(100), str(KEYS[0]), None)
                if is_known:
                    await self.host.store.release_hold(hold_id, Usage(input=20, cost=0.0001))

        self.do(hold())

    @precondition(lambda self: hasattr(self, "host"))
    @invariant()
    def holds(self) -> None:
        found = self.host.rows(
            "SELECT id, budget, usd, tokens, runs, open_usd, open_tokens, granted FROM budget_windows"
        )
        assert self.host.rules.budgets is not None
        for window, name, usd, tokens, runs, open_usd, open_tokens, granted in found:
            assert 0 <= open_usd <= usd, "negative, or more open than spent"
            assert 0 <= open_tokens <= tokens
            assert runs >= 0
            settings = self.host.rules.budgets.named(name)
            assert settings is not None
            if settings.then.value != "warn":
                used = {"usd": usd, "tokens": tokens, "runs": runs}[settings.unit]
                assert used <= settings.limit * (1 + granted), "over its limit"
            bill = self.billed.get(window, Amount())
            assert bill.usd <= usd and bill.tokens <= tokens, "less is counted than was billed"


LedgerMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # each step is a commit: a failure is told as it was found
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.sqlite_only
class TestLedger(LedgerMachine.TestCase):  # type: ignore[misc, valid-type]  # made by hypothesis
    """Any order of reserve, settle, crash, window change, grant and reset."""


class OwnedDesk(NoOutlets):
    """One channel with one owner."""

    names = ("desk",)
    owners = (("desk", "7"),)

    def limit(self, channel: str) -> int | None:
        return 4000


@pytest.mark.anyio
async def test_owners_are_told_once_in_a_window_that_much_is_spent(tmp_path: Path) -> None:
    host = Host(tmp_path / "state")
    host.rules = rules_of(budget("daily", tokens=4000, per="day", warn_at=0.5))
    await host.start(outlets=OwnedDesk())
    for n in range(3):
        started = (await host.store.accept_run(request("hi", KEYS[n]), start=True)).started
        assert started is not None
        used = Usage(input=900, output=10, cost=0.01)
        if started.run.reserved is None:
            await host.store.reserve_call(started.fence, RATES.highest(900), is_sent=False)
        await host.store.commit_reply(started.fence, step(started, usage=used))
    told = host.rows("SELECT channel, target, text FROM deliveries")
    assert told == [("desk", "7", "The budget daily has spent 2,730 tokens of 4,000 tokens today; then runs stop.")]
    await host.end()
