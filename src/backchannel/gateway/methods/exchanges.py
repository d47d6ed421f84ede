"""Exchanges: what a `sessions_send` has come to, told as a whole."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.exchange_values import Party
from backchannel.core.shapes import Answer, Params
from backchannel.errors import InvalidRequest
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.protocol import Scope
from backchannel.storage.transactions.exchanges import Story
from backchannel.tools.rows import ReceiptRow, Rows, RunRow, show_receipt


class ExchangeParams(Params, frozen=True, kw_only=True):
    id: Annotated[str, Meta(min_length=1)] | None = None
    run_id: Annotated[str, Meta(min_length=1)] | None = None


class PartyShown(Answer, frozen=True, kw_only=True):
    """One of the two sessions, as it was when the send was accepted."""

    session_key: str
    channel: str


class ExchangeShown(Answer, frozen=True, kw_only=True):
    """An exchange, with its runs and its receipt."""

    id: str
    state: str
    turn: int
    max_turns: int
    waiting: bool
    target: PartyShown
    message: str
    path: tuple[str, ...]
    runs: list[RunRow]
    receipt: ReceiptRow
    created_at: int
    updated_at: int
    requester: PartyShown | None = None
    reply: str | None = None
    latest_reply: str | None = None
    loop_end: str | None = None
    outcome: str | None = None
    reason: str | None = None


class ExchangeFound(Answer, frozen=True, kw_only=True):
    exchange: ExchangeShown


async def exchanges_get(call: Call, params: ExchangeParams) -> ExchangeFound:
    """Shows what a `sessions_send` has come to, by the exchange's id or by any of its runs."""
    if (params.id is None) == (params.run_id is None):
        raise InvalidRequest("exchanges.get: give exactly one of id and runId", param="id")
    story = await call.parts.store.exchange_story(params.id, params.run_id)
    return ExchangeFound(exchange=show_exchange(story, call.parts.rows))


def show_exchange(story: Story, rows: Rows) -> ExchangeShown:
    """Show an exchange with everything that belongs to it."""
    exchange = story.exchange
    return ExchangeShown(
        id=exchange.id,
        state=exchange.state.value,
        turn=exchange.turn,
        max_turns=exchange.max_turns,
        waiting=exchange.is_waiting,
        requester=None if exchange.requester is None else _party(exchange.requester),
        target=_party(exchange.target),
        message=exchange.request,
        path=exchange.path,
        reply=exchange.reply,
        latest_reply=exchange.latest,
        loop_end=exchange.loop_end,
        outcome=None if exchange.outcome is None else exchange.outcome.value,
        reason=exchange.reason,
        runs=[rows.run(run) for run in story.runs],
        receipt=show_receipt(story.receipt, rows.key),
        created_at=story.created_at,
        updated_at=story.updated_at,
    )


def _party(party: Party) -> PartyShown:
    return PartyShown(session_key=party.name, channel=party.channel)


METHODS: tuple[Method[Any], ...] = (
    Method(
        "exchanges.get",
        ExchangeParams,
        Scope.READ,
        exchanges_get,
        "`{exchange {id, state: primary | handover | turn | announce | done, turn, maxTurns, waiting, "
        "requester? {sessionKey, channel}, target {sessionKey, channel}, message, path, reply?, latestReply?, "
        "loopEnd?, outcome?, reason?, runs, receipt, createdAt, updatedAt}}`",
    ),
)
