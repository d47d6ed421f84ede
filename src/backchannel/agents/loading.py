"""Loading of large libraries beside the event loop.

An import cannot be interrupted. In a thread of the loop's own pool it would delay the end of the process. So it has a
daemon thread, which ends with the process at any point. One library is loaded at a time: two would leave the event loop
a third of the interpreter.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
_one_at_a_time = threading.Lock()
_is_frozen = threading.Event()


async def load(work: Callable[[], T]) -> T:
    """Do what imports much, and wait for it. If this is cancelled, the work goes on and its outcome is dropped."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        _freeze_loaded()
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]  # without an error there is a result

    def carry_out() -> None:
        result, raised = None, None
        with _one_at_a_time:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  # it belongs to whoever waits
                raised = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, raised)

    threading.Thread(target=carry_out, name="loading", daemon=True).start()
    return await outcome


def freeze_start() -> None:
    """Exclude the objects of a start from garbage collection, and from then on those of each library that is loaded.

    They live as long as the process. Each collection over them would block the loop for a tenth of a second. The
    garbage collection of a program that embeds a gateway is its own.
    """
    _is_frozen.set()
    gc.freeze()  # without a collection first, which would hold the loop itself


def _freeze_loaded() -> None:
    """Exclude what was loaded too: hundred thousands of objects.

    Looking through them holds the loop for a third of a second, whenever somebody sends a message of many parts. To ask
    `gc` whether anything is frozen counts all of it, for 20 ms.
    """
    if _is_frozen.is_set():
        gc.freeze()


def end_without_loading() -> None:
    """End the process now if something is still being loaded.

    Python would end its daemon threads by force, and a library in the middle of its import may take the process down.
    """
    if _one_at_a_time.locked():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
