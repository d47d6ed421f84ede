"""Killed at any commit, a flow with budgets counts at least its bill, passes no limit, and leaves nothing reserved."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

import pytest

from backchannel.agents.scripted import Reply, Scripted, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.policy.approvals import ApprovalDecided, ApprovalState
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.runtime.test_budgets import OWNER, Biller, with_budgets
from tests.support.gateways import ended, stored
from tests.support.kill import kill_at_every_commit

pytestmark = pytest.mark.anyio

LIMIT = 2.0


class BudgetedTalk:
    """A run with a tool call, and a second one that owners must grant."""

    def __init__(self) -> None:
        self.model = Biller(replies=self.reply)

    def reply(self, request: ModelRequest) -> Scripted:
        usage = self.model.usage()
        if request.messages[-1].tool_call_id is None:
            return Reply(calls=(call("sessions_list"),), usage=usage)
        return Reply(text="done", usage=usage)

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        await gateway.submit("main", "hello", run_id="first")
        await ended(gateway, "first")
        await gateway.submit("main", "again", run_id="second")
        async with asyncio.timeout(20):
            while not (await stored(gateway, "second")).is_finished:
                for asked in await gateway.store.approvals(state=ApprovalState.PENDING, limit=5):
                    await gateway.store.answer_approval(asked.id, ApprovalDecided.APPROVE, OWNER)

    def check(self, database: sqlite3.Connection) -> None:
        assert database.execute("SELECT state, count(*) FROM runs GROUP BY 1").fetchall() == [("ok", 2)]
        rows = database.execute(
            "SELECT budget, usd, runs, open_usd, open_tokens, granted FROM budget_windows"
        ).fetchall()
        found = {name: row for name, *row in rows}
        assert {(open_usd, open_tokens) for _, _, open_usd, open_tokens, _ in found.values()} == {(0, 0)}
        usd, *_ = found["b0"]
        assert self.model.bill <= usd / 1_000_000 <= LIMIT
        assert found["b1"][1] == 2 and found["b1"][4] == 1, "each run is counted once, and one grant is enough"


async def test_killed_at_any_commit_nothing_is_reserved_for_ever_and_each_run_counts_once(
    record_property: Callable[[str, object], None],
) -> None:
    points = await kill_at_every_commit(BudgetedTalk, with_budgets({"usd": LIMIT}, {"runs": 1, "then": "ask"}))
    record_property(CRASH_POINTS, (BudgetedTalk.__name__, points))
    assert points >= 6
