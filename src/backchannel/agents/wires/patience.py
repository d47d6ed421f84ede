"""Patience with a provider: the time limits of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

from backchannel.core.contracts import ModelFailed, ModelTimeouts

T = TypeVar("T")


class Patience:
    """The time limits of one answer, from the moment it is made."""

    def __init__(self, limits: ModelTimeouts, provider: str) -> None:
        self._limits = limits
        self._provider = provider
        self._first_by = asyncio.get_running_loop().time() + limits.first_byte_s

    async def opened(self, answer: Awaitable[T]) -> T:
        """Wait for the beginning of the answer.

        Raises:
            ModelFailed: it did not begin in time. It may if it is asked again.
        """
        return await self._within(answer, self._first_by, self._silent(self._limits.first_byte_s))

    async def pieces(self, answer: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """Give the pieces of the answer as they come.

        Raises:
            ModelFailed: the first piece, or the next one, did not come in time.
        """
        deadline, told = self._first_by, self._silent(self._limits.first_byte_s)
        clock = asyncio.get_running_loop().time
        while True:
            try:
                piece = await self._within(anext(answer), deadline, told)
            except StopAsyncIteration:
                return
            yield piece
            deadline = clock() + self._limits.idle_s
            told = f"{self._provider} stopped in the middle of its answer for {self._limits.idle_s:g} s"

    async def _within(self, answer: Awaitable[T], deadline: float, told: str) -> T:
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                return await answer
        except TimeoutError:
            if not limit.expired():
                raise
            raise ModelFailed(told, retryable=True) from None

    def _silent(self, seconds: float) -> str:
        return f"{self._provider} did not begin to answer within {seconds:g} s"
