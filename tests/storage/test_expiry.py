"""Sessions that were made for one request are archived when nobody has used them for as long as they live."""

from __future__ import annotations

import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.sessions import Session
from backchannel.storage.store import Store
from tests.storage.support import Host, answer, begin, converse, note

pytestmark = pytest.mark.anyio

KEY = SessionKey.openai("main", "one-request")
LIVES_MS = 3_600_000


async def pass_time(host: Host, ms: int) -> Session:
    """Let time pass, do what is due by then, and tell what the session is like."""
    host.clock.tick(ms)
    for timer in (await host.store.due(100)).timers:
        await host.store.carry_out_timer(timer)
    session = await host.store.session(str(KEY))
    assert session is not None
    return session


async def made(store: Store) -> None:
    await answer(store, await begin(store, key=KEY, session_lives_ms=LIVES_MS))


async def test_a_session_is_archived_when_its_time_is_over(host: Host) -> None:
    await made(host.store)
    assert (await pass_time(host, LIVES_MS - 1)).archived_at is None
    assert (await pass_time(host, 1)).archived_at is not None
    assert (await host.store.due(1)).next_at is None


async def test_its_time_goes_on_after_a_restart(host: Host) -> None:
    await made(host.store)
    await host.restart()
    assert (await pass_time(host, LIVES_MS)).archived_at is not None


async def test_whoever_uses_it_makes_it_live_on(host: Host) -> None:
    await made(host.store)
    await pass_time(host, LIVES_MS // 2)
    await converse(host.store, key=KEY)
    assert (await pass_time(host, LIVES_MS // 2)).archived_at is None
    assert (await pass_time(host, LIVES_MS // 2)).archived_at is not None


async def test_it_is_not_archived_while_a_run_is_at_work(host: Host) -> None:
    started = await begin(host.store, key=KEY, session_lives_ms=LIVES_MS)
    assert (await pass_time(host, 2 * LIVES_MS)).archived_at is None
    await answer(host.store, started)
    assert (await pass_time(host, LIVES_MS)).archived_at is not None


async def test_it_is_not_archived_while_something_waits_in_its_inbox(host: Host) -> None:
    started = await begin(host.store, key=KEY, session_lives_ms=LIVES_MS)
    await host.store.add_note(KEY, note("something to know"))
    assert (await pass_time(host, 2 * LIVES_MS)).archived_at is None
    await answer(host.store, started)


async def test_a_session_that_was_not_made_for_one_request_stays(host: Host) -> None:
    await converse(host.store, key=KEY)
    assert (await pass_time(host, 100 * LIVES_MS)).archived_at is None
