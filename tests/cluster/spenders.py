"""Gateways that spend one budget and are killed, again and again: `python -m tests.cluster.spenders <orders>`.

The provider lives in the process that kills them. It bills a request as soon as it has read it, so its bill is right
whatever becomes of the answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from backchannel.config.load import config_from
from backchannel.core.money.amounts import read_reservation
from backchannel.errors import BudgetExceeded, Unavailable
from backchannel.gateway.app import Gateway
from tests.cluster.lives import ROOT, START_LIMIT_S
from tests.cluster.member import REST_LIMIT_S, come_to_rest
from tests.support.postgres import Rows
from tests.support.stub_provider import Answer, Asked, Drop, Fault, StubProvider, Told

SESSIONS = 64
GATEWAYS = 3
LONGEST = 100
LEASE_S = 1.0
INPUT_PRICE, OUTPUT_PRICE = 0.4, 2.0
RUN = re.compile(r"<<(.+?)>>")


class Orders(msgspec.Struct):
    """What a process is told."""

    folder: str
    url: str
    name: str
    provider: str
    budget: dict[str, Any]
    price: float = 1.0
    """A factor of the prices."""

    def gateway(self) -> Gateway:
        cost = {"input": INPUT_PRICE * self.price, "output": OUTPUT_PRICE * self.price}
        model = {"id": "m", "contextWindow": 100_000, "maxTokens": LONGEST, "cost": cost}
        settings = {
            "agents": {"list": [{"id": "main", "model": "stub/m"}], "defaults": {"maxConcurrent": SESSIONS}},
            "tools": {"deny": ["*"]},
            "models": {"providers": {"stub": {"api": "openai", "baseUrl": self.provider, "models": [model]}}},
            "database": {"url": self.url},
            "cluster": {"leaseSeconds": LEASE_S},
            "budgets": [
                {"name": "tight", "scope": "gateway", "per": "total", "then": "stop", **self.budget},
                {"name": "wide", "scope": "session", "per": "day", "then": "stop", "tokens": 10**12},
            ],
        }
        return Gateway(config_from(settings, {}, state=Path(self.folder) / self.name))


class Biller:
    """A provider that answers after a moment, refuses some requests, and breaks off some answers."""

    def __init__(self, chance: random.Random, price: float) -> None:
        self._chance = chance
        self._price = price
        self.calls = self.tokens = 0
        self.micros = 0.0
        self.runs: set[str] = set()

    def answer(self, asked: Asked) -> Told:
        if self._chance.random() < 0.02:
            return Fault(429, "slow down", headers={"retry-after": "0.1"})
        size = len(json.dumps(asked.body, ensure_ascii=False).encode())
        sent, said = self._chance.randint(size // 6, size // 3), self._chance.randint(1, LONGEST)
        assert LONGEST in (asked.body.get("max_tokens"), asked.body.get("max_completion_tokens"))
        self.micros += self._price * (sent * INPUT_PRICE + said * OUTPUT_PRICE)
        self.tokens += sent + said
        self.calls += 1
        self.runs.add(RUN.findall(str(asked.messages[-1]["content"]))[-1])
        if self._chance.random() < 0.02:
            return Drop()
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(self._chance.uniform(0.02, 0.3), gate.set)
        return Answer(text="done", input_tokens=sent, output_tokens=said, gate=gate)


async def spend(gateway: Gateway, number: int, life: str) -> None:
    """Let a session run again and again, until nothing is left."""
    for turn in range(10_000):
        run_id = f"{life}-{number}-{turn}"
        try:
            run = await gateway.submit(f"agent:main:s{number}", f"<<{run_id}>>", run_id=run_id)
        except BudgetExceeded:
            return
        except Unavailable:
            await asyncio.sleep(0.1)
            continue
        ended = await gateway.runtime.wait(run.id, REST_LIMIT_S)
        if ended is not None and ended.error_code == "budget_exceeded":
            return


async def live(orders: Orders, life: str) -> None:
    async with orders.gateway() as gateway:
        print("ready", flush=True)
        own = range(int(orders.name[1:]), SESSIONS, GATEWAYS)
        async with asyncio.TaskGroup() as group:
            for number in own:
                group.create_task(spend(gateway, number, life))
        await asyncio.to_thread(sys.stdin.read)


class Spenders:
    """The processes."""

    def __init__(self, orders: Orders, chance: random.Random) -> None:
        self._orders = orders
        self._chance = chance
        self._lives: dict[str, asyncio.subprocess.Process] = {}
        self._begun = self.kills = 0

    async def begin(self, name: str) -> None:
        self._begun += 1
        orders = msgspec.structs.replace(self._orders, name=name)
        with (Path(orders.folder) / f"{name}.log").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.cluster.spenders", msgspec.json.encode(orders).decode()),
                f"{name}-{self._begun}",
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        self._lives[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(START_LIMIT_S):
            assert await process.stdout.readline() == b"ready\n", f"{name} did not start"

    async def trouble(self, seconds: float) -> None:
        """Kill one about every second, and start another in its place meanwhile."""
        ends = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            starting: dict[str, asyncio.Task[None]] = {}
            while asyncio.get_running_loop().time() < ends:
                await asyncio.sleep(self._chance.uniform(0.5, 1.5))
                ready = [name for name in sorted(self._lives) if name not in starting or starting[name].done()]
                if ready:
                    name = self._chance.choice(ready)
                    await self._kill(name)
                    self.kills += 1
                    starting[name] = group.create_task(self.begin(name))

    async def _kill(self, name: str) -> None:
        self._lives[name].kill()
        await self._lives[name].wait()

    async def end(self) -> None:
        for name in self._lives:
            await self._kill(name)


async def spend_and_die(
    folder: Path, url: str, budget: dict[str, Any], *, seconds: float, seed: int, price: float = 1.0
) -> str:
    """Let three gateways spend a budget while they are killed, check the bill, and tell about it."""
    chance = random.Random(seed)
    biller = Biller(chance, price)
    async with StubProvider(reply=biller.answer) as stub:
        orders = Orders(str(folder), url, "last", stub.base_url, budget, price)
        async with orders.gateway():
            pass  # the tables are there
        spenders = Spenders(orders, chance)
        try:
            await asyncio.gather(*(spenders.begin(f"g{n}") for n in range(GATEWAYS)))
            await spenders.trouble(seconds)
        finally:
            await spenders.end()
        async with orders.gateway() as gateway:
            await come_to_rest(gateway)
            await asyncio.gather(*(spend(gateway, number, "last") for number in range(SESSIONS)))
        assert stub.refused == []
    return f"{spenders.kills} kills: {check(url, budget, biller)}"


def check(url: str, budget: dict[str, Any], biller: Biller) -> str:
    """Check that the bill is within the limit, and that less than one call is left."""
    ((unit, amount),) = budget.items()
    limit = int(amount * 1_000_000) if unit == "usd" else amount
    with closing(Rows(url)) as rows:
        counts = "usd, tokens, runs, open_usd, open_tokens"
        found = rows.execute(f"SELECT {counts} FROM budget_windows WHERE budget = 'tight'").fetchall()
        made = [read_reservation(row) for (row,) in rows.execute("SELECT reserved FROM runs").fetchall()]
    ((*spent, open_usd, open_tokens),) = found
    counted = dict(zip(("usd", "tokens", "runs"), spent, strict=True))[unit]
    highest = 1 if unit == "runs" else max(getattr(each.amount, unit) for each in made if each is not None)
    bill = {"usd": biller.micros, "tokens": biller.tokens, "runs": len(biller.runs)}[unit]
    told = (
        f"{unit}: a bill of {bill:,.0f}, counted {counted:,} of {limit:,}; a call is {highest:,}; {biller.calls} calls"
    )
    assert (open_usd, open_tokens) == (0, 0), told
    assert bill <= counted <= limit, told
    assert counted > limit - 1.25 * highest, told
    return told


if __name__ == "__main__":
    asyncio.run(live(msgspec.json.decode(sys.argv[1], type=Orders), sys.argv[2]))
