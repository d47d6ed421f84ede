"""Steps: each model reply and each tool result is committed before the next begins."""

from __future__ import annotations

import msgspec

from backchannel.core.messages import Message
from backchannel.core.runs import CallState, Fence, Outcome, Run, RunState, Step, ToolCall
from backchannel.storage.transactions import calls, deliveries, exchanges, messages, runs
from backchannel.storage.transactions.runs import Sets
from backchannel.storage.tx import Tx


class Committed(msgspec.Struct, frozen=True):
    """The run after a step, and the calls its reply asks for; none means that the run has ended ok."""

    run: Run
    calls: list[ToolCall]


def commit_reply(tx: Tx, fence: Fence, step: Step) -> Committed:
    """Write a model's reply. One without tool calls is the last: the run ends in the same commit."""
    run = runs.unstopped(tx, fence)
    if step.leaves_calls:
        calls.close_open(tx, run, Outcome(state=RunState.OK))
    messages.append(tx, run.session_key, run.session_id or "", step.reply)
    cost = step.usage.cost
    changed = {
        "step": run.step + 1,
        "ran_ms": step.ran_ms,
        "ran_at": tx.now,
        "answered_by": step.reply.model,
        "tokens_in": run.tokens_in + step.usage.input,
        "tokens_out": run.tokens_out + step.usage.output,
        "cost": run.cost if cost is None else (run.cost or 0) + cost,
    }
    planned = _plan(tx, run, step.reply)
    used = _used(run, step)
    if planned:
        tx.run(f"UPDATE sessions SET {used.sql.rstrip(', ')} WHERE key = ?", *used.values, run.session_key)
        return Committed(runs.update(tx, run.id, crashes=0, reply=step.reply.text, **changed), planned)
    return Committed(runs.close(tx, run, Outcome(state=RunState.OK), step.reply.text, used, **changed), [])


def _plan(tx: Tx, run: Run, reply: Message) -> list[ToolCall]:
    planned = [
        ToolCall(
            id=block.id,
            run_id=run.id,
            step=run.step,
            position=position,
            name=block.name,
            arguments=msgspec.json.encode(block.arguments).decode(),
            state=CallState.PLANNED,
        )
        for position, block in enumerate(reply.tool_calls)
    ]
    for call in planned:
        calls.insert(tx, call)
    return planned


def _used(run: Run, step: Step) -> Sets:
    """Say what a step changes in its session's row."""
    usage, session_id = step.usage, run.session_id
    # How full the window is belongs to the transcript that the call was made for, which a reset may have replaced.
    return Sets(
        "tokens_in = tokens_in + ?, tokens_out = tokens_out + ?, "
        "cost = CASE WHEN ? IS NULL THEN cost ELSE coalesce(cost, 0) + ? END, "
        "total_tokens = CASE WHEN session_id = ? THEN ? ELSE total_tokens END, "
        "context_tokens = CASE WHEN session_id = ? THEN ? ELSE context_tokens END, "
        "system_sent = CASE WHEN session_id = ? THEN 1 ELSE system_sent END, ",
        (
            usage.input,
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


def start_call(tx: Tx, fence: Fence, call_id: str) -> None:
    """Mark a call before it begins: after a crash it is known that its effect is not."""
    runs.unstopped(tx, fence)
    calls.mark_started(tx, call_id)


def commit_result(tx: Tx, fence: Fence, result: Message, ran_ms: int) -> None:
    """Write a tool's result; a call that has one already keeps it."""
    run = runs.unstopped(tx, fence)
    call = calls.find(tx, result.tool_call_id or "")
    if call is None or call.state is CallState.DONE:
        return
    messages.append(tx, run.session_key, run.session_id or "", result)
    calls.mark_done(tx, call.id)
    exchanges.call_answered(tx, call.id, is_error=bool(result.is_error))
    deliveries.post_call(tx, run, call)
    runs.update(tx, run.id, crashes=0, ran_ms=ran_ms, ran_at=tx.now)


FUNCTION_STEP = -1
"""The step of a function agent's calls: its run has only the one in which it ends."""


def open_function_call(tx: Tx, fence: Fence, call: ToolCall) -> ToolCall:
    """Record a function agent's call, or return what is recorded of it already."""
    runs.unstopped(tx, fence)
    known = calls.find(tx, call.id)
    if known is None:
        calls.insert(tx, call)
    return known or call


def commit_function_result(tx: Tx, fence: Fence, result: Message, recorded: str, ran_ms: int) -> None:
    """Write what a function agent's call gave: as far as this, the function has got.

    `recorded` is what the call gives again when the function is run again. A call that is in the transcript already,
    because its run had ended and was retried, stays there as it is.
    """
    run = runs.unstopped(tx, fence)
    call_id = result.tool_call_id or ""
    call = calls.find(tx, call_id)
    calls.mark_done(tx, call_id, recorded)
    exchanges.call_answered(tx, call_id, is_error=bool(result.is_error))
    if call is not None and call.state is not CallState.DONE:
        calls.append_function_call(tx, run, call, result)
        deliveries.post_call(tx, run, call)
    runs.update(tx, run.id, crashes=0, ran_ms=ran_ms, ran_at=tx.now)
