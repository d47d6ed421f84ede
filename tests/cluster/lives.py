"""Three gateways in processes of their own that are killed and paused, again and again; and what must hold after it.

What a gateway that was killed may not have answered is asked of the next one, under the same key.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from backchannel.core.messages import decode_message
from tests.cluster import witness
from tests.cluster.member import AHEAD, AT_REST, REST_LIMIT_S, Asked, come_to_rest, do, open_member
from tests.support.kill import check_invariants
from tests.support.postgres import Rows

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 60.0


class Life:
    """One process, and what it was told."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name
        self.asked: dict[str, Asked] = {}
        self.accepted: list[tuple[str, str]] = []
        self.ready = asyncio.Event()
        self._progress = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            what, *rest = json.loads(line)
            if what == "ready":
                self.ready.set()
            elif what == "asked":
                self.asked[rest[0]] = Asked(*rest)
            else:
                self.accepted.append((rest[0], rest[1]))
                self._progress.set()

    def ask(self, asked: Asked) -> None:
        """Have it asked for something besides."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")

    def unanswered(self) -> list[Asked]:
        """List what may not have been acknowledged; of posts that is never told."""
        told = {key for key, _ in self.accepted}
        return [asked for key, asked in self.asked.items() if key not in told]

    async def more(self, count: int) -> None:
        """Wait until it has accepted so many more messages."""
        wanted = len(self.accepted) + count
        async with asyncio.timeout(REST_LIMIT_S):
            while len(self.accepted) < wanted:
                self._progress.clear()
                await self._progress.wait()

    async def ended(self) -> None:
        await self.process.wait()
        await self._reading


class Gateways:
    """The gateways of one database."""

    def __init__(self, folder: Path, url: str, lease_s: float, chance: random.Random) -> None:
        self._folder = folder
        self._url = url
        self._lease_s = lease_s
        self._chance = chance
        self._numbers = itertools.count()
        self.asked: dict[str, Asked] = {}
        self.accepted: list[tuple[str, str]] = []
        self.kills = self.pauses = self.repeated = 0

    async def begin(self, name: str, tree: Path | None = None, ahead_s: float = 0) -> Life:
        """Start a gateway, of the program in another folder if one is given; its machine's clock may be ahead."""
        begun = await self.try_to_begin(name, tree, ahead_s)
        async with asyncio.timeout(START_LIMIT_S):
            await begun.ready.wait()
        return begun

    async def try_to_begin(self, name: str, tree: Path | None = None, ahead_s: float = 0) -> Life:
        """Start a process that may well end before it is ready."""
        life = AT_REST if name == AT_REST else f"{name}-{next(self._numbers)}"
        with self.log_of(name).open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.cluster.member"),
                *(str(self._folder), self._url, name, life, str(self._lease_s)),
                cwd=ROOT,
                env=os.environ | {AHEAD: str(ahead_s)} | ({} if tree is None else {"PYTHONPATH": str(tree)}),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        return Life(process, name)

    async def come_to_rest(self, tree: Path | None = None) -> None:
        """Let a gateway, of another program if one is given, finish all that is left."""
        last = await self.begin(AT_REST, tree)
        async with asyncio.timeout(REST_LIMIT_S):
            await last.ended()
        assert last.process.returncode == 0, self.log_of(AT_REST).read_text()

    def log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    async def trouble(self, lives: list[Life], seconds: float, least: int) -> None:
        """Kill one of them every second or two, and start another in its place; at times another one is paused.

        This goes on until the time is over and at least so many messages are accepted.
        """
        ends = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < ends or self._accepted_by(lives) < least:
            await asyncio.sleep(self._chance.uniform(0.5, 2.0))
            killed, paused = self._chance.sample(range(len(lives)), 2)
            is_paused = self._chance.random() < 0.3
            pausing = asyncio.create_task(self._pause(lives[paused])) if is_paused else None
            lives[killed] = await self._replace(lives[killed])
            if pausing is not None:
                await pausing

    def _accepted_by(self, lives: list[Life]) -> int:
        return len(self.accepted) + sum(len(life.accepted) for life in lives)

    async def _pause(self, life: Life) -> None:
        """Stop a process for longer than its lease, so that the others take it for dead; then let it go on."""
        life.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._lease_s * 2)
        life.process.send_signal(signal.SIGCONT)
        self.pauses += 1

    async def _replace(self, life: Life) -> Life:
        life.process.kill()
        await self._end(life)
        self.kills += 1
        begun = await self.begin(life.name)
        for asked in life.unanswered():
            begun.ask(asked)
            self.repeated += 1
        return begun

    async def stop(self, life: Life) -> None:
        assert life.process.stdin is not None
        life.process.stdin.close()
        await self._end(life)

    async def _end(self, life: Life) -> None:
        async with asyncio.timeout(START_LIMIT_S):
            await life.ended()
        self.asked |= life.asked
        self.accepted += life.accepted


def check_done_once(folder: Path, url: str, accepted: Sequence[tuple[str, str]]) -> None:
    """Check that everything that was accepted was done, and done once."""
    with closing(Rows(url)) as rows:
        check_invariants(rows, folder / "none")  # type: ignore[arg-type]
        known = dict(rows.execute("SELECT id, session_key FROM runs").fetchall())
        lost = [run_id for run_id, session in accepted if known.get(run_id) != session]
        assert not lost, f"accepted and lost: {lost}"
        moved = {run_id for (run_id,) in rows.execute("SELECT run_id FROM run_events WHERE kind = 'set_aside'")}
        for (session_id,) in rows.execute("SELECT session_id FROM session_ids").fetchall():
            _check_order(rows, session_id, moved)
    calls = Counter((folder / "posted.log").read_text().splitlines())
    assert not [call for call, count in calls.items() if count > 1], "a tool was called twice"


def _check_order(rows: Rows, session_id: str, moved: set[str]) -> None:
    """Check that the messages of each run stand together: no two runs worked on a session at once."""
    found = rows.execute("SELECT body FROM messages WHERE session_id = ? ORDER BY seq", (session_id,)).fetchall()
    runs = [decode_message(body).run_id for (body,) in found]
    blocks = [run for run, _ in itertools.groupby(run for run in runs if run is not None and run not in moved)]
    assert len(blocks) == len(set(blocks)), f"runs were mixed in {session_id}: {blocks}"


async def live_and_die(
    folder: Path, url: str, *, seconds: float, lease_s: float, seed: int, least: int = 0
) -> Gateways:
    """Let three gateways live through trouble until they have accepted so many messages, and check what is left."""
    async with open_member(folder, url, "first", lease_s):
        witness.watch(url)
    nodes = Gateways(folder, url, lease_s, random.Random(seed))
    lives = list(await asyncio.gather(*(nodes.begin(f"g{n}") for n in range(3))))
    try:
        await nodes.trouble(lives, seconds, least)
        for life in lives:
            await nodes.stop(life)
    finally:
        for life in lives:
            if life.process.returncode is None:
                life.process.kill()
    async with open_member(folder, url, "last", lease_s) as gateway:
        told = {key for key, _ in nodes.accepted}
        for key, asked in nodes.asked.items():
            if key not in told:
                await do(gateway, asked)
        await come_to_rest(gateway)
    check_done_once(folder, url, nodes.accepted)
    print(f"{nodes.kills} kills, {nodes.pauses} pauses, {nodes.repeated} questions repeated at the next gateway")
    print(witness.check(folder, url, list(nodes.asked.values())))
    return nodes
