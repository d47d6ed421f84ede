"""What a method's handler has at hand: the gateway, who calls, and the connection that asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from backchannel.gateway.auth import Caller
from backchannel.gateway.events import Subscriber

if TYPE_CHECKING:
    from backchannel.gateway.app import Gateway
    from backchannel.gateway.websocket import Door

T = TypeVar("T")


class Waits:
    """The requests of one connection that only wait, and need not when it has ended.

    Everything else that a handler does goes on to its end, so that no change is left half told.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_over = False

    async def until(self, awaitable: Awaitable[T]) -> T:
        """Wait for something, for as long as the connection is there."""
        task = asyncio.current_task()
        if self._is_over:
            asyncio.ensure_future(awaitable).cancel()
            raise asyncio.CancelledError
        assert task is not None
        self._tasks.add(task)
        try:
            return await awaitable
        finally:
            self._tasks.discard(task)

    def end(self) -> list[asyncio.Task[object]]:
        """Stop waiting; returns the tasks that were stopped."""
        self._is_over = True
        stopped = list(self._tasks)
        for task in stopped:
            task.cancel()
        return stopped


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as its handler sees it."""

    gateway: Gateway
    door: Door
    caller: Caller
    subscriber: Subscriber
    waits: Waits
    answer_first: Callable[[object], None]
    """Sends an answer before the last one, with the same id."""
