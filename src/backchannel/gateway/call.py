"""What a method's handler has at hand: the gateway, who calls, and the connection that asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from backchannel.errors import ShuttingDown
from backchannel.gateway.auth import Caller
from backchannel.gateway.events import Subscriber

if TYPE_CHECKING:
    from backchannel.gateway.app import Gateway
    from backchannel.gateway.websocket import Door

T = TypeVar("T")


class OpenWaits:
    """Requests that only wait. They are ended when their client is gone, or when the gateway stops.

    Everything else that a handler does runs to its end, so that no change is left half reported.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_over = asyncio.Event()

    async def until(self, awaitable: Awaitable[T]) -> T:
        """Await something in the current task.

        Raises:
            ShuttingDown: the waits were ended first; what the request has started goes on.
        """
        task = asyncio.current_task()
        if self._is_over.is_set():
            asyncio.ensure_future(awaitable).cancel()
            raise _stopping()
        assert task is not None
        self._tasks.add(task)
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._is_over.is_set() and task.uncancel() == 0:
                raise _stopping() from None
            raise
        finally:
            self._tasks.discard(task)

    @property
    def count(self) -> int:
        return len(self._tasks)

    def end(self) -> list[asyncio.Task[object]]:
        """Stop waiting; returns the tasks that were waiting."""
        self._is_over.set()
        stopped = list(self._tasks)
        for task in stopped:
            task.cancel()
        return stopped


def _stopping() -> ShuttingDown:
    return ShuttingDown("the gateway is stopping: ask again when it is back, what was accepted goes on then")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as its handler sees it."""

    gateway: Gateway
    door: Door
    caller: Caller
    subscriber: Subscriber
    waits: OpenWaits
    answer_first: Callable[[object], None]
    """Sends an answer before the last one, with the same id."""
