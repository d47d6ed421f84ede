"""The soak: `python -m tests.soak.soak --seconds 60 --sessions 20 --seed 1`, or `make soak`.

Sessions of several agents ask each other and hand work to sub-agents without end, through the real doors of a gateway
in a real process, which is killed with -9 or stopped at random moments and started again. Agents with hands run
commands, some of which a person has to allow, and call the tool of an MCP server; people write to a bot of Telegram.
Clients send again what was not acknowledged. A platform, which now and then misbehaves, remembers every key that it
took. In the end everything is let finish, and all is counted. The model is slow now and then, so that some runs are
killed three times in one call and set aside: they are answered too, when their time has come.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.soak.approving import Approver, answer_within
from tests.soak.checks import Counts, Ended
from tests.soak.clients import Clients, Platform, http_client
from tests.soak.lives import Lives
from tests.soak.phoning import Phones
from tests.soak.served import Platforms, open_gateway
from tests.support.clocks import AheadClock
from tests.support.far_end import Fault, Told
from tests.support.resting import at_rest
from tests.support.servers import Break
from tests.support.telegram import Telegram

FINISH_LIMIT_S = 120.0
"""How long what is left may take, at least; a longer soak has more."""
MOST_QUEUED = 300
"""How many runs may wait before nobody asks for more: what is accepted has to be done in the end."""
LOOK_S = 0.5
FAULTS: tuple[Told, ...] = (Break(), Fault(503), Fault(500, takes=True), Fault(429, {"Retry-After": "1"}))


class Soak:
    """One soak."""

    def __init__(self, state: Path, *, seconds: float, sessions: int, seed: int) -> None:
        self._state = state
        self._seconds = seconds
        self._finish_s = max(FINISH_LIMIT_S, seconds)
        self._sessions = sessions
        self._chance = random.Random(seed)
        self._seed = seed
        self.kills = 0
        self.stops = 0
        self.repeats = 0
        self.contrary = 0
        self.set_aside = 0

    async def run(self) -> Counts:
        """Do all of it.

        Raises:
            AssertionError: something was lost, doubled, or went astray.
        """
        async with Platform() as platform, Telegram() as telegram:
            platforms = Platforms(platform.url, telegram.settings())
            phones = Phones(telegram, self._seed)
            acknowledged = await self._exchange(platforms, platform, phones)
            await self._finish(platforms, telegram)
        with closing(sqlite3.connect(self._state / "backchannel.db")) as database:
            return Ended(database, platform).check(self._state, acknowledged, telegram, phones.written)

    async def _exchange(self, platforms: Platforms, platform: Platform, phones: Phones) -> dict[str, str]:
        lives = Lives(self._state, platforms, self._sessions, self._chance)
        clients = Clients(lives, platform, self._sessions, self._seed)
        approver = Approver(lives)
        try:
            async with http_client() as http, asyncio.TaskGroup() as group:
                talks = (group.create_task(clients.talk(http)), group.create_task(phones.write()))
                answers = group.create_task(approver.answer_all())
                pace = group.create_task(self._pace(clients))
                async for _ in lives.killed_until(asyncio.get_running_loop().time() + self._seconds):
                    platform.then(*self._chance.sample(FAULTS, self._chance.randint(0, 2)))
                pace.cancel()
                clients.no_more()
                phones.no_more()
                async with lives.last(), asyncio.timeout(self._finish_s):
                    await asyncio.wait(talks)
                    answers.cancel()
        finally:
            await lives.close()
        self.kills, self.stops, self.repeats = lives.kills, lives.stops, clients.repeats
        self.contrary = approver.contrary
        return clients.acknowledged

    async def _pace(self, clients: Clients) -> None:
        """Hold the clients while too much is queued, until this is cancelled."""
        while True:
            clients.hold(await asyncio.to_thread(self._queued) > MOST_QUEUED)
            await asyncio.sleep(LOOK_S)

    def _queued(self) -> int:
        try:
            with closing(sqlite3.connect(f"file:{self._state / 'backchannel.db'}?mode=ro", uri=True)) as database:
                (count,) = database.execute("SELECT count(*) FROM runs WHERE state = 'queued'").fetchone()
        except sqlite3.OperationalError:  # it is only being made, or a process that was killed left it to be mended
            return 0
        return int(count)

    async def _finish(self, platforms: Platforms, telegram: Telegram) -> None:
        """Let a last process do what is left; it comes when those that were set aside are due."""
        clock = AheadClock(self._longest_aside_s())
        opened = open_gateway(self._state, platforms, self._sessions, clock=clock, slow_s=0.0)
        async with asyncio.timeout(self._finish_s), opened as gateway, asyncio.TaskGroup() as group:
            answers = group.create_task(answer_within(gateway))
            await telegram.drained(self._finish_s)
            await at_rest(gateway)
            answers.cancel()

    def _longest_aside_s(self) -> float:
        with closing(sqlite3.connect(self._state / "backchannel.db")) as database:
            self.set_aside, latest = database.execute(
                "SELECT count(resume_at), max(resume_at) FROM runs WHERE state IN ('queued', 'running')"
            ).fetchone()
        return 0.0 if latest is None else max(0.0, latest / 1000 - time.time())

    def told(self, counts: Counts) -> str:
        """Tell what there was, a line a kind."""
        lines = {
            "seed": self._seed,
            "kills": f"{self.kills}, and {self.stops} stops",
            "messages": f"{counts.messages} acknowledged, {self.repeats} requests repeated",
            "runs": f"{_sum(counts.runs)}; set aside when the last kill was over: {self.set_aside}",
            "exchanges": _sum(counts.exchanges),
            "replies": _sum(counts.replies),
            "spawns": _sum(counts.spawns),
            "receipts": _sum(counts.receipts),
            "work": f"{_sum(counts.work)}; answers that came second: {self.contrary}",
            "phones": _sum(counts.phones),
            "far end": f"{counts.taken} keys taken, each once, in {counts.posted} posts",
        }
        return "\n".join(f"{name:<10} {line}" for name, line in lines.items())


def _sum(counts: Counter[str]) -> str:
    kinds = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return f"{counts.total()} ({kinds})" if kinds else "0"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak", description="Kills a gateway under exchanges, and counts.")
    parser.add_argument("--seconds", type=float, default=60, help="how long to exchange and kill")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the moments and the messages; else another each time"
    )
    given = parser.parse_args(words)
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    print(f"{given.sessions} sessions exchange for {given.seconds:g} s, with seed {seed} ...", flush=True)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, seconds=given.seconds, sessions=given.sessions, seed=seed)
    try:
        counts = asyncio.run(soak.run())
    except BaseException:
        print(f"what it left is in {folder}")
        raise
    shutil.rmtree(folder)
    print(soak.told(counts))
    print(f"nothing lost, nothing twice, nothing astray; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
