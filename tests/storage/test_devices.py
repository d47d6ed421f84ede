"""Device tokens: one for each device and the token that it was made from, and not for ever."""

from __future__ import annotations

import asyncio
from contextlib import closing

import msgspec
import pytest

from backchannel.core.facts import TokenEnded
from backchannel.core.records import TokenRow
from backchannel.core.secrets.devices import DEVICE_LIFE_MS, MOST_OF_ONE
from backchannel.storage.store import Store
from tests.storage.support import Host, device, digest_of
from tests.support.databases import open_database

pytestmark = pytest.mark.anyio
PARENT = TokenRow(id="t1", digest="d1", scopes=("operator.read",), session_key=None, label=None, created_at=5)


async def test_one_is_found_by_its_hash_and_by_device_and_parent(host: Host) -> None:
    kept = await host.store.keep_device_token(device(), digest_of)
    assert kept == msgspec.structs.replace(device(), created_at=host.clock.ms, used_at=host.clock.ms)
    assert await host.store.device_token_by_digest(digest_of("s1")) == kept
    assert await host.store.device_token_of("laptop", "operator:1") == kept
    for digest in ("s1", "laptop", "", "operator:1"):
        assert await host.store.device_token_by_digest(digest) is None
    assert await host.store.device_token_of("laptop", "operator:2") is None


@pytest.mark.both_databases
async def test_tabs_that_log_in_at_once_are_given_the_same_one(store: Store) -> None:
    offered = [store.keep_device_token(device(salt=f"s{n}"), digest_of) for n in range(5)]
    kept = await asyncio.gather(*offered)
    assert len({row.salt for row in kept if row}) == 1
    assert len(await store.device_tokens()) == 1


async def test_one_with_other_rights_takes_its_place_under_its_id(store: Store) -> None:
    await store.keep_device_token(device(), digest_of)
    wider = await store.keep_device_token(device(salt="s2", scopes="operator.read operator.write"), digest_of)
    assert wider is not None and (wider.id, wider.salt) == (device().id, "s2")
    assert await store.device_token_by_digest(digest_of("s1")) is None
    assert await store.device_tokens() == [wider]


@pytest.mark.both_databases
async def test_those_of_a_revoked_token_end_with_it_and_no_more_are_kept(store: Store) -> None:
    await store.create_token(PARENT)
    await store.keep_device_token(device(parent="t1"), digest_of)
    await store.keep_device_token(device(salt="s2"), digest_of)
    assert await store.revoke_token("t1")
    assert [row.parent for row in await store.device_tokens()] == ["operator:1"]
    assert await store.keep_device_token(device(parent="t1"), digest_of) is None
    assert await store.keep_device_token(device(parent="never there"), digest_of) is None


async def test_one_whose_parent_a_program_without_devices_has_revoked_does_not_count(host: Host) -> None:
    await host.store.create_token(PARENT)
    await host.store.keep_device_token(device(parent="t1"), digest_of)
    await host.stop()
    with closing(open_database(host.path)) as connection, connection:
        connection.execute("UPDATE tokens SET revoked_at = 9")
    store = await host.start()
    assert await store.device_token_by_digest(digest_of("s1")) is None
    assert await store.device_tokens() == []


async def test_one_is_revoked_alone_and_once(store: Store) -> None:
    await store.keep_device_token(device(), digest_of)
    await store.keep_device_token(device("phone", "s2"), digest_of)
    assert await store.revoke_token(device().id)
    assert not await store.revoke_token(device().id)
    assert [row.device_id for row in await store.device_tokens()] == ["phone"]


async def test_a_device_that_is_removed_loses_all_of_its_tokens(store: Store) -> None:
    await store.create_token(PARENT)
    await store.keep_device_token(device(), digest_of)
    await store.keep_device_token(device(salt="s2", parent="t1"), digest_of)
    await store.keep_device_token(device("phone", "s3"), digest_of)
    assert len(await store.remove_device("laptop")) == 2
    assert await store.remove_device("laptop") == []
    assert [row.device_id for row in await store.device_tokens()] == ["phone"]


async def test_it_ends_a_month_after_its_last_use_and_is_swept_away(host: Host) -> None:
    store = host.store
    await store.keep_device_token(device(), digest_of)
    host.clock.tick(DEVICE_LIFE_MS - 1)
    assert await store.use_device_token(device().id)
    host.clock.tick(DEVICE_LIFE_MS - 1)
    assert await store.device_token_by_digest(digest_of("s1"))
    host.clock.tick(1)
    assert await store.device_token_by_digest(digest_of("s1")) is None
    assert await store.device_tokens() == []
    await store.keep_device_token(device("phone", "s2"), digest_of)
    assert await store.use_device_token(device().id) is None, "its row is gone"


async def test_one_of_a_clock_that_was_far_ahead_does_not_count_for_years(host: Host) -> None:
    host.clock.tick(3 * DEVICE_LIFE_MS)
    await host.store.keep_device_token(device(), digest_of)
    host.clock.tick(-3 * DEVICE_LIFE_MS)
    assert await host.store.device_token_by_digest(digest_of("s1")) is None


async def test_a_token_has_so_many_devices_and_no_more(host: Host) -> None:
    for n in range(MOST_OF_ONE + 2):
        host.clock.tick()
        await host.store.keep_device_token(device(f"device {n}", f"s{n}"), digest_of)
    await host.store.keep_device_token(device(salt="other", parent="operator:2"), digest_of)
    kept = [row.device_id for row in await host.store.device_tokens() if row.parent == "operator:1"]
    assert kept == [f"device {n}" for n in range(2, MOST_OF_ONE + 2)]
    assert len([fact for fact in host.facts if isinstance(fact, TokenEnded)]) == 2, "and who came in by those has to go"


async def test_what_a_device_has_survives_a_crash(host: Host) -> None:
    kept = await host.store.keep_device_token(device(), digest_of)
    store = await host.restart()
    assert await store.device_tokens() == [kept]
