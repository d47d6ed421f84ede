"""Runs: starting one, waiting for one, and looking at them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from backchannel.agents.registry import MissingAgent
from backchannel.core.caller_keys import RequestAddress
from backchannel.core.commands.control_words import is_silent
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Provenance, ProvenanceKind, Usage
from backchannel.core.runs import MAX_RUN_S, Run, RunRequest, RunState
from backchannel.core.sessions import Address
from backchannel.core.text import quoted
from backchannel.errors import Forbidden, InvalidRequest, RunNotFound
from backchannel.gateway.addressing import address_by_id, address_for_message, resolve
from backchannel.gateway.calls import Call, method
from backchannel.gateway.events.subscriptions import error_of
from backchannel.gateway.fields import (
    IdempotencyKey,
    NothingAttached,
    digest_of,
    read_content,
    read_model,
    read_reply_to,
    read_thinking,
)
from backchannel.gateway.parts import GatewayParts
from backchannel.openclaw.rows import TerminalReply
from backchannel.openclaw.words import UNKNOWN_ENDS
from backchannel.tools.base import read_cursor, write_cursor
from backchannel.tools.rows import Rows, duration_ms, show_awaited
from backchannel.wire.answers import RunShown, RunsListed, RunWaited, TimelineShown
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Answer, Params, SharedParams
from backchannel.wire.timeline import TimelineEntry

MAX_WAIT_MS = 24 * 3600 * 1000
_LISTED, _MOST_LISTED = 50, 500


class AgentParams(SharedParams, frozen=True, kw_only=True):
    message: str
    session_key: str | None = None
    session_id: str | None = None
    """Alone it names the session. With a `sessionKey`, the session must still have this id."""
    expected_existing_session_id: str | None = None
    """The session of the `sessionKey` must still have this id."""
    agent_id: str | None = None
    deliver: bool = False
    channel: str | None = None
    to: str | None = None
    account_id: str | None = None
    thread_id: str | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_RUN_S)] | None = None
    thinking: str | None = None
    model: str | None = None
    attachments: NothingAttached = None
    idempotency_key: IdempotencyKey | None = None


class AgentAccepted(Answer, frozen=True, kw_only=True):
    run_id: str
    status: str
    """`accepted`."""
    accepted_at: int


class Payload(Answer, frozen=True, kw_only=True, omit_defaults=False):
    text: str
    media_url: str | None = None
    is_error: bool | UnsetType = UNSET


class ResultMeta(Answer, frozen=True, kw_only=True):
    usage: Usage
    duration_ms: int | None = None
    model: str | None = None


class RunResult(Answer, frozen=True, kw_only=True):
    payloads: list[Payload]
    meta: ResultMeta


class AgentEnded(Answer, frozen=True, kw_only=True):
    run_id: str
    status: str
    summary: str
    result: RunResult
    error: str | None = None


class WaitParams(SharedParams, frozen=True, kw_only=True):
    run_id: str
    timeout_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 30_000


class RunParams(Params, frozen=True, kw_only=True):
    run_id: str


class RunsListParams(Params, frozen=True, kw_only=True):
    session_key: str | None = None
    states: tuple[RunState, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED
    cursor: str | None = None


@method("agent", TokenScope.WRITE, first=AgentAccepted)
async def agent(call: Call, params: AgentParams) -> AgentEnded:
    """Sends a message to an agent; answers when it is accepted, and again, with the same id, when its run ended.

    A `sessionId` without a `sessionKey` names the session. An id that no session ever had starts the session
    `explicit:<id>`; the id of a session that was reset or deleted is refused. A `to` without a `channel` has no effect.
    With `deliver`, the `channel` is required.
    """
    parts = call.parts
    at = await _address(parts, params)
    request = RunRequest(
        key=at.key,
        content=read_content(params.message),
        provenance=Provenance(kind=ProvenanceKind.EXTERNAL_USER),
        id=params.idempotency_key,
        digest=digest_of(call.holder.token_id, "agent", at.key, params),
        deliver=params.deliver,
        reply_to=_reply_to(parts, params),
        model=read_model(parts, params.model),
        thinking=read_thinking(params.thinking),
        timeout_s=params.timeout,
        expected_session_id=_expected_id(params) or at.session_id,
    )
    with call.subscriptions.answering(call.subscriber, str(at.key)):
        accepted = (await parts.runtime.submit(request)).run
        call.subscriptions.follow(call.subscriber, accepted)
    call.answer_first(AgentAccepted(run_id=accepted.id, status="accepted", accepted_at=accepted.accepted_at))
    return ended(await _wait_to_the_end(call, accepted))


async def _address(parts: GatewayParts, params: AgentParams) -> RequestAddress:
    if params.session_id and not params.session_key:
        return await address_by_id(parts, params.session_id, params.agent_id, params.idempotency_key)
    return await address_for_message(parts, params.session_key or "main", params.agent_id, params.idempotency_key)


def _expected_id(params: AgentParams) -> str | None:
    """Read the session id that the sender expects beside the key.

    Raises:
        InvalidRequest: it says two things, or names no key.
    """
    beside = params.session_id if params.session_key else None
    expected = params.expected_existing_session_id
    if expected is None:
        return beside
    if not params.session_key or beside not in (None, expected):
        raise InvalidRequest(
            "expectedExistingSessionId: it needs a sessionKey, and no other sessionId may come with it",
            param="expectedExistingSessionId",
        )
    return expected


def _reply_to(parts: GatewayParts, params: AgentParams) -> Address | None:
    """Read the address of the reply; a place without a channel counts only with `deliver`."""
    if params.channel is None and not params.deliver:
        return None
    return read_reply_to(parts, params)


async def _wait_to_the_end(call: Call, run: Run) -> Run:
    while not run.is_finished:
        run = await call.waits.until(call.parts.runtime.wait(run.id, 3600.0))
    return run


def ended(run: Run) -> AgentEnded:
    """Show how a run ended, as the second answer of `agent`."""
    error = None if run.state is RunState.OK else error_of(run)
    return AgentEnded(
        run_id=run.id,
        status=run.state.value,
        summary=error or "completed",
        error=error,
        result=RunResult(
            payloads=_payloads(run, error),
            meta=ResultMeta(usage=run.usage, duration_ms=duration_ms(run), model=run.answered_by),
        ),
    )


def _payloads(run: Run, error: str | None) -> list[Payload]:
    """Show the texts of a run: its reply, and after a part of a reply the error."""
    if run.reply is None or is_silent(run.reply):
        return []
    shown = [Payload(text=run.reply)]
    return shown if error is None else [*shown, Payload(text=error, is_error=True)]


@method("agent.wait", TokenScope.READ, for_agents=True)
async def agent_wait(call: Call, params: WaitParams) -> RunWaited:
    """Waits for a run to end, or reads one that has ended; `timeoutMs: 0` does not wait.

    A wait that ends before the run has the status `timeout`, no `endedAt`, and `running` or `queued`. An operator then
    gets the run's events, as a client that lost its connection needs them. With `timeoutMs: 0` an operator also gets
    the last `chat` event of a run that was aborted or timed out.
    """
    await _check_own_run(call, params.run_id)
    run = await call.waits.until(call.parts.runtime.wait(params.run_id, params.timeout_ms / 1000))
    if not run.is_finished and call.holder.session_key is None:
        look = partial(call.parts.runtime.wait, run.id, 0)
        run = await call.subscriptions.follow_unless_ended(call.subscriber, run.id, look)
    if params.timeout_ms == 0 and call.holder.session_key is None and run.state in UNKNOWN_ENDS:
        call.subscriptions.tell_end(call.subscriber, run)
    asking = () if run.is_finished else await call.parts.store.asking_runs()
    return waited(run, call.parts.rows.waiting_for(run, asking))


async def _check_own_run(call: Call, run_id: str) -> None:
    """Allow an agent's token only the runs of its session; it does not learn of others."""
    if call.holder.session_key is None:
        return
    key = call.parts.scheme.in_force(SessionKey.parse(call.holder.session_key))
    if not await call.parts.store.is_own_run(run_id, str(key)):
        raise Forbidden(
            "an agent's token may wait for runs of its own session, and for those that its sends and spawns started",
            runId=run_id,
        )


def waited(run: Run, waiting_for: str | None = None) -> RunWaited:
    """Show the result of a wait; before the run's end it says whether the run is queued, running or waiting."""
    if not run.is_finished:
        is_running = run.state is RunState.RUNNING
        return RunWaited(
            run_id=run.id,
            status=RunState.TIMEOUT.value,
            started_at=run.started_at,
            running=is_running and waiting_for not in set(MissingAgent),
            queued=not is_running,
            waiting_for=waiting_for,
            resume_at=run.tried_at,
            waits_for=show_awaited(run),
        )
    return RunWaited(
        run_id=run.id,
        status=run.state.value,
        started_at=run.started_at,
        ended_at=run.ended_at,
        error=None if run.state is RunState.OK else error_of(run),
        reply=(run.reply or "") if run.state is RunState.OK else run.reply,
        terminal_reply=None if run.reply is None or is_silent(run.reply) else TerminalReply(text=run.reply),
    )


@method("runs.get", TokenScope.READ)
async def runs_get(call: Call, params: RunParams) -> RunShown:
    """Shows one run."""
    run = await call.parts.store.run(params.run_id)
    if run is None:
        raise RunNotFound(f"no run {quoted(params.run_id)} (runs.list shows them)", runId=params.run_id)
    return RunShown(run=call.parts.rows.run(run, await call.parts.store.asking_runs()))


@method("runs.list", TokenScope.READ)
async def runs_list(call: Call, params: RunsListParams) -> RunsListed:
    """Lists runs, newest first, of one session or all, in the states given or any."""
    key = None
    if params.session_key is not None:
        key = str((await resolve(call.parts, params.session_key)).key)
    query: list[Any] = ["runs.list", key, sorted(params.states)]
    before = None if params.cursor is None else read_cursor(params.cursor, query, int)
    limit = min(params.limit, _MOST_LISTED)
    found = await call.parts.store.runs(session_key=key, states=params.states, limit=limit + 1, before=before)
    page, has_more = found[:limit], len(found) > limit
    asking = await call.parts.store.asking_runs()
    return RunsListed(
        count=len(page),
        has_more=has_more,
        next_cursor=write_cursor(query, page[-1].position) if has_more else None,
        runs=[call.parts.rows.run(run, asking) for run in page],
    )


@method("runs.timeline", TokenScope.READ)
async def runs_timeline(call: Call, params: RunParams) -> TimelineShown:
    """Shows the steps of a run and what happened to it, oldest first; long texts are cut."""
    found, rows = await call.parts.store.timeline(params.run_id), call.parts.rows
    return TimelineShown(
        run=rows.run(found.run, await call.parts.store.asking_runs()),
        entries=[_with_keys(entry, rows) for entry in found.timeline.entries],
        truncated=found.timeline.is_cut,
    )


def _with_keys(entry: TimelineEntry, rows: Rows) -> TimelineEntry:
    """Show the session keys of an entry as operators write them."""
    if entry.session_key is None:
        return entry
    key = rows.key(entry.session_key)
    return replace(entry, session_key=key, child_key=entry.child_key and key)


@method("runs.retry", TokenScope.WRITE)
async def runs_retry(call: Call, params: RunParams) -> RunShown:
    """Queues a failed run again, or starts a set-aside run at once."""
    run = await call.parts.store.retry_run(params.run_id)
    return RunShown(run=call.parts.rows.run(run))
