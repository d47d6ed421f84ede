"""Everything stored about one run, for its timeline (`wire/timeline.py`).

Each read has a limit, so that a run of any length takes bounded time. An incomplete timeline says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from backchannel.core.messages import Message, Role, decode_message
from backchannel.core.policy.resets import ResetMode
from backchannel.core.runs import Run, ToolCall
from backchannel.core.sessions import EndedTranscript
from backchannel.core.text import quoted
from backchannel.errors import RunNotFound
from backchannel.storage.tables import TOOL_CALLS
from backchannel.storage.tx import Tx
from backchannel.storage.units import approvals, run_events, runs
from backchannel.storage.views.shown import transcript_start
from backchannel.wire.timeline import CallFlow, RunStory, Timeline, build_timeline

MOST_EVENTS = 500
_MOST_CALLS = 1000
_MOST_MESSAGES = 5000
"""The most messages of a transcript that are read, those of other runs too."""
_MOST_BYTES = 8 * 1024 * 1024
_READ_AT_ONCE = 32
_BY_ITSELF = (ResetMode.DAILY.value, ResetMode.IDLE.value)
_LAST = "\U0010ffff"


class RunTimeline(msgspec.Struct, frozen=True):
    """A run and its timeline, both from the same read."""

    run: Run
    timeline: Timeline


def timeline(tx: Tx, run_id: str) -> RunTimeline:
    """Load what a run did, step by step.

    Raises:
        RunNotFound: there is none of this id.
    """
    run = runs.find(tx, run_id)
    if run is None:
        raise RunNotFound(f"no run {quoted(run_id)} (runs.list shows them)", runId=run_id)
    messages, is_cut = _messages(tx, run)
    calls = _calls(tx, run)
    story = RunStory(
        run=run,
        messages=messages,
        calls=calls,
        events=run_events.of_run(tx, run_id, MOST_EVENTS),
        flows=_flows(tx, run),
        approvals=approvals.of_calls(tx, *_range(run), _MOST_CALLS),
        delivery_id=_delivery(tx, run),
        follows=_reset_by(tx, run),
        is_cut=is_cut or len(calls) == _MOST_CALLS,
    )
    return RunTimeline(run, build_timeline(story))


def _messages(tx: Tx, run: Run) -> tuple[list[Message], bool]:
    """Read a run's messages, from the one it answers; also returns whether there may be more.

    Usually they are consecutive, and reading stops after the last. If the run was set aside or retried, messages of
    other runs come between them and are skipped.
    """
    place = tx.one("SELECT seq FROM messages WHERE id = ? AND session_id = ?", run.message_id, run.session_id)
    if place is None:
        return [], False
    own: list[Message] = []
    count = size = replies = 0
    for line in _lines(tx, run.session_id or "", int(place[0])):
        message = decode_message(line)
        count, size = count + 1, size + len(line)
        if message.run_id == run.id:
            own.append(message)
            replies += message.role is Role.ASSISTANT
        elif run.is_finished and replies >= run.step:
            return own, False
        if count == _MOST_MESSAGES or size > _MOST_BYTES:
            return own, True
    return own, False


def _lines(tx: Tx, session_id: str, seq: int) -> Iterator[str]:
    """Yield stored messages from a place, a few at a time: most runs need no more."""
    while True:
        rows = tx.all(
            "SELECT seq, body FROM messages WHERE session_id = ? AND seq >= ? ORDER BY seq LIMIT ?",
            session_id,
            seq,
            _READ_AT_ONCE,
        )
        yield from (body for _, body in rows)
        if len(rows) < _READ_AT_ONCE:
            return
        seq = rows[-1][0] + 1


# A call's id begins with its run's id, so the flows of a run's calls are one range of an index.


def _calls(tx: Tx, run: Run) -> list[ToolCall]:
    rows = tx.all(
        f"{TOOL_CALLS.select} WHERE id > ? AND id < ? AND run_id = ? LIMIT ?", *_range(run), run.id, _MOST_CALLS
    )
    calls = [TOOL_CALLS.read(row) for row in rows]
    return sorted(calls, key=lambda call: (call.step, call.position))


def _flows(tx: Tx, run: Run) -> dict[str, CallFlow]:
    """Find the exchange or spawn of each call by its id, and its wait."""
    first, last = _range(run)
    flows: dict[str, CallFlow] = {}
    for call_id, id_, key, delivery_id in tx.all(
        "SELECT call_id, id, target_key, delivery_id FROM exchanges WHERE call_id > ? AND call_id < ? LIMIT ?",
        first,
        last,
        _MOST_CALLS,
    ):
        flows[call_id] = CallFlow(exchange_id=id_, session_key=key, delivery_id=delivery_id)
    for call_id, key, delivery_id in tx.all(
        "SELECT call_id, child_key, delivery_id FROM spawns WHERE call_id > ? AND call_id < ? LIMIT ?",
        first,
        last,
        _MOST_CALLS,
    ):
        flows[call_id] = CallFlow(session_key=key, is_child=True, delivery_id=delivery_id)
    for call_id, until_at in tx.all(
        "SELECT call_id, until_at FROM waits WHERE call_id > ? AND call_id < ? LIMIT ?", first, last, _MOST_CALLS
    ):
        flows[call_id] = replace(flows.get(call_id, CallFlow()), waits_until=until_at)
    return flows


def _range(run: Run) -> tuple[str, str]:
    return f"{run.id}/", f"{run.id}/{_LAST}"


def _reset_by(tx: Tx, run: Run) -> EndedTranscript | None:
    """Find the transcript that a run's message ended, in the commit that accepted it."""
    if run.session_id is None:
        return None
    _, before = transcript_start(tx, run.session_id)
    is_own = before is not None and before.reason in _BY_ITSELF and before.ended_at == run.accepted_at
    return before if is_own else None


def _delivery(tx: Tx, run: Run) -> str | None:
    row = tx.one("SELECT id FROM deliveries WHERE run_id = ? ORDER BY number DESC LIMIT 1", run.id)
    return None if row is None else str(row[0])
