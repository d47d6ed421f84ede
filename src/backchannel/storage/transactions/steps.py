"""Steps: each model reply and each tool result is committed before the next begins."""

from __future__ import annotations

import msgspec

from backchannel.core.exchange_values import WaitEnd
from backchannel.core.messages import Message
from backchannel.core.runs import CallState, Fence, Outcome, Run, RunState, Step, ToolCall
from backchannel.storage.transactions import calls, exchanges, messages, runs
from backchannel.storage.tx import Tx


class Committed(msgspec.Struct, frozen=True):
    """The run after a step, and the calls its reply asks for; none means that the run has ended ok."""

    run: Run
    calls: list[ToolCall]


def commit_reply(tx: Tx, fence: Fence, step: Step, now: int) -> Committed:
    """Write a model's reply. One without tool calls is the last: the run ends in the same commit."""
    run = runs.unstopped(tx, fence)
    if not step.reply.tool_calls:
        calls.close_open(tx, run, Outcome(state=RunState.OK), now)  # those that a function agent did not wait for
    messages.append(tx, run.session_key, run.session_id or "", step.reply)
    _add_usage(tx, run, step)
    cost = step.usage.cost
    changed = {
        "step": run.step + 1,
        "ran_ms": step.ran_ms,
        "answered_by": step.reply.model,
        "tokens_in": run.tokens_in + step.usage.input,
        "tokens_out": run.tokens_out + step.usage.output,
        "cost": run.cost if cost is None else (run.cost or 0) + cost,
    }
    planned = _plan(tx, run, step.reply)
    if planned:
        return Committed(runs.update(tx, run.id, crashes=0, reply=step.reply.text, **changed), planned)
    return Committed(runs.close(tx, run, Outcome(state=RunState.OK), step.reply.text, now, **changed), [])


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


def _add_usage(tx: Tx, run: Run, step: Step) -> None:
    usage = step.usage
    # How full the window is belongs to the transcript that the call was made for, which a reset may have replaced.
    tx.run(
        "UPDATE sessions SET tokens_in = tokens_in + ?, tokens_out = tokens_out + ?, "
        "cost = CASE WHEN ? IS NULL THEN cost ELSE coalesce(cost, 0) + ? END, "
        "total_tokens = CASE WHEN session_id = ? THEN ? ELSE total_tokens END, "
        "context_tokens = CASE WHEN session_id = ? THEN ? ELSE context_tokens END, "
        "system_sent = CASE WHEN session_id = ? THEN 1 ELSE system_sent END WHERE key = ?",
        usage.input,
        usage.output,
        usage.cost,
        usage.cost,
        run.session_id,
        usage.total,
        run.session_id,
        step.context_tokens,
        run.session_id,
        run.session_key,
    )


def start_call(tx: Tx, fence: Fence, call_id: str) -> None:
    """Mark a call before it begins: after a crash it is known that its effect is not."""
    runs.unstopped(tx, fence)
    calls.mark_started(tx, call_id)


def commit_result(tx: Tx, fence: Fence, result: Message, ran_ms: int, now: int) -> None:
    """Write a tool's result; a call that has one already keeps it."""
    run = runs.unstopped(tx, fence)
    call = calls.find(tx, result.tool_call_id or "")
    if call is None or call.state is CallState.DONE:
        return
    messages.append(tx, run.session_key, run.session_id or "", result)
    calls.mark_done(tx, call.id)
    exchanges.call_ended(tx, call.id, WaitEnd.ANSWERED, now)
    runs.update(tx, run.id, crashes=0, ran_ms=ran_ms)


FUNCTION_STEP = -1
"""The step of a function agent's calls: they are not part of the transcript."""


def open_function_call(tx: Tx, fence: Fence, call: ToolCall) -> ToolCall:
    """Record a function agent's call, or return what is recorded of it already."""
    runs.unstopped(tx, fence)
    known = calls.find(tx, call.id)
    if known is None:
        calls.insert(tx, call)
    return known or call


def commit_function_result(tx: Tx, fence: Fence, call_id: str, result: str, ran_ms: int, now: int) -> None:
    """Write what a function agent's call gave: as far as this, the function has got."""
    run = runs.unstopped(tx, fence)
    calls.mark_done(tx, call_id, result)
    exchanges.call_ended(tx, call_id, WaitEnd.ANSWERED, now)
    runs.update(tx, run.id, crashes=0, ran_ms=ran_ms)
