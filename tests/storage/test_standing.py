"""A PostgreSQL that keeps a gateway waiting: what stands, what goes on, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.storage.support import Host
from tests.storage.test_lanes import Held
from tests.support.postgres import Cluster, new_database

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
LEASE_MS = 15_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.remove()


@pytest.fixture
def url(cluster: Cluster) -> str:
    return new_database(server=cluster.url)


@pytest.fixture
async def host(url: str, tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path / "state", url)
    await host.start()
    yield host
    await host.end()


# The lease and the probe wait for nobody


async def test_a_lease_is_renewed_and_readiness_told_while_a_change_about_everything_stands(host: Host) -> None:
    held = Held("whole")
    standing = host.store.driver.write(held)
    await held.begun()
    renewed = await asyncio.wait_for(host.store.renew_lease([], [], LEASE_MS), PATIENCE_S)
    await asyncio.wait_for(host.store.check_writable(), PATIENCE_S)
    assert ([peer.number for peer in renewed.peers], standing.done()) == ([host.store.number], False)
    held.let_end()
    assert await standing == "whole"
