"""Work on long texts, done beside the event loop: everybody else would have to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LONG = 64 * 1024
"""Below so many characters the way to a thread would take longer than the work."""


async def beside(size: int, work: Callable[[], T]) -> T:
    """Do work that takes as long as a text of this size is."""
    return work() if size < LONG else await asyncio.to_thread(work)
