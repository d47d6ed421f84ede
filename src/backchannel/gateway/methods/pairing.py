"""Pairing: the strangers who wait to be let in, those whom an owner has let in or denied, and changing that."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.pairing import PairingRecord, PairingState, read_code
from backchannel.errors import PairingNotFound
from backchannel.gateway.ws.connections import Call, Method
from backchannel.tools.base import read_cursor, write_cursor
from backchannel.wire.answers import PairingAnswered, PairingsListed, PairingsRemoved
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import PairingRow
from backchannel.wire.shapes import Params

_LISTED, _MOST_LISTED = 50, 500


class PairingListParams(Params, frozen=True, kw_only=True):
    state: PairingState | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED
    cursor: str | None = None


class PairingCodeParams(Params, frozen=True, kw_only=True):
    code: Annotated[str, Meta(min_length=1, max_length=64)]


class PairingRemoveParams(Params, frozen=True, kw_only=True):
    channel: str
    sender_id: str
    account_id: str | None = None


async def pairing_list(call: Call, params: PairingListParams) -> PairingsListed:
    """Lists the strangers who have a code, and the people who were let in or denied, newest first."""
    query: list[Any] = ["pairing.list", params.state]
    before = None if params.cursor is None else read_cursor(params.cursor, query, int)
    limit = min(params.limit, _MOST_LISTED)
    found = await call.parts.store.pairings(state=params.state, limit=limit + 1, before=before)
    page, has_more = found[:limit], len(found) > limit
    return PairingsListed(
        count=len(page),
        has_more=has_more,
        next_cursor=write_cursor(query, page[-1].number) if has_more else None,
        pairings=[_show(pairing) for pairing in page],
    )


async def pairing_approve(call: Call, params: PairingCodeParams) -> PairingAnswered:
    """Lets the person speak who was sent this code, once, and tells them."""
    return await _answer(call, params.code, PairingState.APPROVED)


async def pairing_deny(call: Call, params: PairingCodeParams) -> PairingAnswered:
    """Ignores the person from now on who was sent this code."""
    return await _answer(call, params.code, PairingState.DENIED)


async def _answer(call: Call, code: str, state: PairingState) -> PairingAnswered:
    try:
        answered = await call.parts.store.answer_pairing(code, state, Answerer.operator(call.holder.token_id))
    except PairingNotFound:
        call.connections.wrong_codes.add(call.holder.token_id, read_code(code))
        raise
    return PairingAnswered(pairing=_show(answered))


async def pairing_remove(call: Call, params: PairingRemoveParams) -> PairingsRemoved:
    """Makes a stranger again of somebody who was let in or denied; on every account unless one is named."""
    removed = await call.parts.store.remove_pairing(params.channel, params.sender_id, params.account_id)
    return PairingsRemoved(removed=[_show(pairing) for pairing in removed])


def _show(pairing: PairingRecord) -> PairingRow:
    is_pending = pairing.state is PairingState.PENDING
    return PairingRow(
        channel=pairing.channel,
        account_id=pairing.account_id,
        sender_id=pairing.sender_id,
        sender_name=pairing.sender_name,
        state=pairing.state.value,
        code=pairing.code if is_pending else None,
        created_at=pairing.created_at,
        expires_at=pairing.expires_at if is_pending else None,
        answered_at=pairing.answered_at,
        answered_by=pairing.answered_by,
    )


_PAIRING = (
    "{channel, accountId, senderId, senderName?, state: pending | approved | denied, code?, createdAt, expiresAt?, "
    "answeredAt?, answeredBy?}"
)

METHODS: tuple[Method[Any], ...] = (
    Method(
        "pairing.list",
        PairingListParams,
        TokenScope.READ,
        pairing_list,
        f"`{{count, hasMore, nextCursor?, pairings: [{_PAIRING}]}}`",
    ),
    Method("pairing.approve", PairingCodeParams, TokenScope.ADMIN, pairing_approve, f"`{{pairing: {_PAIRING}}}`"),
    Method("pairing.deny", PairingCodeParams, TokenScope.ADMIN, pairing_deny, f"`{{pairing: {_PAIRING}}}`"),
    Method("pairing.remove", PairingRemoveParams, TokenScope.ADMIN, pairing_remove, f"`{{removed: [{_PAIRING}]}}`"),
)
