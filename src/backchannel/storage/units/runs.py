"""Runs: accepted, started, stopped and ended, one commit a step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from backchannel.core.contracts import Check
from backchannel.core.facts import LaneFree, RunChanged, SessionChanged
from backchannel.core.keys import Kind
from backchannel.core.messages import Message, Role, decode_message, encode_message, write_message
from backchannel.core.policy.queues import may_queue
from backchannel.core.runs import (
    NOBODY,
    Fence,
    Join,
    Outcome,
    Run,
    RunAccepted,
    RunKind,
    RunRequest,
    RunStarted,
    RunState,
    write_fallbacks,
)
from backchannel.core.sessions import WEBCHAT, Session, write_address
from backchannel.errors import FenceLost, QueueFull, RunNotFound, StopRequested
from backchannel.storage.events import NotesFlushed, RunClosed, RunEntered
from backchannel.storage.ids import new_id
from backchannel.storage.tables import RUNS
from backchannel.storage.tx import (
    IN_LANE,
    LIVE,
    Tx,
    assignments,
    required,
    tell_shadowed,
)
from backchannel.storage.units import archiving, idempotency, inbox, messages, resets, run_events, sessions
from backchannel.storage.units.money import reserving
from backchannel.wire.timeline import RunEventKind


class Assignments(NamedTuple):
    """More assignments for an UPDATE of the session: SQL that ends in a comma, and its values."""

    sql: str
    values: Sequence[Any]


FULL_FOR_MS = 5000
"""How long a client should wait before it tries a full queue again."""
ABORTED = Outcome(state=RunState.ABORTED, error_code="aborted", error="aborted")


def find(tx: Tx, run_id: str) -> Run | None:
    row = tx.one(f"{RUNS.select} WHERE id = ?", run_id)
    return None if row is None else RUNS.read(row)


def need(tx: Tx, run_id: str) -> Run:
    run = find(tx, run_id)
    if run is None:
        raise RunNotFound(f"no run {run_id!r} (runs.list shows them)", runId=run_id)
    return run


def owned(tx: Tx, fence: Fence) -> Run:
    """Load a run for its holder.

    Raises: FenceLost: the run ended, or another process holds it now. The writer must stop.
    """
    run = need(tx, fence.run_id)
    if run.state is not RunState.RUNNING or run.fence != fence.number:
        raise FenceLost(fence.run_id)
    return run


def update(tx: Tx, run_id: str, **changed: Any) -> Run:
    """Change columns of a run, and record the change."""
    sets = assignments(changed)
    row = tx.one(f"UPDATE runs SET {sets} WHERE id = ? {RUNS.returning}", *changed.values(), run_id)
    run = RUNS.read(required(row))
    tx.tell(RunChanged(run))
    return run


def accept(tx: Tx, request: RunRequest, *, start: bool, check: Check | None = None) -> RunAccepted:
    """Store a message with its run. With `start`, the run starts at once if the lane is free.

    `check` gets the session inside the unit, and raises to refuse the message.
    """
    if request.id is not None and (known := idempotency.find_run(tx, request.id, request.digest)):
        return RunAccepted(need(tx, known), None, is_repeat=True)
    if request.join is not None and (same := _same_request(tx, request.join)):
        return RunAccepted(same, None, is_repeat=True)
    if request.making is None:
        session = sessions.ensure(tx, request.key, request.expected_session_id)
    else:
        session = sessions.make_now(tx, request.key, request.making, request.expected_session_id)
    if request.provenance.source_channel == WEBCHAT.channel and session.delivery_context is None:
        # A message of a channel changes the return address. A webchat message only fills in a missing one.
        session = sessions.update(tx, session.key, "delivery_context = ?", write_address(WEBCHAT))
    if request.label is not None and request.kind is RunKind.HOOK and session.kind == Kind.HOOK:
        session = sessions.update(tx, session.key, "display_name = coalesce(display_name, ?)", request.label)
    if check is not None:
        tell_shadowed(tx, session.key, check(session))
    if request.kind is RunKind.MESSAGE and request.expected_session_id is None:
        session = resets.reset_if_due(tx, session)
    if request.session_lives_ms is not None:
        session = archiving.keep_for(tx, session, request.session_lives_ms)
    check_room(tx, session, start=start)
    reserving.check_open(tx, session, request)
    if request.id is not None:
        idempotency.remember_run(tx, request.id, request.digest)
    return accept_into(tx, session, request, start=start)


def check_room(tx: Tx, session: Session, *, start: bool = False) -> None:
    """Refuse a message that would have to wait in a full queue. With `start` it waits only behind others.

    Raises:
        QueueFull: the message says what to do.
    """
    if start and session.lane_is_free:
        return
    decision = may_queue(session, tx.rules.max_queued)
    if not decision.allowed:
        shown = tx.scheme.shown(session.key)
        raise QueueFull(decision.reason, sessionKey=shown, retryAfterMs=FULL_FOR_MS)


def accept_into(tx: Tx, session: Session, request: RunRequest, *, start: bool) -> RunAccepted:
    """Store a message with its run in a session that is loaded already."""
    message = _message(request, tx.now)
    if start and session.lane_is_free:
        chain = request.chain
        reserved = reserving.begin(tx, session, message, request.model, None if chain is None else chain.id)
        run = _insert(tx, request, message, session, starts=True, reserved=reserved)
        started = _enter(tx, run, message, session, tx.number)
        return RunAccepted(run, started)
    run = _insert(tx, request, message, session)
    tx.run(
        "UPDATE sessions SET queued = queued + 1, updated_at = ?, used_at = coalesce(?, used_at) WHERE key = ?",
        tx.now,
        _used_at(tx, run),
        session.key,
    )
    tx.tell(RunChanged(run))
    tx.tell(SessionChanged(session.key, "run"))
    return RunAccepted(run, None)


def _used_at(tx: Tx, run: Run) -> int | None:
    """Return the time if a run is a use of its session: a message of people, or what its own sub-agents bring."""
    return tx.now if run.kind in (RunKind.MESSAGE, RunKind.WAKE) else None


def _same_request(tx: Tx, join: Join) -> Run | None:
    """Find the newest run of the same request, if it is live or ended a moment ago."""
    row = tx.one(f"{RUNS.select} WHERE join_digest = ? ORDER BY position DESC LIMIT 1", join.digest)
    if row is None:
        return None
    run = RUNS.read(row)
    if not run.is_finished:
        return run
    return run if join.ended_since is not None and (run.ended_at or 0) >= join.ended_since else None


def _message(request: RunRequest, now: int) -> Message:
    return Message(
        id=new_id(),
        role=Role.USER,
        content=request.content,
        timestamp=now,
        run_id=request.id or new_id(),
        provenance=request.provenance,
        label=request.label,
        sender=request.sender,
        chat=request.chat,
    )


def _insert(
    tx: Tx,
    request: RunRequest,
    message: Message,
    session: Session,
    *,
    starts: bool = False,
    reserved: str | None = None,
) -> Run:
    """Insert a run: started, or queued with its message."""
    # The reply address is fixed now: the session's address may change while the run waits.
    reply_to = session.delivery_context if request.reply_to is None else write_address(request.reply_to)
    chain = request.chain
    accepted = {
        "id": message.run_id,
        "session_key": session.key,
        "session_id": session.session_id if starts else None,
        "accepted_at": tx.now,
        "started_at": tx.now if starts else None,
        "fence": tx.number if starts else NOBODY,
        "message": None if starts else encode_message(message).decode(),
        "message_id": message.id,
        "reply_to": reply_to,
        "model": request.model,
        "fallbacks": write_fallbacks(request.fallbacks),
        "thinking": request.thinking,
        "timeout_s": request.timeout_s,
        "chain_id": message.run_id if chain is None else chain.id,
        "hop": 0 if chain is None else chain.hop,
        "exchange_id": request.exchange_id,
        "spawn_id": request.spawn_id,
        "instructions": request.instructions,
        "quotes": request.quotes,
        "reserved": reserved,
    }
    state = RunState.RUNNING if starts else RunState.QUEUED
    position = tx.insert_numbered(
        RUNS,
        **accepted,
        kind=request.kind.value,
        state=state.value,
        deliver=int(request.deliver),
        join_digest=None if request.join is None else request.join.digest,
    )
    return RUNS.fresh(**accepted, kind=request.kind, state=state, deliver=request.deliver, position=position)


def free_id(tx: Tx, wanted: str) -> str:
    """Return the wanted id of a run, or a similar one if it is taken.

    Clients choose the ids of their runs. A client may use the id of a flow's next run, and must not block that run.
    """
    used = "SELECT 1 FROM runs WHERE id = ? UNION ALL SELECT 1 FROM idempotency WHERE key = ?"
    names = itertools.chain([wanted], (f"{wanted}#{n}" for n in itertools.count(2)))
    return next(name for name in names if tx.one(used, name, name) is None)


def queue_step(tx: Tx, request: RunRequest) -> None:
    """Queue a run of a flow, once. On an archived session the run ends at once, so that the flow continues."""
    if request.id is not None and find(tx, request.id) is not None:
        return
    session = sessions.of_flow(tx, request.key)
    run = _insert(tx, request, _message(request, tx.now), session)
    tx.run("UPDATE sessions SET queued = queued + 1, updated_at = ? WHERE key = ?", tx.now, session.key)
    tx.tell(RunChanged(run))
    tx.tell(SessionChanged(session.key, "run"))
    if session.archived_at is not None or session.deleting:
        _abort_queued(tx, run)


def start_next(tx: Tx, key: str) -> RunStarted | None:
    """Start the session's first queued run, if its lane is free. A run that waits for a model keeps its lane.

    A run that is suspected of crashing the process only takes the lane. It resumes when no other suspect runs.
    """
    session = sessions.find(tx, key)
    if session is None or session.running_run is not None or session.queued == 0:
        return None
    if session.deleting or session.flushing:
        return None
    row = tx.one(f"{RUNS.select} WHERE session_key = ? AND {IN_LANE} ORDER BY position LIMIT 1", key)
    run = RUNS.read(required(row))
    if run.waits_for_model:
        return None
    tx.run("UPDATE sessions SET queued = queued - 1 WHERE key = ?", key)
    if run.is_suspect:
        _begin(tx, run, session, NOBODY)
        return None
    return _begin(tx, run, session, tx.number)


def tell_of_next(tx: Tx, event: NotesFlushed) -> None:
    """Wake a session's lane if a run waits in it."""
    row = tx.one(f"{RUNS.select} WHERE session_key = ? AND {IN_LANE} ORDER BY position LIMIT 1", event.key)
    if row is not None:
        tx.tell(RunChanged(RUNS.read(row)))


def _begin(tx: Tx, run: Run, session: Session, number: int) -> RunStarted:
    """Bind a queued run to the current transcript, and start it."""
    if run.started_at is not None and number != NOBODY:  # it was set aside, or a person retried it
        run_events.add(tx, run, RunEventKind.RESUMED, process=number)
    stored = _line_to_append(tx, run, session)
    message = None if stored is None else decode_message(stored)
    row = tx.one(
        "UPDATE runs SET state = 'running', session_id = ?, started_at = coalesce(started_at, ?), ran_at = ?, "
        f"fence = ?, message = NULL, reserved = coalesce(?, reserved) WHERE id = ? {RUNS.returning}",
        session.session_id,
        tx.now,
        tx.now,
        number,
        None if number == NOBODY else reserving.begin_again(tx, run, session, message),
        run.id,
    )
    return _enter(tx, RUNS.read(required(row)), message, session, number, stored)


def _enter(
    tx: Tx, run: Run, message: Message | None, session: Session, number: int, stored: str | None = None
) -> RunStarted:
    """Append the message of a starting run to the transcript. An idle session has no waiting notes."""
    head = None
    if session.held_posts:
        tx.happened(RunEntered(session))
    if message is not None:
        head = messages.append(tx, session.key, session.session_id, message, stored)
    tx.run(
        "UPDATE sessions SET running_run = ?, updated_at = ?, used_at = coalesce(?, used_at) WHERE key = ?",
        run.id,
        tx.now,
        _used_at(tx, run),
        session.key,
    )
    tx.tell(RunChanged(run))
    tx.tell(SessionChanged(session.key, "run"))
    return RunStarted(run, Fence.of(run, number), session, head)


def _line_to_append(tx: Tx, run: Run, session: Session) -> str | None:
    """Return the message to append. A message that is in a transcript already is repeated only in a new one."""
    if run.message is not None:
        return run.message
    session_id, body = required(tx.one("SELECT session_id, body FROM messages WHERE id = ?", run.message_id))
    if session_id == session.session_id:
        return None
    copy = msgspec.structs.replace(decode_message(body), id=new_id())
    tx.run("UPDATE runs SET message_id = ? WHERE id = ?", copy.id, run.id)
    return write_message(copy, body)


def unstopped(tx: Tx, fence: Fence) -> Run:
    """Load a run for the next step of its holder.

    Raises: FenceLost: as `owned`. StopRequested: a stop was requested before this step. The step is not stored.
    """
    run = owned(tx, fence)
    if run.abort_requested:
        raise StopRequested(run.id)
    return run


def close(tx: Tx, run: Run, outcome: Outcome, reply: str | None, **changed: Any) -> Run:
    """Write the end of a run, and what follows from it."""
    ended = update(
        tx,
        run.id,
        **changed,
        state=outcome.state.value,
        ended_at=max(tx.now, run.started_at or 0),  # the clock may have been set back since
        error_code=outcome.error_code,
        error=outcome.error,
        reply=reply,
        crashes=0,
    )
    closed(tx, ended, Assignments("", ()))
    return ended


def closed(tx: Tx, ended: Run, used: Assignments) -> None:
    """Free the lane of an ended run, and flush the notes. A reply to a chat gets its receipt in the same commit.

    `used` are the last step's changes to the session.
    """
    lane = free_lane(tx, ended, used)
    is_flushed = not lane.has_notes or inbox.flush(tx, sessions.required_session(tx, ended.session_key))
    tx.happened(RunClosed(ended, lane.has_barrier))
    if lane.is_deleting and is_flushed:
        sessions.archive_when_idle(tx, sessions.required_session(tx, ended.session_key))
    tx.tell(SessionChanged(ended.session_key, "run"))


class LaneFreed(NamedTuple):
    """A session whose lane is free, as far as the end of a run needs to know it."""

    is_deleting: bool
    has_notes: bool
    has_barrier: bool
    """Whether the run has a barrier."""


def free_lane(tx: Tx, run: Run, used: Assignments) -> LaneFreed:
    """Free a session's lane.

    If another run waits, a fact says so: another gateway may have accepted that run.
    """
    queued, *freed = required(
        tx.one(
            "SELECT queued, deleting, EXISTS (SELECT 1 FROM inbox WHERE session_key = sessions.key), "
            "EXISTS (SELECT 1 FROM barriers WHERE id = ?) FROM sessions WHERE key = ?",
            run.id,
            run.session_key,
        )
    )
    tx.run(  # with RETURNING, SQLite takes longer for both together
        f"UPDATE sessions SET {used.sql}running_run = NULL, updated_at = ?, used_at = coalesce(?, used_at), "
        "aborted_last_run = CASE WHEN session_id = ? THEN ? ELSE aborted_last_run END, "
        "last_state = CASE WHEN session_id = ? THEN ? ELSE last_state END WHERE key = ?",
        *used.values,
        tx.now,
        _used_at(tx, run),
        run.session_id,  # only for the transcript that it ran in: a reset may have replaced it
        int(run.state is RunState.ABORTED),
        run.session_id,
        run.state.value,
        run.session_key,
    )
    if queued:
        tx.tell(LaneFree(run.session_key))
    return LaneFreed(*map(bool, freed))


def request_abort(tx: Tx, key: str, run_id: str | None, *, expected_session_id: str | None = None) -> list[Run]:
    """Ask the active run, or the one named, to stop. The request is durable before the caller is answered.

    A session that does not exist yet counts as idle.

    Raises: SessionIdReplaced: the session does not have the expected transcript. RunNotFound: the named run is not a
    run of this session.
    """
    session = sessions.find(tx, key)
    sessions.check_current(tx, key, session, expected_session_id)
    wanted = run_id or (None if session is None else active_run(tx, session))
    run = None if wanted is None else find(tx, wanted)
    if run_id is not None and (run is None or run.session_key != key):
        shown = tx.scheme.shown(key)
        raise RunNotFound(f"no run {run_id!r} on session {shown!r}", runId=run_id, sessionKey=shown)
    if run is None or run.is_finished:
        return []
    if run.state is RunState.QUEUED:
        return [_abort_queued(tx, run)]
    return [update(tx, run.id, abort_requested=1)]


def active_run(tx: Tx, session: Session) -> str | None:
    """Return the run that a session works on, or whose model it waits for."""
    if session.running_run is not None or session.queued == 0:
        return session.running_run
    waiting = f"SELECT id FROM runs WHERE session_key = ? AND {LIVE} AND waits_on IS NOT NULL ORDER BY position LIMIT 1"
    row = tx.one(waiting, session.key)
    return None if row is None else str(row[0])


def _abort_queued(tx: Tx, run: Run) -> Run:
    waits_as = "set_aside" if run.is_set_aside else "queued"
    tx.run(f"UPDATE sessions SET {waits_as} = {waits_as} - 1, updated_at = ? WHERE key = ?", tx.now, run.session_key)
    tx.tell(SessionChanged(run.session_key, "run"))
    aborted = update(
        tx,
        run.id,
        state=RunState.ABORTED.value,
        ended_at=max(tx.now, run.started_at or 0),
        abort_requested=1,
        error_code="aborted",
        error=_how_aborted(run),
        resume_at=None,  # a timer that fires later finds an ended run
        waits_on=None,
    )
    if run.waits_for_model:
        tx.run("UPDATE sessions SET aborted_last_run = 1 WHERE key = ?", run.session_key)
        tx.tell(LaneFree(run.session_key))
    tx.happened(RunClosed(aborted))
    return aborted


def _how_aborted(run: Run) -> str:
    if run.waits_for_model:
        return "aborted while it waited for a model"
    return "aborted while it was set aside" if run.is_set_aside else "aborted before it started"


def of_exchange(tx: Tx, exchange_id: str) -> list[Run]:
    """List the runs of an exchange, oldest first."""
    return [RUNS.read(row) for row in tx.all(f"{RUNS.select} WHERE exchange_id = ? ORDER BY position", exchange_id)]


# The session whose lock a unit of a run needs


def session_of(request: RunRequest) -> str | None:
    """Return the session that a message is for; None if the message may join a run of any session."""
    return str(request.key) if request.join is None else None


def session_held(fence: Fence, *_: object) -> str | None:
    return fence.session_key
