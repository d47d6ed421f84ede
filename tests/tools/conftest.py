"""State folders for the tests of the tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.shelf import Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "state")
