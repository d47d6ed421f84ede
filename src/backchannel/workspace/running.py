"""A program at work: started under the leash, its output read as it comes, and stopped as a whole."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Awaitable, Callable
from contextlib import suppress
from signal import Signals
from typing import Self

from backchannel.agents.leash import GRACE_S
from backchannel.agents.programs import Program, leashed
from backchannel.errors import InvalidRequest

PIECE = 64 * 1024
STOP_LIMIT_S = GRACE_S + 12.0
"""How long the leash has to kill everything; then it is killed itself, which takes the program with it."""
LAST_WORDS_S = 1.0


class Running:
    """One program, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, take: Callable[[bytes], Awaitable[None]]) -> None:
        self._process = process
        self._reading = asyncio.create_task(self._read(take))

    @classmethod
    async def start(cls, program: Program, take: Callable[[bytes], Awaitable[None]]) -> Self:
        """Start a program; `take` gets what it writes, errors too.

        Raises:
            InvalidRequest: it cannot be started.
        """
        started = leashed(program)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *started.argv,
                cwd=started.cwd,
                env=dict(started.env),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                start_new_session=True,
            )
        )
        try:
            return cls(await asyncio.shield(starting), take)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"the command could not be started: {error}") from None
        except asyncio.CancelledError:
            with suppress(OSError, ValueError):
                await cls(await starting, take).stop()  # stopped by its leash, or something of it could be left
            raise

    async def _read(self, take: Callable[[bytes], Awaitable[None]]) -> None:
        stream = self._process.stdout
        assert stream is not None
        while piece := await stream.read(PIECE):
            await take(piece)

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None and self._reading.done()

    async def ended(self) -> int:
        """Wait for its end and all of its output; gives its exit code, or the negative number of its signal."""
        await asyncio.wait({self._reading})
        return await self._process.wait()

    async def stop(self) -> None:
        """End it and all that it started; returns when nothing of it is left."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
        await asyncio.wait({self._reading}, timeout=LAST_WORDS_S)
        if not self._reading.done():  # it has killed its leash, and something of it keeps the pipe
            self._reading.cancel()
            await asyncio.wait({self._reading})
            self._process._transport.close()  # type: ignore[attr-defined]  # there is no other way to close the pipe


def exit_in_words(code: int) -> str:
    """Say how a program ended."""
    if code < 0:
        return f"ended by {_signal(-code)}"
    # A shell, and bubblewrap, tell in this way that what they ran was ended by a signal.
    return f"exit code {code}" + (f", as after {_signal(code - 128)}" if 128 < code < 128 + 65 else "")


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
