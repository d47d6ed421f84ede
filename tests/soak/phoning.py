"""The people of the soak who write to a bot of Telegram, and Telegram, which now and then misbehaves."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial

from tests.support.servers import Break
from tests.support.telegram import ANN, BOB, EVE, Fault, Telegram, Told

PEOPLE = (ANN, BOB, EVE)
PATIENCE_S = 10.0
FAULTS: tuple[Told, ...] = (
    Fault(502, "Bad Gateway"),
    Fault(429, "Too Many Requests: retry after 1", retry_after=1),
    Break(takes=True),
    Break(takes=False),
)


class Phones:
    """Three people, each in a chat of their own."""

    def __init__(self, telegram: Telegram, seed: int) -> None:
        self._telegram = telegram
        self._seed = seed
        self._is_over = False
        self.written: dict[str, int] = {}
        """The chat of each message, by its name."""

    def no_more(self) -> None:
        self._is_over = True

    async def write(self) -> None:
        """Let all write until there shall be no more."""
        async with asyncio.TaskGroup() as group:
            for n, person in enumerate(PEOPLE):
                group.create_task(self._person(n, person))

    async def _person(self, n: int, person: int) -> None:
        chance = random.Random(f"{self._seed} phone {n}")
        count = 0
        while not self._is_over:
            count += 1
            name = f"t-{n}-{count}"
            self.written[name] = person
            self._telegram.say(name, sender=person)
            if chance.random() < 0.1:
                self._telegram.then("sendMessage", chance.choice(FAULTS))
            with suppress(TimeoutError):
                await self._telegram.until(partial(self._is_answered, name), PATIENCE_S)

    def _is_answered(self, name: str) -> bool:
        return f"reply {name}" in self._telegram.texts
