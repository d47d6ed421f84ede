"""A workspace for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agents.conftest import real_sandbox as real_sandbox
from tests.workspace.desk import WorkspaceSession, opened


@pytest.fixture
async def desk(tmp_path: Path, anyio_backend: str) -> AsyncIterator[WorkspaceSession]:
    async with opened(tmp_path / "state") as made:
        made.root.mkdir(parents=True)
        yield made
