"""The kill harness on PostgreSQL, for the flows that say most; `make test-postgres` runs all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import CRASH_POINTS
from tests.runtime import test_kill_compaction as compaction
from tests.runtime.test_kill import CONFIG, ToolRounds
from tests.support import databases
from tests.support.kill import kill_at_every_commit

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite_only]


async def test_nothing_is_lost_or_doubled_on_postgres_wherever_the_process_dies(
    record_property: Callable[[str, object], None],
) -> None:
    with databases.on("postgres"):
        points = await kill_at_every_commit(ToolRounds, CONFIG)
    record_property(CRASH_POINTS, ("ToolRounds on PostgreSQL", points))
    assert points >= 6


async def test_a_compaction_leaves_one_view_on_postgres_wherever_the_process_dies(
    record_property: Callable[[str, object], None],
) -> None:
    with databases.on("postgres"):
        points = await kill_at_every_commit(compaction.Beside, compaction.CONFIG)
    record_property(CRASH_POINTS, ("Compaction on PostgreSQL", points))
    assert points >= 6
