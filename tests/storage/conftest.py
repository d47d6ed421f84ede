"""Hosts and stores on real files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backchannel.storage.store import Store
from tests.storage.support import Host


@pytest.fixture
async def host(tmp_path: Path, anyio_backend: str, database_kind: None) -> AsyncIterator[Host]:
    """A host with one process running; every driver that the store has is put under the same tests."""
    host = Host(tmp_path / "state")
    await host.start()
    yield host
    await host.end()


@pytest.fixture
async def store(host: Host) -> Store:
    return host.store
