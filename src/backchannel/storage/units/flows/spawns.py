"""Spawns: the flows of `sessions_spawn`.

`core/flows/spawn.py` decides, and `__init__.py` takes the step in the commit that caused it. "The child's run ended"
and "its announce is queued" are one commit. So are a post's delivery, its note and the wake behind it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from backchannel.core.flows import spawn as flow
from backchannel.core.flows.exchange import is_deliverable
from backchannel.core.flows.flow import FlowRefused, Settle
from backchannel.core.flows.spawn_texts import stopped_text
from backchannel.core.flows.spawn_values import (
    Action,
    ChildCancelled,
    ChildRunEnded,
    Event,
    Findings,
    PostText,
    Spawn,
    SpawnAsk,
    SpawnOutcome,
    Stepped,
    read_spawn,
    write_spawn,
)
from backchannel.core.keys import SessionKey
from backchannel.core.messages import FlowStep, Role, decode_message
from backchannel.core.policy.limits import ChainLimits, go_on, may_go_on
from backchannel.core.runs import FlowCall, Run, RunKind
from backchannel.core.sessions import Address, Session, SessionPatch, read_address
from backchannel.storage.events import RunClosed
from backchannel.storage.files.folder import archived_path
from backchannel.storage.ids import new_id
from backchannel.storage.tables import SPAWNS
from backchannel.storage.tx import LIVE, Tx, required
from backchannel.storage.units import deliveries, flows, idempotency, inbox, messages, runs, sessions
from backchannel.storage.units.flows import barriers, chains
from backchannel.storage.units.money import reserving

STOPPED = "its requester was stopped"
DELETED = "its requester was deleted"


def repeat(tx: Tx, call: FlowCall) -> Spawn | None:
    """Find the spawn that an earlier try of the same call has started.

    Raises: IdempotencyConflict: the key belongs to another request.
    """
    return flows.repeat(tx, _KIND, call)


def open_(tx: Tx, ask: SpawnAsk, limits: ChainLimits) -> Spawn | FlowRefused:
    """Accept a spawn with its session, run and receipt. The same call again finds the first.

    Raises:
        LabelInUse, IdempotencyConflict, SessionNotFound, Unavailable
    """
    if (known := repeat(tx, ask.call)) is not None:
        return known
    calling_run = None if ask.call.calling_run is None else runs.need(tx, ask.call.calling_run)
    refused = _refusal(tx, ask, calling_run)
    if refused is not None:
        return refused
    show = chains.shown(tx.scheme)
    origin = chains.lineage(tx, ask.call.calling_run, show)
    decision = may_go_on(origin, str(ask.child), limits)
    if not decision.allowed:
        return FlowRefused(decision)
    run_id = runs.free_id(tx, ask.call.run_id)
    chain, path = go_on(origin, str(ask.child), run_id)
    requester = _requester(tx, ask.requester)
    child = _make_child(tx, ask)
    reserving.check_open(tx, child, chain_id=None if origin is None else origin.chain.id)
    spawn = Spawn(
        id=ask.call.flow_id,
        requester=ask.requester,
        child=ask.child,
        task=ask.task,
        label=ask.label,
        child_run=run_id,
        chain=chain,
        path=path,
        address=_return_address(requester, calling_run),
        rules=ask.rules,
        run_id=run_id,
        requester_run=ask.call.calling_run,
        model=ask.model,
        transcript=tx.transcript(child.agent_id, child.session_id),
    )
    delivery_id = _insert(tx, flow.kept(spawn), ask.call)
    first = replace(flow.first_run(spawn, show(str(ask.requester))), timeout_s=ask.timeout_s)
    flows.perform(tx, _KIND, spawn, delivery_id, (first,))
    return spawn


def _refusal(tx: Tx, ask: SpawnAsk, calling_run: Run | None) -> FlowRefused | None:
    """Return why the stored state refuses the spawn; None if it does not."""
    if calling_run is not None and (calling_run.abort_requested or calling_run.is_finished):
        return FlowRefused(flow.being_stopped())
    (count,) = required(
        tx.one("SELECT count(*) FROM spawns WHERE requester_key = ? AND state <> 'done'", str(ask.requester))
    )
    decision = flow.has_room(int(count), ask.max_children)
    return None if decision.allowed else FlowRefused(decision)


def _requester(tx: Tx, key: SessionKey) -> Session:
    """Load the requester. For an operator it is a main session, which may be new.

    Raises: SessionNotFound: the session no longer exists.
    """
    if tx.scheme.is_main(key):
        return sessions.ensure(tx, key)
    session = sessions.need(tx, str(key))
    sessions.check_kept(session)
    return session


def _return_address(requester: Session, calling_run: Run | None) -> Address | None:
    """Return where results are posted: the asking run's reply address, else the session's.

    The session's address may be of another chat by now, which did not ask for the spawn.
    """
    address = requester.address
    if calling_run is not None and calling_run.reply_to is not None:
        address = read_address(calling_run.reply_to)
    return address if is_deliverable(address) else None


def _make_child(tx: Tx, ask: SpawnAsk) -> Session:
    change = SessionPatch(
        label=ask.label or msgspec.UNSET,
        model=ask.session_model or msgspec.UNSET,
        thinking_level=ask.thinking or msgspec.UNSET,
    )
    sessions.patch(tx, ask.child, change)
    return sessions.update(tx, str(ask.child), "spawned_by = ?", str(ask.requester))


def _insert(tx: Tx, spawn: Spawn, call: FlowCall) -> str:
    """Insert a spawn with its receipt and its place in a barrier; returns the receipt's id."""
    delivery_id = new_id()
    tx.insert(
        SPAWNS,
        id=spawn.id,
        requester_key=str(spawn.requester),
        requester_run=spawn.requester_run,
        child_key=str(spawn.child),
        state=spawn.state.value,
        body=write_spawn(spawn),
        delivery_id=delivery_id,
        call_id=call.call_id,
        created_at=tx.now,
        updated_at=tx.now,
    )
    deliveries.open_receipt(tx, delivery_id, str(spawn.requester), None, run_id=spawn.child_run)
    if call.digest is not None:
        idempotency.remember_run(tx, call.run_id, call.digest)
    if spawn.rules.wakes:
        barriers.add_child(tx, spawn)
    return delivery_id


def describe_call(tx: Tx, call_id: str) -> str | None:
    """Describe the spawn of a call without a result; None if it started none."""
    row = tx.one("SELECT body FROM spawns WHERE call_id = ?", call_id)
    if row is None:
        return None
    spawn = read_spawn(row[0])
    if spawn.outcome is SpawnOutcome.CANCELLED:
        return f"its sub-agent was started as session '{spawn.child}', and stopped: {spawn.reason}"
    return (
        f"its sub-agent was started as session '{spawn.child}', run {spawn.child_run!r}: do not start it again, "
        "its result comes by itself"
    )


# Events of a spawn


def run_ended(tx: Tx, event: RunClosed) -> None:
    """Advance a spawn after the end of one of its runs."""
    run = event.run
    if run.spawn_id is not None:
        ended = ChildRunEnded(
            run_id=run.id,
            state=run.state,
            findings=_findings(tx, run),
            at=tx.now,
            reply=run.reply,
            error=run.error,
        )
        flows.advance(tx, _KIND, run.spawn_id, ended)
    if run.kind is RunKind.WAKE and run.session_id is None:
        _keep_as_note(tx, run)


def cancel_children(tx: Tx, key: str, reason: str) -> list[Run]:
    """Stop the children of a session that no longer needs them; returns the stopped runs."""
    children = _open_of(tx, key)
    at_work = _at_work(tx, key)
    barriers.stop(tx, key)
    for spawn in children:
        flows.advance(tx, _KIND, spawn.id, ChildCancelled(reason=reason, at=tx.now))
    for run in at_work:
        runs.request_abort(tx, run.session_key, run.id)
    if children and reason == STOPPED:
        flows.add_note(tx, SessionKey.stored(key), stopped_text(children), flow.from_gateway(FlowStep.NOTICE))
    return at_work


def _at_work(tx: Tx, key: str) -> list[Run]:
    """List the running and queued runs of a session's children, without people's messages."""
    rows = tx.all(
        f"SELECT r.id FROM sessions s JOIN runs r ON r.session_key = s.key AND r.{LIVE} "
        "WHERE s.spawned_by = ? AND (r.state = 'running' OR r.spawn_id IS NOT NULL OR r.kind IN ('primary', 'turn')) "
        "ORDER BY r.position",
        key,
    )
    return [runs.need(tx, run_id) for (run_id,) in rows]


def _open_of(tx: Tx, key: str) -> tuple[Spawn, ...]:
    rows = tx.all("SELECT body FROM spawns WHERE requester_key = ? AND state <> 'done' ORDER BY created_at, id", key)
    return tuple(read_spawn(body) for (body,) in rows)


def _perform(tx: Tx, spawn: Spawn, delivery_id: str, action: Action) -> None:
    match action:
        case PostText():
            _post(tx, spawn, delivery_id, action.text)
        case Settle():
            barriers.child_settled(tx, spawn, None)


def _post(tx: Tx, spawn: Spawn, delivery_id: str, text: str) -> None:
    """Post a result once: to the requester's chat, and to its transcript, now or with the wake."""
    if spawn.rules.wakes:
        barriers.child_settled(tx, spawn, text)
    else:
        flows.add_note(tx, spawn.requester, text, flow.from_child(spawn.child))
    deliveries.hand_over(tx, delivery_id, text, spawn.address)


def _step(tx: Tx, spawn: Spawn, event: Event) -> Stepped:
    return flow.step_spawn(spawn, event)


_KIND = flows.FlowKind(
    table="spawns", runs_as="spawn_id", read=read_spawn, write=write_spawn, step=_step, perform=_perform
)


def _keep_as_note(tx: Tx, wake: Run) -> None:
    """Turn the message of a stopped wake into a note, so that its results are kept. The wake has not started."""
    if wake.message is None:
        return
    if inbox.add_if_kept(tx, SessionKey.stored(wake.session_key), decode_message(wake.message)):
        # The session has the message now. A retry of the run must not add it again.
        tx.run("UPDATE runs SET message = NULL WHERE id = ?", wake.id)


# The findings of a child


def _findings(tx: Tx, ended: Run) -> Findings:
    """Collect the findings of a child when one of its runs has ended."""
    row = required(tx.one("SELECT body FROM spawns WHERE id = ?", ended.spawn_id))
    spawn = read_spawn(row[0])
    own = runs.need(tx, spawn.child_run)
    tokens_in, tokens_out, cost = required(
        tx.one("SELECT sum(tokens_in), sum(tokens_out), sum(cost) FROM runs WHERE spawn_id = ?", ended.spawn_id)
    )
    last_text, tool_result = _last_words(tx, own)
    return Findings(
        last_text=last_text,
        tool_result=tool_result,
        runtime_ms=own.ran_ms if own.started_at is not None else None,
        tokens_in=int(tokens_in),
        tokens_out=int(tokens_out),
        cost=cost,
        model=own.answered_by,
        session_id=own.session_id,
        archived_transcript=_archived_transcript(spawn, tx.now),
    )


def _archived_transcript(spawn: Spawn, now: int) -> str | None:
    """Name the transcript file of a child that is archived at its end (`storage/units/archiving.py`)."""
    if spawn.transcript is None or not spawn.rules.deletes:
        return None
    return str(archived_path(Path(spawn.transcript), spawn.ended_at or now))


def _last_words(tx: Tx, own: Run) -> tuple[str | None, str | None]:
    """Find the last text and the newest tool result of the child's own run."""
    if own.session_id is None:
        return None, None
    return (
        messages.last_text_of(tx, own.session_id, own.id, Role.ASSISTANT),
        messages.last_text_of(tx, own.session_id, own.id, Role.TOOL_RESULT),
    )
