"""Several gateways share their budgets: together they never pass a limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backchannel.errors import BudgetExceeded
from tests.cluster.gateways import gateways
from tests.runtime.test_budgets import Biller, with_budgets
from tests.support.gateways import ended
from tests.support.postgres import new_database

pytestmark = pytest.mark.anyio

RUNS = 64
LIMIT = 1.0
ONE_CALL = 0.17


async def test_64_runs_on_three_gateways_never_pass_a_limit_and_leave_less_than_one_call(tmp_path: Path) -> None:
    model = Biller()
    config = with_budgets({"usd": LIMIT}, {"tokens": 10**9, "scope": "agent"}, {"runs": 1000, "scope": "session"})
    async with gateways(tmp_path, new_database(), model, count=3, config=config) as opened:

        async def one(number: int) -> None:
            gateway = opened[number % 3]
            for turn in range(3):
                try:
                    await gateway.submit(f"agent:main:s{number}", "hello", run_id=f"r{number}-{turn}")
                except BudgetExceeded:
                    return
                await ended(gateway, f"r{number}-{turn}", timeout_s=60)

        async with asyncio.TaskGroup() as group:
            for number in range(RUNS):
                group.create_task(one(number))
        (row,) = (await opened[0].store.budgets())[0].rows
        assert row.open_usd == 0
        assert LIMIT - ONE_CALL < model.bill <= LIMIT
        assert model.bill <= row.usd / 1_000_000 <= LIMIT
