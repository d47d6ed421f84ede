"""Device tokens: stored as hashes, one for each device and parent token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict, replace

from backchannel.core.facts import TokenEnded
from backchannel.core.secrets.devices import DEVICE_LIFE_MS, MOST_OF_ONE, DeviceToken
from backchannel.storage.tables import DEVICE_TOKENS, excluded
from backchannel.storage.tx import Tx, required

_NEW = excluded(column for column in DEVICE_TOKENS.columns if column != "id")
_OR_REPLACE = f"ON CONFLICT (device_id, parent) DO UPDATE SET {_NEW} {DEVICE_TOKENS.returning}"


def by_digest(tx: Tx, digest: str) -> DeviceToken | None:
    """Find a valid one by its hash. Whether the operator's token has changed is not known here."""
    return _counting(tx, "digest = ?", digest)


def of_device(tx: Tx, device_id: str, parent: str) -> DeviceToken | None:
    """Find the token of a device and a parent."""
    return _counting(tx, "device_id = ? AND parent = ?", device_id, parent)


def _counting(tx: Tx, condition: str, *values: str) -> DeviceToken | None:
    row = tx.one(f"{DEVICE_TOKENS.select} WHERE {condition}", *values)
    if row is None:
        return None
    found = DEVICE_TOKENS.read(row)
    return found if not found.is_over(tx.now) and _has_parent(tx, found) else None


def _has_parent(tx: Tx, token: DeviceToken) -> bool:
    """Whether the parent token is valid."""
    valid = "SELECT 1 FROM tokens WHERE id = ? AND revoked_at IS NULL"
    return token.is_of_operator or tx.one(valid, token.parent) is not None


def keep(tx: Tx, offered: DeviceToken, digest_with: Callable[[str], str]) -> DeviceToken | None:
    """Store a device token, or keep an equal one; None if its parent is not valid.

    `digest_with` computes the hash for a salt. A token that replaces another has that one's id.
    """
    if not _has_parent(tx, offered):
        return None
    found = of_device(tx, offered.device_id, offered.parent)
    if found is not None and found.is_that_of(offered, digest_with(found.salt), tx.now):
        return use(tx, found.id)
    kept = tx.insert_one(DEVICE_TOKENS, _OR_REPLACE, **asdict(replace(offered, created_at=tx.now, used_at=tx.now)))
    _sweep(tx, offered.parent)
    return DEVICE_TOKENS.read(required(kept))


def _sweep(tx: Tx, parent: str) -> None:
    """Remove expired tokens, and the least recently used if a parent has too many."""
    _delete(tx, "used_at <= ? OR used_at >= ?", tx.now - DEVICE_LIFE_MS, tx.now + DEVICE_LIFE_MS)
    latest = "SELECT id FROM device_tokens WHERE parent = ? ORDER BY used_at DESC, created_at DESC LIMIT ?"
    _delete(tx, f"parent = ? AND id NOT IN ({latest})", parent, parent, MOST_OF_ONE)


def use(tx: Tx, id: str) -> DeviceToken | None:
    """Record a use; None if the token is gone."""
    row = tx.one(f"UPDATE device_tokens SET used_at = ? WHERE id = ? {DEVICE_TOKENS.returning}", tx.now, id)
    return None if row is None else DEVICE_TOKENS.read(row)


def all_devices(tx: Tx) -> list[DeviceToken]:
    """List the valid ones, newest last."""
    revoked = "SELECT id FROM tokens WHERE revoked_at IS NOT NULL"
    rows = tx.all(f"{DEVICE_TOKENS.select} WHERE parent NOT IN ({revoked}) ORDER BY created_at, id")
    return [token for token in map(DEVICE_TOKENS.read, rows) if not token.is_over(tx.now)]


def remove(tx: Tx, device_id: str) -> list[str]:
    """End all tokens of a device; returns their ids."""
    return _delete(tx, "device_id = ?", device_id)


def revoke(tx: Tx, id: str) -> bool:
    """Revoke one; returns whether it was there."""
    return bool(_delete(tx, "id = ?", id))


def revoke_of(tx: Tx, parent: str) -> None:
    """Revoke those of a parent."""
    _delete(tx, "parent = ?", parent)


def _delete(tx: Tx, condition: str, *values: Any) -> list[str]:
    """Delete some, and record each: its connections must close. Returns their ids."""
    ended = [id for (id,) in tx.all(f"DELETE FROM device_tokens WHERE {condition} RETURNING id", *values)]
    for id in ended:
        tx.tell(TokenEnded(id, is_device=True))
    return ended
