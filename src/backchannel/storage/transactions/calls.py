"""Tool calls: planned with the reply that asks for them, marked before they begin, done with their result.

A call's result enters the transcript in the commit that marks it done, so each call has exactly one.
"""

from __future__ import annotations

import msgspec

from backchannel.core.exchange_values import WaitEnd
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, text_content
from backchannel.core.runs import CallState, Outcome, Run, ToolCall, function_model
from backchannel.storage.ids import new_id
from backchannel.storage.transactions import exchanges, messages, spawns
from backchannel.storage.tx import Row, Tx, columns

FIELDS = columns(ToolCall.__struct_fields__)


def _call(row: Row) -> ToolCall:
    return msgspec.convert(row, ToolCall, strict=False)


def find(tx: Tx, call_id: str) -> ToolCall | None:
    row = tx.one(f"SELECT {FIELDS} FROM tool_calls WHERE id = ?", call_id)
    return None if row is None else _call(row)


def insert(tx: Tx, call: ToolCall) -> None:
    tx.run(
        f"INSERT INTO tool_calls ({FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        call.id,
        call.run_id,
        call.step,
        call.position,
        call.name,
        call.arguments,
        call.state.value,
        call.result,
    )


def open_calls(tx: Tx, run_id: str) -> list[ToolCall]:
    """List a run's calls that have no result yet, in order."""
    rows = tx.all(
        f"SELECT {FIELDS} FROM tool_calls WHERE run_id = ? AND state <> 'done' ORDER BY step, position",
        run_id,
    )
    return [_call(row) for row in rows]


def mark_started(tx: Tx, call_id: str) -> None:
    tx.run("UPDATE tool_calls SET state = 'started' WHERE id = ? AND state = 'planned'", call_id)


def mark_done(tx: Tx, call_id: str, result: str | None = None) -> None:
    tx.run("UPDATE tool_calls SET state = 'done', result = ? WHERE id = ?", result, call_id)


def close_open(tx: Tx, run: Run, outcome: Outcome | None) -> None:
    """Give every call that is still open an error result: the run ends, or leaves its lane without an outcome.

    No call may stay unanswered, for others write to the transcript now.
    """
    how = "was interrupted too often" if outcome is None else f"ended ({outcome.state})"
    for call in open_calls(tx, run.id):
        how_far = _how_far(tx, call)
        result = result_message(run, call, f"The run {how} before this call had a result; {how_far}.", tx.now)
        if call.step < 0:
            _close_function_call(tx, run, call, result, leaves_trace=outcome is not None and how_far != _NOT_DONE)
        else:
            mark_done(tx, call.id)
            messages.append(tx, run.session_key, run.session_id or "", result)
        exchanges.call_ended(tx, call.id, WaitEnd.BROKEN)


def _how_far(tx: Tx, call: ToolCall) -> str:
    """Say how far an open call came: who reads that it was not carried out may well repeat it.

    A session tool is never marked as started: what it has set going is found by the id of the call.
    """
    if call.state is CallState.STARTED:
        return "its effect is unknown"
    return exchanges.tell_of_call(tx, call.id) or spawns.tell_of_call(tx, call.id) or _NOT_DONE


_NOT_DONE = "it was not carried out"


def _close_function_call(tx: Tx, run: Run, call: ToolCall, result: Message, *, leaves_trace: bool) -> None:
    """Close a call of a function; one that has done nothing is as if it had not been asked for.

    So is one of a session tool when the run only leaves its lane: the function asks again, and finds what it has sent.
    """
    if call.state is CallState.STARTED or leaves_trace:
        mark_done(tx, call.id)
        append_function_call(tx, run, call, result)
    else:
        tx.run("DELETE FROM tool_calls WHERE id = ?", call.id)


def append_function_call(tx: Tx, run: Run, call: ToolCall, result: Message) -> None:
    """Write a function agent's call with its result, as a model's stand there: a call that is open is not yet there.

    A function may make several calls at once. Each enters the transcript as it is answered, so that nothing ever stands
    between a call and its result.
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
    """Make the error result of a call that did not give one itself."""
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
