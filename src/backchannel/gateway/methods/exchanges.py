"""Exchanges: one `sessions_send` with its turns, lists of them, and a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, field
from msgspec.structs import replace

from backchannel.core.commands.control_words import is_control_word
from backchannel.core.flows.exchange_values import ExchangePlace, ExchangeRecord, ExchangeState, Party, Talk
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.runs import Run, RunKind
from backchannel.core.sessions import Session
from backchannel.core.text import cut
from backchannel.errors import InvalidRequest
from backchannel.gateway.addressing import resolve
from backchannel.gateway.calls import Call, method
from backchannel.tools.base import read_cursor, write_cursor
from backchannel.tools.listing import active_since
from backchannel.tools.rows import Rows, name_of, show_receipt
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import ExchangeShown, PartyShown
from backchannel.wire.shapes import Answer, Params

_LISTED, _MOST_LISTED = 50, 200
_LISTED_TEXT = 500
"""The length of a text in a list."""


class ExchangeParams(Params, frozen=True, kw_only=True):
    id: Annotated[str, Meta(min_length=1)] | None = None
    run_id: Annotated[str, Meta(min_length=1)] | None = None


class ExchangeListed(ExchangeShown, frozen=True, kw_only=True):
    """An exchange in a list; long texts are cut."""

    turns: int
    cost: float | None = None


class SpokenTurn(Answer, frozen=True, kw_only=True):
    """A message of one side of an exchange, and its run."""

    run_id: str
    kind: str
    """`primary`, `turn` or `announce`."""
    session_key: str
    at: int
    status: str
    ended_at: int | None = None
    asked: str | None = None
    reply: str | None = None
    error: str | None = None
    cost: float | None = None
    tokens: int | None = None
    is_control: bool = False
    control: str | None = None
    """The control word, if the reply is one, such as `REPLY_SKIP`; it is meant for the gateway."""


class ExchangeTold(ExchangeListed, frozen=True, kw_only=True):
    """A whole exchange, with its conversation."""

    conversation: list[SpokenTurn]


class ExchangeAnswer(Answer, frozen=True, kw_only=True):
    exchange: ExchangeTold


class ExchangesListParams(Params, frozen=True, kw_only=True):
    session_key: str | None = None
    states: tuple[ExchangeState, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED
    cursor: str | None = None


class ExchangesListed(Answer, frozen=True, kw_only=True):
    count: int
    has_more: bool
    exchanges: list[ExchangeListed]
    next_cursor: str | None = None


class MapParams(Params, frozen=True, kw_only=True):
    active_minutes: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None


class MapNode(Answer, frozen=True, kw_only=True):
    key: str
    name: str
    kind: str
    agent_id: str


class MapEdge(Answer, frozen=True, kw_only=True):
    """The sends and spawns from one session to another."""

    from_: str | None = field(name="from")
    """Null for the operator."""
    to: str
    sends: int
    replies: int
    spawns: int
    last_at: int
    cost: float | None = None


class TalkShown(Answer, frozen=True, kw_only=True):
    ts: int
    nodes: list[MapNode]
    edges: list[MapEdge]
    since: int | None = None
    truncated: bool = False


@method("exchanges.get", TokenScope.READ)
async def exchanges_get(call: Call, params: ExchangeParams) -> ExchangeAnswer:
    """Shows an exchange: a `sessions_send` and its turns, by its id or by any of its runs."""
    if (params.id is None) == (params.run_id is None):
        raise InvalidRequest("exchanges.get: give exactly one of id and runId", param="id")
    story = await call.parts.store.exchange_story(params.id, params.run_id)
    return ExchangeAnswer(exchange=_told(story, call.parts.rows))


@method("exchanges.list", TokenScope.READ)
async def exchanges_list(call: Call, params: ExchangesListParams) -> ExchangesListed:
    """Lists exchanges, newest first, of one session or all, in the states given or any."""
    key = None
    if params.session_key is not None:
        key = str((await resolve(call.parts, params.session_key)).key)
    query: list[Any] = ["exchanges.list", key, sorted(params.states)]
    after = None if params.cursor is None else read_cursor(params.cursor, query, ExchangePlace)
    limit = min(params.limit, _MOST_LISTED)
    found = await call.parts.store.exchange_page(session_key=key, states=params.states, after=after, limit=limit + 1)
    page, has_more = found[:limit], len(found) > limit
    last = page[-1] if has_more else None
    return ExchangesListed(
        count=len(page),
        has_more=has_more,
        next_cursor=None if last is None else write_cursor(query, ExchangePlace(last.created_at, last.exchange.id)),
        exchanges=[_listed(story, call.parts.rows) for story in page],
    )


def _shown(story: ExchangeRecord, rows: Rows) -> dict[str, Any]:
    exchange = story.exchange
    return {
        "id": exchange.id,
        "state": exchange.state.value,
        "turn": exchange.turn,
        "turns": sum(run.kind is RunKind.TURN for run in story.runs),
        "max_turns": exchange.max_turns,
        "waiting": exchange.is_waiting,
        "requester": None if exchange.requester is None else _party(exchange.requester),
        "target": _party(exchange.target),
        "message": exchange.request,
        "path": exchange.path,
        "reply": exchange.reply,
        "latest_reply": exchange.latest,
        "loop_end": exchange.loop_end,
        "outcome": None if exchange.outcome is None else exchange.outcome.value,
        "reason": exchange.reason,
        "runs": [rows.run(run) for run in story.runs],
        "receipt": show_receipt(story.receipt, rows.key),
        "cost": _cost(story.runs),
        "created_at": story.created_at,
        "updated_at": story.updated_at,
    }


def _told(story: ExchangeRecord, rows: Rows) -> ExchangeTold:
    return ExchangeTold(**_shown(story, rows), conversation=[_spoken(story, run, rows) for run in story.runs])


def _listed(story: ExchangeRecord, rows: Rows) -> ExchangeListed:
    whole = ExchangeListed(**_shown(story, rows))
    return replace(
        whole,
        message=cut(whole.message, _LISTED_TEXT),
        reply=_cut(whole.reply),
        latest_reply=_cut(whole.latest_reply),
        runs=[replace(run, reply=_cut(run.reply)) for run in whole.runs],
        receipt=replace(whole.receipt, text=_cut(whole.receipt.text)),
    )


def _cut(text: str | None) -> str | None:
    return None if text is None else cut(text, _LISTED_TEXT)


def _spoken(story: ExchangeRecord, run: Run, rows: Rows) -> SpokenTurn:
    control = run.reply.strip() if run.reply is not None and is_control_word(run.reply) else None
    return SpokenTurn(
        run_id=run.id,
        kind=run.kind.value,
        session_key=rows.key(run.session_key),
        at=run.started_at or run.accepted_at,
        ended_at=run.ended_at,
        status=run.state.value,
        asked=story.exchange.request if run.kind is RunKind.PRIMARY else None,
        reply=run.reply,
        error=run.error,
        cost=run.cost,
        tokens=run.tokens_in + run.tokens_out or None,
        is_control=control is not None,
        control=control,
    )


def _cost(runs: Sequence[Run]) -> float | None:
    costs = [run.cost for run in runs if run.cost is not None]
    return sum(costs) if costs else None


def _party(party: Party) -> PartyShown:
    return PartyShown(session_key=party.name, channel=party.channel)


@method("exchanges.map", TokenScope.READ)
async def exchanges_map(call: Call, params: MapParams) -> TalkShown:
    """Shows which sessions talked to each other, how often and at what cost: the newest 5,000 sends and spawns."""
    parts, now = call.parts, call.parts.clock.now_ms()
    since = active_since(now, params.active_minutes)
    found = await parts.store.talk_map(since or 0)
    keys = dict.fromkeys(key for talk in found.talks for key in (talk.requester, talk.target) if key is not None)
    return TalkShown(
        ts=now,
        since=since,
        nodes=[_map_node(key, found.sessions.get(key), parts.rows, parts.scheme) for key in keys],
        edges=[_map_edge(talk, parts.rows) for talk in found.talks],
        truncated=found.is_cut,
    )


def _map_node(key: str, session: Session | None, rows: Rows, scheme: KeyScheme) -> MapNode:
    if session is None:  # the main session of an agent, before its first message
        parsed = SessionKey.stored(key)
        return MapNode(key=rows.key(key), name=parsed.agent, kind=scheme.kind(parsed).value, agent_id=parsed.agent)
    return MapNode(key=rows.key(key), name=name_of(session), kind=session.kind, agent_id=session.agent_id)


def _map_edge(talk: Talk, rows: Rows) -> MapEdge:
    return MapEdge(
        from_=None if talk.requester is None else rows.key(talk.requester),
        to=rows.key(talk.target),
        sends=talk.sends,
        replies=talk.replies,
        spawns=talk.spawns,
        last_at=talk.last_at,
        cost=talk.cost,
    )
