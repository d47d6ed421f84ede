"""Gateways on a PostgreSQL that Patroni looks after: the leader dies under load, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.cluster.lives import check_done_once
from tests.cluster.load import under_load
from tests.interop.patroni import Patroni, missing_programs
from tests.support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.interop]


@pytest.fixture
def patroni() -> Iterator[Patroni]:
    if missing := missing_programs():
        reason = f"not installed here: {', '.join(missing)} (on Debian: apt-get install patroni etcd-server)"
        pytest.fail(reason) if "CI" in os.environ else pytest.skip(reason)
    servers = Patroni()
    try:
        servers.start()
        yield servers
    finally:
        servers.remove()


@pytest.mark.timeout(400)
async def test_nothing_is_lost_or_done_twice_when_the_leader_is_killed_and_another_is_elected(
    tmp_path: Path, patroni: Patroni
) -> None:
    url = new_database(server=patroni.url, is_prepared=False)
    async with under_load(tmp_path, url, names=("one", "two", "three")) as load:
        await load.more(60)
        for _ in range(2):  # there, and back again
            killed = await asyncio.to_thread(patroni.wait_until_safe)
            killed.kill()
            began = monotonic()
            led = await asyncio.to_thread(patroni.wait_until_led, killed)
            elected_s = monotonic() - began
            assert led is not killed
            await load.more(1)
            print(f"another led after {elected_s:.0f} s, and messages were accepted after {monotonic() - began:.0f} s")
            await load.more(60)
            killed.start()  # it comes back as the one that follows
            assert await asyncio.to_thread(patroni.wait_until_safe) is led
            await load.more(30)
    check_done_once(tmp_path, url, load.accepted)
