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


def _freeze_loaded() -> None:
    """Take what was loaded out of the garbage collection, if that is done with all that a start makes.

    The hundred thousands of objects of a library live as long as the process. Looking through them holds the loop for a
    third of a second, whenever somebody sends a message of many parts.
    """
    if gc.get_freeze_count():  # a served gateway; the garbage collection of an embedding program is its own
        gc.freeze()


def end_without_loading() -> None:
    """End the process now if something is still being loaded.

    Python would end its daemon threads by force, and a library in the middle of its import may take the process down.
    """
    if _one_at_a_time.locked():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
