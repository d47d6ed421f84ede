"""Access tokens, stored as hashes."""

from __future__ import annotations

from msgspec.structs import asdict

from backchannel.core.facts import TokenEnded
from backchannel.core.records import TokenRow
from backchannel.storage.tables import TOKENS
from backchannel.storage.tx import Row, Tx
from backchannel.storage.units import devices


def _token(row: Row) -> TokenRow:
    id_, digest, scopes, session_key, label, created_at, revoked_at = row
    return TokenRow(
        id=id_,
        digest=digest,
        scopes=tuple(scopes.split()),
        session_key=session_key,
        label=label,
        created_at=created_at,
        revoked_at=revoked_at,
    )


def create(tx: Tx, token: TokenRow) -> None:
    tx.insert(TOKENS, **{**asdict(token), "scopes": " ".join(token.scopes)})


def all_tokens(tx: Tx) -> list[TokenRow]:
    return [_token(row) for row in tx.all(f"{TOKENS.select} ORDER BY created_at, id")]


def by_digest(tx: Tx, digest: str) -> TokenRow | None:
    """Find a valid token by its hash."""
    row = tx.one(f"{TOKENS.select} WHERE digest = ? AND revoked_at IS NULL", digest)
    return None if row is None else _token(row)


def revoke(tx: Tx, token_id: str) -> bool:
    """Revoke a token and its device tokens, or one device token; returns whether it was valid."""
    ended = "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL RETURNING id"
    if tx.one(ended, tx.now, token_id) is None:
        return devices.revoke(tx, token_id)
    devices.revoke_of(tx, token_id)
    tx.tell(TokenEnded(token_id))
    return True
