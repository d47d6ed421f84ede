"""Real files to load configurations from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a configuration file."""

    def write_file(text: str) -> Path:
        file = tmp_path / "backchannel.json5"
        file.write_text(text, encoding="utf-8")
        return file

    return write_file
