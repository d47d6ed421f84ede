"""Pairing: strangers with a code, and people who were approved or denied."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.pairing import PairingRecord, PairingState, read_code
from backchannel.errors import PairingNotFound
from backchannel.gateway.calls import Call, method
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


@method("pairing.list", TokenScope.READ)
async def pairing_list(call: Call, params: PairingListParams) -> PairingsListed:
    """Lists strangers with a code, and people who were approved or denied, newest first."""
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


@method("pairing.approve", TokenScope.ADMIN)
async def pairing_approve(call: Call, params: PairingCodeParams) -> PairingAnswered:
    """Approves the person who was sent this code, and tells them."""
    return await _answer(call, params.code, PairingState.APPROVED)


@method("pairing.deny", TokenScope.ADMIN)
async def pairing_deny(call: Call, params: PairingCodeParams) -> PairingAnswered:
    """Denies the person who was sent this code: they are ignored from now on."""
    return await _answer(call, params.code, PairingState.DENIED)


async def _answer(call: Call, code: str, state: PairingState) -> PairingAnswered:
    try:
        answered = await call.parts.store.answer_pairing(code, state, Answerer.operator(call.holder.token_id))
    except PairingNotFound:
        call.connections.wrong_codes.add(call.holder.token_id, read_code(code))
        raise
    return PairingAnswered(pairing=_show(answered))


@method("pairing.remove", TokenScope.ADMIN)
async def pairing_remove(call: Call, params: PairingRemoveParams) -> PairingsRemoved:
    """Removes an approval or a denial, on every account or on the one named: the person is a stranger again."""
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
