"""Steps of a run: each reply and each tool result is one commit."""

from __future__ import annotations

import msgspec

from backchannel.core.facts import RunChanged
from backchannel.core.flows.exchange_values import WaitEnd
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, text_content
from backchannel.core.runs import CallState, Fence, Outcome, Run, RunState, Step, ToolCall, function_model
from backchannel.storage.events import CallClosed, RunUnanswered
from backchannel.storage.ids import new_id
from backchannel.storage.tables import TOOL_CALLS
from backchannel.storage.tx import Tx, assignments
from backchannel.storage.units import approvals, deliveries, messages, run_events, runs
from backchannel.storage.units.contact import attachments
from backchannel.storage.units.flows import exchanges, spawns
from backchannel.storage.units.money import reserving
from backchannel.storage.units.runs import Assignments
from backchannel.wire.timeline import RunEventKind


class StepCommitted(msgspec.Struct, frozen=True):
    """The run after a step, and the calls that its reply asks for. Without calls the run has ended ok."""

    run: Run
    calls: list[ToolCall]


def commit_reply(tx: Tx, fence: Fence, step: Step) -> StepCommitted:
    """Write a model's reply. A reply without tool calls is the last, and ends the run in the same commit."""
    is_last = not step.reply.tool_calls
    run = _take_step(tx, fence, step, is_last=is_last)
    if step.leaves_calls:
        close_open(tx, run, Outcome(state=RunState.OK))
    messages.append(tx, run.session_key, run.session_id or "", step.reply, shape=step.shape)
    planned = _plan(tx, run, step.reply)
    used = _used(run, step)
    if run.reserved is not None:
        reserving.settle_reply(tx, run, step.usage)
    tx.tell(RunChanged(run))
    if is_last:
        runs.closed(tx, run, used)
    else:
        tx.run(f"UPDATE sessions SET {used.sql.rstrip(', ')} WHERE key = ?", *used.values, run.session_key)
    return StepCommitted(run, planned)


def _take_step(tx: Tx, fence: Fence, step: Step, *, is_last: bool) -> Run:
    """Count a step of a run for its holder. The last step ends the run; `runs.closed` must follow.

    Raises: FenceLost, StopRequested: as `runs.unstopped`. The step is not stored.
    """
    run, usage = runs.unstopped(tx, fence), step.usage
    counted = {
        "step": run.step + 1,
        "ran_ms": step.ran_ms,
        "ran_at": tx.now,
        "answered_by": step.reply.model,
        "tokens_in": run.tokens_in + usage.sent,
        "tokens_out": run.tokens_out + usage.output,
        "cost": run.cost if usage.cost is None else (run.cost or 0.0) + usage.cost,
        "reply": step.reply.text,
        "crashes": 0,
        "waits_for": None,
    }
    if not is_last:
        tx.run(_STEP, *counted.values(), run.id)
        return msgspec.structs.replace(run, **counted)
    ended_at = max(tx.now, run.started_at or 0)  # the clock may have been set back since the run started
    tx.run(_LAST_STEP, *counted.values(), ended_at, run.id)
    ended = {"state": RunState.OK, "ended_at": ended_at, "error_code": None, "error": None}
    return msgspec.structs.replace(run, **counted, **ended)


# The row is read before, and not with RETURNING, which takes SQLite longer than both.
_COUNTED = assignments(
    ["step", "ran_ms", "ran_at", "answered_by", "tokens_in", "tokens_out", "cost", "reply", "crashes", "waits_for"]
)
_STEP = f"UPDATE runs SET {_COUNTED} WHERE id = ?"
_LAST_STEP = f"UPDATE runs SET {_COUNTED}, ended_at = ?, state = 'ok', error_code = NULL, error = NULL WHERE id = ?"


def _plan(tx: Tx, run: Run, reply: Message) -> list[ToolCall]:
    """Plan the calls of a reply, whose step the run counts already."""
    planned = [
        ToolCall(
            id=block.id,
            run_id=run.id,
            step=run.step - 1,
            position=position,
            name=block.name,
            arguments=msgspec.json.encode(block.arguments).decode(),
            state=CallState.PLANNED,
            started_at=tx.now,
        )
        for position, block in enumerate(reply.tool_calls)
    ]
    for call in planned:
        insert_call(tx, call)
    return planned


def _used(run: Run, step: Step) -> Assignments:
    """List the changes of a session by a step."""
    usage, session_id = step.usage, run.session_id
    # The fill of the window belongs to the call's transcript, which a reset may have replaced.
    return Assignments(
        "tokens_in = tokens_in + ?, tokens_out = tokens_out + ?, "
        "cost = coalesce(cost + ?, cost, ?), "
        "total_tokens = CASE WHEN session_id = ? THEN ? ELSE total_tokens END, "
        "context_tokens = CASE WHEN session_id = ? THEN ? ELSE context_tokens END, "
        "system_sent = CASE WHEN session_id = ? THEN 1 ELSE system_sent END, ",
        (
            usage.sent,
            usage.output,
            usage.cost,
            usage.cost,
            session_id,
            usage.total,
            session_id,
            step.context_tokens,
            session_id,
        ),
    )


def note_retry(tx: Tx, fence: Fence, why: str, wait_ms: int, *, is_sent: bool = False) -> Run:
    """Record that a model failed and is asked again after a pause. `is_sent`: the failed call may have been billed."""
    run = runs.owned(tx, fence)
    run_events.add(tx, run, RunEventKind.RETRY, until_at=tx.now + wait_ms, why=why)
    reserved = reserving.again(tx, run, is_sent=is_sent)
    return run if reserved == run.reserved else runs.update(tx, run.id, reserved=reserved)


def start_call(tx: Tx, fence: Fence, call_id: str) -> None:
    """Mark a call before it begins. After a crash its effect is unknown, so it is not repeated."""
    runs.unstopped(tx, fence)
    mark_started(tx, call_id)


def commit_result(tx: Tx, fence: Fence, result: Message, ran_ms: int) -> Run:
    """Write a tool's result, unless the call has one. The last of a round may reserve the next call."""
    run = runs.unstopped(tx, fence)
    call = find_call(tx, result.tool_call_id or "")
    if call is None or call.state is CallState.DONE:
        return run
    messages.append(tx, run.session_key, run.session_id or "", result)
    mark_done(tx, call.id)
    tx.happened(CallClosed(call.id, WaitEnd.BROKEN if result.is_error else WaitEnd.ANSWERED))
    if result.attached is not None:
        attachments.add(tx, run, call.id, result.attached)
    deliveries.post_call(tx, run, call)
    changed = {} if tx.rules.budgets is None else _reserved_next(tx, run, result)
    return runs.update(tx, run.id, **changed, crashes=0, ran_ms=ran_ms, ran_at=tx.now)


def _reserved_next(tx: Tx, run: Run, result: Message) -> dict[str, str]:
    """Reserve the call that follows the last result of a round."""
    if tx.one("SELECT 1 FROM tool_calls WHERE run_id = ? AND state <> 'done' LIMIT 1", run.id) is not None:
        return {}
    reserved = reserving.go_on(tx, run, result)
    return {} if reserved is None else {"reserved": reserved}


def open_function_call(tx: Tx, fence: Fence, call: ToolCall) -> ToolCall:
    """Record a function agent's call, or return the recorded one."""
    runs.unstopped(tx, fence)
    known = find_call(tx, call.id)
    if known is None:
        known = msgspec.structs.replace(call, started_at=tx.now)
        insert_call(tx, known)
    return known


def commit_function_result(tx: Tx, fence: Fence, result: Message, recorded: str, ran_ms: int) -> None:
    """Write the result of a function agent's call.

    `recorded` is the value for the function when it runs again. A call that is in the transcript already, because its
    ended run was retried, stays as it is.
    """
    run = runs.unstopped(tx, fence)
    call_id = result.tool_call_id or ""
    call = find_call(tx, call_id)
    mark_done(tx, call_id, recorded)
    tx.happened(CallClosed(call_id, WaitEnd.BROKEN if result.is_error else WaitEnd.ANSWERED))
    if call is not None and call.state is not CallState.DONE:
        append_function_call(tx, run, call, result)
        if result.attached is not None:
            attachments.add(tx, run, call.id, result.attached)
        deliveries.post_call(tx, run, call)
    runs.update(tx, run.id, crashes=0, ran_ms=ran_ms, ran_at=tx.now)


def finish(
    tx: Tx,
    fence: Fence,
    outcome: Outcome,
    *,
    reply: Message | None,
    at_step: int,
    ran_ms: int,
    is_billed: bool = True,
) -> Run:
    """End a run for its holder. With `tells_failures`, a person who waits for an answer is told in the same commit.

    `reply` is the unfinished text of step `at_step`. If that step was committed after all, its whole text is in the
    transcript. `is_billed`: a call of it was sent that has no reply, and may have been billed.
    """
    run = runs.owned(tx, fence)
    if run.abort_requested:
        outcome = runs.ABORTED  # the caller was told so: it stands, whatever the run came to at the same moment
    close_open(tx, run, outcome)
    text = run.reply
    if reply is not None and run.step == at_step:
        reply = msgspec.structs.replace(reply, stop_reason=outcome.state.value)
        messages.append(tx, run.session_key, run.session_id or "", reply)
        text = reply.text
    changed = {} if run.reserved is None else {"reserved": reserving.end(tx, run, is_billed=is_billed)}
    ended = runs.close(tx, run, outcome, text, ran_ms=ran_ms, **changed)
    if tx.rules.tells_failures:
        tx.happened(RunUnanswered(ended))
    return ended


# Tool calls: planned with the reply that asks for them, marked before they begin, done with their result.
#
# A call's result enters the transcript in the commit that marks it done, so each call has exactly one.

_IS_ASKED = "EXISTS (SELECT 1 FROM approvals WHERE call_id = tool_calls.id)"


def find_call(tx: Tx, call_id: str) -> ToolCall | None:
    row = tx.one(f"SELECT {TOOL_CALLS.fields}, {_IS_ASKED} FROM tool_calls WHERE id = ?", call_id)
    return None if row is None else TOOL_CALLS.read(row)


def insert_call(tx: Tx, call: ToolCall) -> None:
    tx.insert(
        TOOL_CALLS,
        id=call.id,
        run_id=call.run_id,
        step=call.step,
        position=call.position,
        name=call.name,
        arguments=call.arguments,
        state=call.state.value,
        result=call.result,
        started_at=call.started_at,
    )


def open_calls(tx: Tx, run_id: str) -> list[ToolCall]:
    """List a run's open calls, in order."""
    rows = tx.all(
        f"SELECT {TOOL_CALLS.fields}, {_IS_ASKED} FROM tool_calls WHERE run_id = ? AND state <> 'done' "
        "ORDER BY step, position",
        run_id,
    )
    return [TOOL_CALLS.read(row) for row in rows]


def mark_started(tx: Tx, call_id: str) -> None:
    tx.run(
        "UPDATE tool_calls SET state = 'started', started_at = ? WHERE id = ? AND state = 'planned'", tx.now, call_id
    )


def mark_done(tx: Tx, call_id: str, result: str | None = None) -> None:
    tx.run("UPDATE tool_calls SET state = 'done', result = ?, ended_at = ? WHERE id = ?", result, tx.now, call_id)


def close_open(tx: Tx, run: Run, outcome: Outcome | None) -> None:
    """Give every open call an error result: the run ends, or leaves its lane.

    No call may stay open, because others write to the transcript now.
    """
    how = "was interrupted too often" if outcome is None else f"ended ({outcome.state})"
    for call in open_calls(tx, run.id):
        how_far = _how_far(tx, call)
        approvals.close(tx, call.id)
        result = result_message(run, call, f"The run {how} before this call had a result; {how_far}.", tx.now)
        if call.step < 0:
            _close_function_call(tx, run, call, result, leaves_trace=outcome is not None and how_far != _NOT_DONE)
        else:
            mark_done(tx, call.id)
            messages.append(tx, run.session_key, run.session_id or "", result)
        tx.happened(CallClosed(call.id, WaitEnd.BROKEN))


def _how_far(tx: Tx, call: ToolCall) -> str:
    """Describe how far an open call came, so that the model does not repeat it.

    A session tool is never marked as started: its exchange or spawn is found by the call's id.
    """
    if call.state is CallState.STARTED:
        return "its effect is unknown"
    return exchanges.describe_call(tx, call.id) or spawns.describe_call(tx, call.id) or _NOT_DONE


_NOT_DONE = "it was not carried out"


def _close_function_call(tx: Tx, run: Run, call: ToolCall, result: Message, *, leaves_trace: bool) -> None:
    """Close a function's call. A call that was not started is removed.

    So is a session tool's call when the run only leaves its lane: the function asks again, and finds what it has sent.
    """
    if call.state is CallState.STARTED or leaves_trace:
        mark_done(tx, call.id)
        append_function_call(tx, run, call, result)
    else:
        tx.run("DELETE FROM tool_calls WHERE id = ?", call.id)


def append_function_call(tx: Tx, run: Run, call: ToolCall, result: Message) -> None:
    """Write a function agent's call and its result, in the form of a model's.

    A function may make several calls at once. Each enters the transcript when it is answered, so nothing comes between
    a call and its result.
    """
    asked = Message(
        id=new_id(),
        role=Role.ASSISTANT,
        content=(call.block,),
        timestamp=result.timestamp,
        run_id=run.id,
        model=function_model(SessionKey.stored(run.session_key).agent),
    )
    for message in (asked, result):
        messages.append(tx, run.session_key, run.session_id or "", message)


def result_message(run: Run, call: ToolCall, text: str, now: int) -> Message:
    """Build the error result of a call that has none."""
    return Message(
        id=new_id(),
        role=Role.TOOL_RESULT,
        content=text_content(text),
        timestamp=now,
        run_id=run.id,
        tool_call_id=call.id,
        tool_name=call.name,
        is_error=True,
    )
