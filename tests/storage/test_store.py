"""Opening and closing the store, also when the disk is against it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from backchannel.core.facts import PolicyShadowed
from backchannel.core.policy.send_policy import SendDecision
from backchannel.core.sessions import Session
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.driver import ProcessKilled
from tests.storage.support import CRON, MAIN, Host, accept, begin, note, request, texts
from tests.support.databases import full_disk

pytestmark = pytest.mark.anyio


class Disk:
    """A disk that fails with this error at every commit, once it is told to."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def before_commit(self, number: int) -> None:
        if self.error is not None:
            raise self.error

    def after_commit(self, number: int) -> None:
        pass


def own_threads() -> set[str]:
    return {
        thread.name for thread in threading.enumerate() if thread.name.startswith(("sqlite", "postgres", "transcripts"))
    }


async def test_every_start_has_a_higher_number(host: Host) -> None:
    numbers = [host.store.number]
    for clean in (True, False, True):
        numbers.append((await host.restart(clean=clean)).number)
    assert numbers == sorted(set(numbers))


async def test_a_store_that_cannot_register_its_start_lets_go_of_everything(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with pytest.raises(StorageFull):
        await host.start(faults=Disk(full_disk()))
    assert own_threads() == set()
    await host.start()
    await host.end()


async def test_a_store_closed_on_a_full_disk_lets_go_of_everything(tmp_path: Path) -> None:
    host, disk = Host(tmp_path), Disk()
    started = await begin(await host.start(faults=disk))
    disk.error = full_disk()
    await host.stop()
    assert own_threads() == set()
    store = await host.start()
    (entry,) = await store.interrupted_runs()
    assert (entry.run_id, entry.crashes) == (started.run.id, 1)  # there was no room to say that it was on purpose
    await host.end()


async def test_a_store_whose_commit_was_lost_can_be_closed(tmp_path: Path) -> None:
    host, disk = Host(tmp_path), Disk()
    store = await host.start(faults=disk)
    disk.error = sqlite3.OperationalError("disk I/O error")
    with pytest.raises(asyncio.CancelledError):
        await accept(store)
    assert host.fatal == [disk.error]
    with pytest.raises(Unavailable):
        await accept(store)
    await host.stop()
    assert own_threads() == set()
    store = await host.start()
    assert await store.session(str(MAIN)) is None
    await host.end()


async def test_a_killed_process_leaves_only_what_it_had_committed(tmp_path: Path) -> None:
    host, disk = Host(tmp_path), Disk()
    store = await host.start(faults=disk)
    await store.add_note(MAIN, note("kept"))
    disk.error = ProcessKilled()
    with pytest.raises(asyncio.CancelledError):
        await store.add_note(MAIN, note("lost"))
    await host.die()
    store = await host.start()
    assert await texts(store) == ["kept"]
    await host.end()


@pytest.mark.sqlite_only  # test_readiness.py has PostgreSQL's
async def test_whether_the_disk_takes_a_write_can_be_asked(tmp_path: Path) -> None:
    host, disk = Host(tmp_path), Disk()
    store = await host.start(faults=disk)
    await store.check_writable()
    disk.error = full_disk()
    with pytest.raises(StorageFull):
        await store.check_writable()
    disk.error = None
    await store.check_writable()
    await host.end()


async def test_messages_accepted_while_the_store_closes_are_kept_or_refused(host: Host) -> None:
    futures = [host.store.accept_run(request(str(n)), start=False) for n in range(50)]
    closing = asyncio.create_task(host.stop())
    late = host.store.accept_run(request("late"), start=False)
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*futures, late, return_exceptions=True)
        await closing
    store = await host.start()
    kept = [message.text for message in (await store.pending(str(MAIN), 100)).messages]
    assert kept[:50] == [str(n) for n in range(50)]
    assert ("late" in kept) is not isinstance(answers[-1], Exception)


class FullOnce:
    """A disk on which one commit fails for want of room."""

    def __init__(self) -> None:
        self.fails = False

    def before_commit(self, number: int) -> None:
        if self.fails:
            self.fails = False
            raise full_disk()

    def after_commit(self, number: int) -> None:
        pass


async def test_a_unit_that_runs_twice_tells_once_what_it_noticed(host: Host) -> None:
    disk = FullOnce()
    await host.stop()
    store = await host.start(faults=disk)
    asked: list[str] = []

    def only_shadowed(session: Session) -> SendDecision:
        asked.append(session.key)
        return SendDecision(True, "shadow is true", would_deny=True)

    host.facts.clear()
    disk.fails = True
    keys = [MAIN, CRON]
    await asyncio.gather(*[store.accept_run(request(key=key), start=True, check=only_shadowed) for key in keys])
    assert asked == [str(key) for key in keys] * 2
    noticed = [fact for fact in host.facts if isinstance(fact, PolicyShadowed)]
    assert noticed == [PolicyShadowed(str(key), "shadow is true") for key in keys]
