"""Deliveries: outbound messages, their receipts, and repairing those that did not arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from backchannel.core.delivery.delivery import DeliveryState, Post, Receipt
from backchannel.core.sessions import Address
from backchannel.errors import GatewayError, InvalidRequest
from backchannel.gateway.addressing import address_for_message, resolve
from backchannel.gateway.calls import Call, method
from backchannel.gateway.fields import IdempotencyKey, NothingAttached, read_content
from backchannel.tools.base import hash_request, read_cursor, write_cursor
from backchannel.tools.rows import show_receipt
from backchannel.wire.answers import DeliveriesListed, DeliveriesMended, NotMended
from backchannel.wire.frames import IdParams, TokenScope
from backchannel.wire.rows import ReceiptRow
from backchannel.wire.shapes import Params, SharedParams

Mend = Callable[[str], Awaitable[Receipt]]

_LISTED, _MOST_LISTED, _MOST_MENDED = 50, 500, 500


class SendParams(SharedParams, frozen=True, kw_only=True):
    channel: str
    to: Annotated[str, Meta(min_length=1)]
    message: str
    account_id: str | None = None
    thread_id: str | None = None
    session_key: str | None = None
    media_url: NothingAttached = None
    media_urls: NothingAttached = None
    buffer: NothingAttached = None
    idempotency_key: IdempotencyKey | None = None


class DeliveriesListParams(Params, frozen=True, kw_only=True):
    state: DeliveryState | None = None
    session_key: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED
    cursor: str | None = None


class MendParams(Params, frozen=True, kw_only=True):
    """One delivery, several, or all in a state."""

    id: str | None = None
    ids: Annotated[list[str], Meta(min_length=1, max_length=_MOST_MENDED)] | None = None
    state: Literal["failed", "uncertain"] | None = None
    cursor: str | None = None


class RerouteParams(Params, frozen=True, kw_only=True):
    id: str
    channel: str
    to: Annotated[str, Meta(min_length=1)]
    account_id: str | None = None
    thread_id: str | None = None


@method("send", TokenScope.WRITE)
async def send(call: Call, params: SendParams) -> ReceiptRow:
    """Sends a text to a chat without an agent, and answers with the receipt; `delivery` events follow."""
    parts = call.parts
    at = await address_for_message(parts, params.session_key or "main", None, params.idempotency_key)
    read_content(params.message)
    address = _outside(call, params.channel, params.to, params.account_id, params.thread_id)
    post = Post(session_key=str(at.key), address=address, text=params.message)
    digest = None
    if params.idempotency_key is not None:
        digest = hash_request(call.holder.token_id, "send", str(at.key), address, params.message)
    receipt = await parts.store.post(
        post, expected_session_id=at.session_id, idempotency_key=params.idempotency_key, digest=digest
    )
    return show_receipt(receipt, call.parts.rows.key)


def _outside(call: Call, channel: str, to: str, account_id: str | None, thread_id: str | None) -> Address:
    """Read an address outside.

    Raises:
        UnknownChannel: nothing can be sent over this channel.
    """
    call.parts.channels.check(channel)
    return Address(channel=channel, to=to, account_id=account_id, thread_id=thread_id)


@method("deliveries.list", TokenScope.READ)
async def deliveries_list(call: Call, params: DeliveriesListParams) -> DeliveriesListed:
    """Lists receipts, newest first, of one session or of all, in the state given or in any."""
    key = None
    if params.session_key is not None:
        key = str((await resolve(call.parts, params.session_key)).key)
    query: list[Any] = ["deliveries.list", key, params.state]
    before = None if params.cursor is None else read_cursor(params.cursor, query, int)
    limit = min(params.limit, _MOST_LISTED)
    found = await call.parts.store.receipts(session_key=key, state=params.state, limit=limit + 1, before=before)
    page, has_more = found[:limit], len(found) > limit
    return DeliveriesListed(
        count=len(page),
        has_more=has_more,
        next_cursor=write_cursor(query, page[-1].delivery.number) if has_more else None,
        deliveries=[show_receipt(receipt, call.parts.rows.key) for receipt in page],
    )


@method("deliveries.get", TokenScope.READ)
async def deliveries_get(call: Call, params: IdParams) -> ReceiptRow:
    """Shows one receipt."""
    return show_receipt(await call.parts.store.receipt(params.id), call.parts.rows.key)


@method("deliveries.retry", TokenScope.WRITE)
async def deliveries_retry(call: Call, params: MendParams) -> ReceiptRow | DeliveriesMended:
    """Sends failed or uncertain deliveries again; parts that arrived are not repeated."""
    return await _mend(call, params, "deliveries.retry", call.parts.store.retry_delivery)


async def _mend(call: Call, params: MendParams, method: str, act: Mend) -> ReceiptRow | DeliveriesMended:
    """Do the same to one delivery or to several, oldest first, so that a chat gets them in order."""
    if [params.id, params.ids, params.state].count(None) != 2 or (params.cursor and params.state is None):
        works = "one id, several ids, or a state (failed or uncertain), with which a cursor may come"
        raise InvalidRequest(f"{method} takes {works}", param="id")
    if params.id is not None:
        return show_receipt(await act(params.id), call.parts.rows.key)
    if params.state is None:
        return await _mend_each(params.ids or [], act)
    query = [method, params.state]
    after = 0 if params.cursor is None else read_cursor(params.cursor, query, int)
    found = await call.parts.store.oldest_deliveries(DeliveryState(params.state), _MOST_MENDED + 1, after)
    page = found[:_MOST_MENDED]
    mended = await _mend_each([delivery.id for delivery in page], act)
    cursor = write_cursor(query, page[-1].number) if len(found) > len(page) else None
    return replace(mended, next_cursor=cursor)


async def _mend_each(ids: list[str], act: Mend) -> DeliveriesMended:
    outcomes = await asyncio.gather(*map(act, ids), return_exceptions=True)  # they share a commit
    refused = []
    for delivery_id, outcome in zip(ids, outcomes, strict=True):
        if isinstance(outcome, GatewayError):
            refused.append(NotMended(id=delivery_id, error=outcome.message))
        elif isinstance(outcome, BaseException):
            raise outcome
    return DeliveriesMended(count=len(ids) - len(refused), refused=refused)


@method("deliveries.reroute", TokenScope.WRITE)
async def deliveries_reroute(call: Call, params: RerouteParams) -> ReceiptRow:
    """Sends the whole text of a failed or uncertain delivery to another chat."""
    address = _outside(call, params.channel, params.to, params.account_id, params.thread_id)
    receipt = await call.parts.store.reroute_delivery(params.id, address)
    return show_receipt(receipt, call.parts.rows.key)


@method("deliveries.drop", TokenScope.WRITE)
async def deliveries_drop(call: Call, params: MendParams) -> ReceiptRow | DeliveriesMended:
    """Drops failed or uncertain deliveries."""
    return await _mend(call, params, "deliveries.drop", call.parts.store.drop_delivery)


@method("deliveries.confirm", TokenScope.WRITE)
async def deliveries_confirm(call: Call, params: IdParams) -> ReceiptRow:
    """Confirms that the uncertain part of a delivery arrived; the parts after it are sent."""
    return show_receipt(await call.parts.store.confirm_delivery(params.id), call.parts.rows.key)
