"""Five thousand messages in one session, at a window of 8,000 tokens."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tests.support.long_talk import check

pytestmark = [pytest.mark.anyio, pytest.mark.interop, pytest.mark.timeout(1800)]


async def test_five_thousand_messages_cost_no_more_memory_than_a_few(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        sizes = await check(tmp_path, 5_000)
    finally:
        tracemalloc.stop()
    assert max(sizes[3:]) < min(sizes[2:5]) + 4_000_000, sizes
