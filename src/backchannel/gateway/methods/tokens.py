"""Tokens: making, listing and revoking them."""

from __future__ import annotations

import secrets

from backchannel.core.keys import SessionKey
from backchannel.core.records import TokenRow
from backchannel.core.secrets.devices import DeviceToken
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, TokenNotFound
from backchannel.gateway.addressing import check_agent, no_session, resolve
from backchannel.gateway.auth import OPERATOR_TOKEN_ID, hash_token, new_token, read_scopes, show_scopes
from backchannel.gateway.calls import Call, method
from backchannel.gateway.fields import Label
from backchannel.triggers.nodes import is_node
from backchannel.wire.answers import TokenMade, TokenRevoked, TokensListed
from backchannel.wire.frames import IdParams, NoParams, TokenScope
from backchannel.wire.rows import TokenDevice, TokenShown
from backchannel.wire.shapes import Params


class TokensCreateParams(Params, frozen=True, kw_only=True):
    scopes: list[str] | None = None
    session_key: str | None = None
    label: Label | None = None


@method("tokens.create", TokenScope.ADMIN)
async def tokens_create(call: Call, params: TokensCreateParams) -> TokenMade:
    """Makes a token and shows it this once: for an operator with `scopes`, or for an agent with one `sessionKey`."""
    if bool(params.scopes) == (params.session_key is not None):
        raise InvalidRequest("scopes, sessionKey: exactly one of them is needed", param="scopes")
    key = None if params.session_key is None else await _bound_session(call, params.session_key)
    token = new_token()
    row = TokenRow(
        id=secrets.token_hex(6),
        digest=hash_token(token),
        scopes=tuple(show_scopes(read_scopes(params.scopes or ()))),
        session_key=None if key is None else str(key),
        label=params.label,
        created_at=call.parts.clock.now_ms(),
    )
    await call.parts.store.create_token(row)
    return TokenMade(
        id=row.id,
        token=token,
        scopes=list(row.scopes),
        session_key=row.session_key and call.parts.rows.key(row.session_key),
        label=row.label,
    )


async def _bound_session(call: Call, text: str) -> SessionKey:
    """Find the session of a token: an existing one, or the main session of an agent or a node.

    Those two need no row yet: a node cannot connect to make its own.
    """
    parts = call.parts
    key = (await resolve(parts, text)).key
    session = await parts.store.session(str(key))
    if session is not None and session.archived_at is None:
        return key
    if not parts.scheme.is_main(key) and not is_node(key):
        raise no_session(parts, text)
    check_agent(parts, key.agent)
    return key


@method("tokens.list", TokenScope.ADMIN)
async def tokens_list(call: Call, params: NoParams) -> TokensListed:
    """Lists the tokens, those of devices last, without their secrets."""
    shown = [
        TokenShown(
            id=row.id,
            scopes=list(row.scopes),
            session_key=row.session_key and call.parts.rows.key(row.session_key),
            label=row.label,
            created_at=row.created_at,
            revoked_at=row.revoked_at,
        )
        for row in await call.parts.store.tokens()
    ]
    return TokensListed(
        tokens=shown + [await _show_device(call, row) for row in await call.parts.store.device_tokens()]
    )


async def _show_device(call: Call, row: DeviceToken) -> TokenShown:
    return TokenShown(
        id=row.id,
        scopes=row.scopes.split(),
        created_at=row.created_at,
        device=TokenDevice(
            id=row.device_id,
            made_from=OPERATOR_TOKEN_ID if row.is_of_operator else row.parent,
            is_stale=await call.connections.devices.is_stale(row),
            client=row.client or None,
            platform=row.platform or None,
            origin=row.origin or None,
            last_used_at=row.used_at,
            ends_at=row.ends_at,
        ),
    )


@method("tokens.revoke", TokenScope.ADMIN)
async def tokens_revoke(call: Call, params: IdParams) -> TokenRevoked:
    """Revokes a token and the device tokens made from it, and closes their connections."""
    if not await call.parts.store.revoke_token(params.id):
        raise TokenNotFound(f"no valid token has the id {quoted(params.id, 64)} (tokens.list shows them)")
    return TokenRevoked(ok=True, id=params.id)
