"""The lives of a gateway: a process after the other on the same files, each killed or stopped at some moment.

A mother process has imported everything and is forked for each life: importing takes longer than most lives do.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from tests.soak.served import Born, Died, Place, Platforms, Told

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 120.0
EARLY = 0.15
"""How many lives end while they begin."""
STOPPED = 0.2
"""How many lives end by SIGTERM."""
_told = msgspec.json.Decoder(Told)


class Life:
    """One process of the gateway, by what its mother tells of it."""

    def __init__(self, mother: asyncio.StreamReader, errors: Path) -> None:
        self._mother = mother
        self._errors = errors
        self.pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.place: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while not self.code.done():
            line = await self._mother.readline()
            assert line, f"the mother died: {self.said()}"
            match _told.decode(line):
                case Born(pid):
                    self.pid.set_result(pid)
                case Place() as place:
                    self.place.set_result(place)
                case Died(code):
                    self.code.set_result(code)

    async def ready(self) -> Place:
        """Wait until it says where it is."""
        async with asyncio.timeout(START_LIMIT_S):
            await asyncio.wait((self.place, self.code), return_when=asyncio.FIRST_COMPLETED)
        assert not self.code.done(), f"it did not start: {self.said()}"
        return self.place.result()

    async def lives_on(self, seconds: float) -> None:
        """Let it live for so long."""
        await asyncio.wait((self.code,), timeout=seconds)
        assert not self.code.done(), f"it ended by itself, with {self.code.result()}: {self.said()}"

    async def end(self, number: signal.Signals) -> int:
        """Send it a signal that ends it, and wait until it has."""
        async with asyncio.timeout(START_LIMIT_S):
            with suppress(ProcessLookupError):
                os.kill(await self.pid, number)
            await self._reader
        return self.code.result()

    def said(self) -> str:
        return self._errors.read_text()[-3000:]


class Lives:
    """Starts, kills and stops; tells clients where the gateway is, when it is."""

    def __init__(self, state: Path, platforms: Platforms, sessions: int, chance: random.Random) -> None:
        given = (str(state), msgspec.json.encode(platforms).decode(), str(sessions))
        self._command = (sys.executable, "-m", "tests.soak.served", *given)
        self._errors = state / "stderr.txt"
        self._chance = chance
        self._place: Place | None = None
        self._changed = asyncio.Condition()
        self._mother: Process | None = None
        self.kills = 0
        self.stops = 0

    async def at(self, *, after: Place | None = None) -> Place:
        """Wait until there is a gateway, another than one that was seen to die."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._place not in (None, after))
        assert self._place is not None
        return self._place

    async def killed_until(self, ends: float) -> AsyncIterator[None]:
        """Let gateways live and die until this time of the loop; gives way after each."""
        loop = asyncio.get_running_loop()
        while loop.time() < ends or not self.kills:  # on a busy machine the first life may outlast the soak
            life = await self._begin()
            is_early = self._chance.random() < EARLY
            if is_early:
                await life.lives_on(self._chance.uniform(0.0, 0.3))
            else:
                await self._say(await life.ready())
                await life.lives_on(self._chance.uniform(0.3, 2.0))
            await self._say(None)
            if self._chance.random() < STOPPED:
                await self._stop(life, is_early=is_early)
            else:
                await life.end(signal.SIGKILL)
                self.kills += 1
            yield

    async def _stop(self, life: Life, *, is_early: bool) -> None:
        """Ask it to stop; before it listens to signals, that ends it as it ends any program."""
        code = await life.end(signal.SIGTERM)
        self.stops += 1
        assert code == 0 or (is_early and code == -signal.SIGTERM), f"stopped with {code}: {life.said()}"

    @asynccontextmanager
    async def last(self) -> AsyncIterator[None]:
        """Let a gateway live that is not killed, and stops when it is told to."""
        life = await self._begin()
        await self._say(await life.ready())
        yield
        await self._say(None)
        await self._stop(life, is_early=False)

    async def close(self) -> None:
        """End the mother, and with it the life that is left."""
        if self._mother is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._mother.pid, signal.SIGKILL)
            await self._mother.communicate()

    async def _begin(self) -> Life:
        mother = self._mother = self._mother or await self._start()
        assert mother.stdin is not None and mother.stdout is not None
        mother.stdin.write(b"go\n")
        await mother.stdin.drain()
        return Life(mother.stdout, self._errors)

    async def _start(self) -> Process:
        with self._errors.open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    async def _say(self, place: Place | None) -> None:
        async with self._changed:
            self._place = place
            self._changed.notify_all()
