"""The lives of a gateway: a process after the other on the same files, each killed or stopped at some moment."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from tests.soak.served import Place, Platforms

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 60.0
EARLY = 0.15
"""How many lives end while they begin."""
STOPPED = 0.2
"""How many lives end by SIGTERM."""


class Lives:
    """Starts and kills; tells clients where the gateway is, when it is."""

    def __init__(self, state: Path, platforms: Platforms, sessions: int, chance: random.Random) -> None:
        given = (str(state), msgspec.json.encode(platforms).decode(), str(sessions))
        self._command = (sys.executable, "-m", "tests.soak.served", *given)
        self._errors = state / "stderr.txt"
        self._chance = chance
        self._place: Place | None = None
        self._changed = asyncio.Condition()
        self._next: Process | None = None
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
        while loop.time() < ends:
            async with self._process() as process:
                is_ready = False
                if self._chance.random() < EARLY:
                    await self._lives_on(process, self._chance.uniform(0.0, 0.3))
                else:
                    await self._ready(process)
                    await self._lives_on(process, self._chance.uniform(0.3, 2.0))
                    is_ready = True
                await self._say(None)
                if self._chance.random() < STOPPED:
                    await self._stop(process, is_ready=is_ready)
                else:
                    process.kill()
                    self.kills += 1
            yield

    async def _stop(self, process: Process, *, is_ready: bool) -> None:
        """Ask it to stop; before it listens to signals, that ends it as it ends any program."""
        process.send_signal(signal.SIGTERM)
        self.stops += 1
        async with asyncio.timeout(START_LIMIT_S):
            code = await process.wait()
        assert code == 0 or (not is_ready and code == -signal.SIGTERM), f"stopped with {code}: {self._said()}"

    @asynccontextmanager
    async def last(self) -> AsyncIterator[None]:
        """Let a gateway live that is not killed, and stops when it is told to."""
        async with self._process(is_last=True) as process:
            await self._ready(process)
            yield
            await self._say(None)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(START_LIMIT_S):
                assert await process.wait() == 0, self._said()

    async def close(self) -> None:
        """End the process that was held ready."""
        process, self._next = self._next, None
        if process is not None:
            await _end(process)

    @asynccontextmanager
    async def _process(self, *, is_last: bool = False) -> AsyncIterator[Process]:
        process = self._next or await self._start()
        # The one after it is made now, so that it has read its program when it is needed.
        self._next = None if is_last else await self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            await process.stdin.drain()
            yield process
        finally:
            await _end(process)

    async def _start(self) -> Process:
        with self._errors.open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )

    async def _ready(self, process: Process) -> None:
        assert process.stdout is not None
        async with asyncio.timeout(START_LIMIT_S):
            line = await process.stdout.readline()
        assert line, f"it did not start: {self._said()}"
        await self._say(msgspec.json.decode(line, type=Place))

    async def _lives_on(self, process: Process, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                code = await process.wait()
                raise AssertionError(f"it ended by itself, with {code}: {self._said()}")

    async def _say(self, place: Place | None) -> None:
        async with self._changed:
            self._place = place
            self._changed.notify_all()

    def _said(self) -> str:
        return self._errors.read_text()[-3000:]


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.communicate()
