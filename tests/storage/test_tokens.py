"""Access tokens are found by their hash until they are revoked."""

from __future__ import annotations

import msgspec
import pytest

from backchannel.core.records import TokenRow
from backchannel.storage.store import Store
from tests.storage.support import Host
from tests.support.databases import broken_constraint

pytestmark = pytest.mark.anyio

TOKEN = TokenRow(
    id="t1", digest="d1", scopes=("operator.read", "operator.write"), session_key=None, label="laptop", created_at=5
)
BOUND = TokenRow(id="t2", digest="d2", scopes=(), session_key="agent:main:main", label=None, created_at=4)


async def test_a_token_is_found_by_its_hash_and_by_nothing_else(store: Store) -> None:
    await store.create_token(TOKEN)
    assert await store.token_by_digest("d1") == TOKEN
    for digest in ("t1", "laptop", "", "D1", "d%"):
        assert await store.token_by_digest(digest) is None


async def test_tokens_are_listed_oldest_first_with_all_they_are(store: Store) -> None:
    await store.create_token(TOKEN)
    await store.create_token(BOUND)
    assert await store.tokens() == [BOUND, TOKEN]


async def test_a_revoked_token_no_longer_counts_and_stays_in_the_list(host: Host) -> None:
    store = host.store
    await store.create_token(TOKEN)
    assert await store.revoke_token("t1")
    assert await store.token_by_digest("d1") is None
    assert await store.tokens() == [msgspec.structs.replace(TOKEN, revoked_at=host.clock.ms)]


async def test_a_token_is_revoked_once(host: Host) -> None:
    await host.store.create_token(TOKEN)
    await host.store.revoke_token("t1")
    host.clock.tick()
    assert not await host.store.revoke_token("t1")
    assert not await host.store.revoke_token("nobody")
    assert (await host.store.tokens())[0].revoked_at == host.clock.ms - 1


async def test_a_revocation_survives_a_crash(host: Host) -> None:
    await host.store.create_token(TOKEN)
    await host.store.revoke_token("t1")
    store = await host.restart()
    assert await store.token_by_digest("d1") is None


async def test_two_tokens_cannot_share_an_id_or_a_hash(store: Store) -> None:
    await store.create_token(TOKEN)
    for twin in (msgspec.structs.replace(TOKEN, id="t3"), msgspec.structs.replace(TOKEN, digest="d3")):
        with pytest.raises(broken_constraint()):
            await store.create_token(twin)
    assert await store.tokens() == [TOKEN]
