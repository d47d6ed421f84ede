"""The database restarts, or fails and its standby takes over, while two gateways are at work."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.errors import ShuttingDown, Unavailable
from backchannel.storage.postgres import writers
from backchannel.storage.tx import Tx
from tests.cluster.gateways import LEASE_S, gateways, knows, until
from tests.cluster.lives import check_done_once
from tests.cluster.load import PATIENCE_S, under_load
from tests.cluster.member import open_member
from tests.storage.support import Host
from tests.support.cut import CutLine
from tests.support.gateways import ended, held, request
from tests.support.kill import check_invariants
from tests.support.postgres import Cluster, Rows, new_database

pytestmark = pytest.mark.anyio


@pytest.fixture
def primary() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.remove()


@pytest.fixture
def standby(primary: Cluster) -> Iterator[Cluster]:
    cluster = Cluster(primary=primary)
    yield cluster
    cluster.remove()


async def test_a_restart_of_the_server_under_two_gateways_loses_and_doubles_nothing(
    tmp_path: Path, primary: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "GONE_LIMIT_S", 0.2)
    url = new_database(server=primary.url)
    async with under_load(tmp_path, url) as load:
        for how in (signal.SIGINT, signal.SIGQUIT):  # fast, and immediate
            await load.more(40)
            await asyncio.to_thread(primary.stop, how)
            await load.are_seen([False, False])
            await asyncio.to_thread(primary.start)
            await load.more(40)
            await load.are_seen([True, True])
    check_done_once(tmp_path, url, load.accepted)


async def test_a_run_goes_on_after_the_database_was_away_for_longer_than_a_lease(
    tmp_path: Path, primary: Cluster
) -> None:
    reached = asyncio.Event()
    model = ScriptedModel(replies=[held("half", reached=reached), "whole"])
    async with gateways(tmp_path, new_database(server=primary.url), model) as (one, other):
        run = await one.submit("main", "go")
        await reached.wait()
        primary.stop()
        await until(lambda: not one.store.lease_ends and not other.store.lease_ends)
        await asyncio.sleep(LEASE_S)  # those who wait to enter again wait for longer than what they are given
        primary.start()
        assert (await ended(one, run.id, PATIENCE_S)).reply == "whole"


@pytest.mark.parametrize("is_made", [True, False])
async def test_whether_a_commit_was_made_whose_primary_died_over_it_is_known_on_the_standby(
    tmp_path: Path, primary: Cluster, standby: Cluster, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both servers are named by variables here, and by the URL in the next test."""
    monkeypatch.setenv("PGHOST", f"{tmp_path},{standby.socket.parent}")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-write")
    name = urlsplit(new_database(server=primary.url)).path.strip("/")
    runs: list[str] = []

    def unit(tx: Tx) -> None:
        runs.append("run")
        tx.run("INSERT INTO inbox (id, session_key, body) VALUES ('a', '', '')")

    async with CutLine(tmp_path, primary.socket) as line:
        host = Host(tmp_path / "state", f"postgresql://postgres@/{name}")
        await host.start()
        line.loses_next_commit, line.is_lost_before, line.is_last = True, not is_made, True
        answer = host.store.driver.write(unit)
        await until(lambda: line.is_down)
        primary.stop(signal.SIGKILL)
        await asyncio.to_thread(standby.promote)
        async with asyncio.timeout(PATIENCE_S):
            await answer
        found = await host.store.driver.read(lambda tx: tx.all("SELECT id FROM inbox"))
        assert (len(runs), found, host.fatal) == (1 if is_made else 2, [("a",)], [])
        await host.end()


async def test_nothing_that_was_answered_is_lost_when_the_primary_is_killed_and_its_standby_takes_over(
    tmp_path: Path, primary: Cluster, standby: Cluster
) -> None:
    url = on_either(primary, standby)
    async with under_load(tmp_path, url) as load:
        await load.more(60)
        await asyncio.to_thread(primary.stop, signal.SIGKILL)
        await asyncio.to_thread(standby.promote)
        await load.more(60)
        await load.are_seen([True, True])
    check_done_once(tmp_path, url, load.accepted)


async def test_gateways_go_on_from_what_is_there_when_a_standby_takes_over_that_was_behind(
    tmp_path: Path, primary: Cluster, standby: Cluster
) -> None:
    url = on_either(primary, standby)
    async with under_load(tmp_path, url) as load:
        await load.more(30)
        await asyncio.to_thread(standby.stop_following, primary)
        await load.more(30)
        numbers = [gateway.store.number for gateway in load.gateways]
        await asyncio.to_thread(primary.stop, signal.SIGKILL)
        await asyncio.to_thread(standby.promote)
        before = len(load.accepted)
        await load.more(60)
        await until(lambda: all(gateway.store.number > max(numbers) for gateway in load.gateways))
    with closing(Rows(url)) as rows:
        check_invariants(rows, tmp_path / "none")  # type: ignore[arg-type]
        known = {run_id for (run_id,) in rows.execute("SELECT id FROM runs")}
    is_there = [run_id in known for run_id, _ in load.accepted]
    assert (all(is_there[:before]), all(is_there[before:])) == (False, True)


def on_either(primary: Cluster, standby: Cluster) -> str:
    """Name a new database, on whichever of both servers takes writes."""
    name = urlsplit(new_database(server=primary.url)).path.strip("/")
    hosts = f"{primary.socket.parent},{standby.socket.parent}"
    return f"postgresql://postgres@/{name}?host={hosts}&target_session_attrs=read-write"


async def test_a_gateway_that_has_lost_its_lease_with_the_database_asks_to_come_back_and_does_not_say_that_it_stops(
    tmp_path: Path, primary: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "GONE_LIMIT_S", 0.2)
    url = new_database(server=primary.url)
    async with open_member(tmp_path, url, "one", 1.0) as one, open_member(tmp_path, url, "other", 1.0):
        await knows(one, 2)
        primary.stop()
        said = ""
        async with asyncio.timeout(PATIENCE_S):
            while "without its database" not in said:
                with pytest.raises(Unavailable) as refused:
                    await one.runtime.submit(request("agent:main:main", "hi"))
                said = refused.value.message
                assert not isinstance(refused.value, ShuttingDown) and refused.value.details["retryAfterMs"] > 0
        primary.start()
