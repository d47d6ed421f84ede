"""Stand-ins that serve in a thread of their own, beside a test that is not asynchronous.

with beside() as side:
    stub = side.open(StubProvider())
    side.tell(stub.then, Answer(text="hello"))
    side.wait(stub.asked(1))
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from tests.support.servers import LocalServer

PATIENCE_S = 30.0

S = TypeVar("S", bound=LocalServer)
T = TypeVar("T")
P = ParamSpec("P")


class Beside:
    """The loop in the other thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._opened: list[LocalServer] = []

    def open(self, server: S) -> S:
        """Let a server serve until the end."""
        self.wait(server.__aenter__())
        self._opened.append(server)
        return server

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something over there, and return what came of it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def tell(self, do: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call a function over there."""

        async def done() -> T:
            return do(*args, **named)

        return self.wait(done())

    def close(self) -> None:
        for server in self._opened:
            self.wait(server.__aexit__())


@contextmanager
def beside() -> Iterator[Beside]:
    """Start the thread; it is gone when the context ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    side = Beside(loop)
    try:
        yield side
    finally:
        side.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
