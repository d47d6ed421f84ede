"""A long conversation in a small window: early facts are answered late, and no bad sequence is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.long_talk import check

pytestmark = pytest.mark.anyio


async def test_facts_told_early_are_answered_late_whatever_model_or_wire_answers(tmp_path: Path) -> None:
    await check(tmp_path, 240, length=5)
