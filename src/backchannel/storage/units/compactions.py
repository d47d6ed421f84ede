"""Compactions: a summary and its cut, written in one commit, and taken back.

Nothing may stand between a tool call and its result. So the holder of a run writes between two of its steps, and
everybody else only while no run is active.
"""

from __future__ import annotations

import msgspec

from backchannel.core.commands.commands import CommandChat
from backchannel.core.compaction.values import CompactionState, MadeSummary, SummaryUndone
from backchannel.core.cut import NO_CUT, Cut, read_cut, summarised, taken_back
from backchannel.core.facts import CompactionAsked, SessionChanged
from backchannel.core.messages import CompactionEntry, Message, Role, decode_message, text_content
from backchannel.core.requests import ViewStart
from backchannel.core.runs import Fence
from backchannel.core.sessions import Session
from backchannel.storage.ids import new_id
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import cuts, messages, runs, sessions

_LOOKED_BACK = 200
"""How many notes of an imported transcript are searched for its last summary."""
_IS_ENTRY = '"compaction":'
_LEAST_MESSAGES = 4
"""A conversation that is shorter is not summarised."""


def commit(tx: Tx, made: MadeSummary, fence: Fence | None = None) -> CompactionState:
    """Append a summary and move the cut. `fence` is that of a run that waits for it."""
    if fence is not None:
        runs.unstopped(tx, fence)
    session = sessions.find(tx, made.key)
    if session is None or not _is_current(session, made.session_id):
        return CompactionState.GONE
    if _is_busy(tx, session, fence):
        return CompactionState.BUSY
    stored = _stored_cut(tx, made.session_id)
    cut = read_cut(stored)
    if _beginning(cut) != _beginning(made.expected):
        return CompactionState.GONE
    messages.append(tx, made.key, made.session_id, made.message)
    moved = summarised(cut, made.place, made.message.id, is_short=made.is_short)
    cuts.store(tx, made.session_id, stored, moved)
    _count(tx, made)
    tx.tell(SessionChanged(made.key, "note"))
    return CompactionState.DONE


def _is_current(session: Session, session_id: str) -> bool:
    return session.session_id == session_id and session.archived_at is None and not session.deleting


def _is_busy(tx: Tx, session: Session, fence: Fence | None) -> bool:
    if fence is None:
        return session.running_run is not None or session.flushing
    row = tx.one("SELECT 1 FROM tool_calls WHERE run_id = ? AND state <> 'done' LIMIT 1", fence.run_id)
    return session.running_run != fence.run_id or row is not None


def _stored_cut(tx: Tx, session_id: str) -> str | None:
    (stored,) = required(tx.one("SELECT cut FROM session_ids WHERE session_id = ?", session_id))
    return None if stored is None else str(stored)


def _beginning(cut: Cut) -> tuple[int, str | None, int]:
    """Give the part of a cut that a summary depends on. Cleared results and hidden pictures are no part of it."""
    return cut.from_seq, cut.summary_id, cut.covered


def _count(tx: Tx, made: MadeSummary) -> None:
    """Count what a summary used, for the session and for its newest run. It counts for that run's day."""
    usage, entry = made.usage, made.message.compaction
    tx.run(
        "UPDATE runs SET tokens_in = tokens_in + ?, tokens_out = tokens_out + ?, cost = coalesce(cost + ?, cost, ?) "
        "WHERE position = (SELECT max(position) FROM runs WHERE session_key = ? AND started_at IS NOT NULL)",
        usage.sent,
        usage.output,
        usage.cost,
        usage.cost,
        made.key,
    )
    tx.run(
        "UPDATE sessions SET tokens_in = tokens_in + ?, tokens_out = tokens_out + ?, "
        "cost = coalesce(cost + ?, cost, ?), total_tokens = ? WHERE key = ?",
        usage.sent,
        usage.output,
        usage.cost,
        usage.cost,
        None if entry is None else entry.tokens_after,
        made.key,
    )


def current(tx: Tx, session_id: str) -> CompactionEntry | None:
    """Read what a transcript's summary in use covers; None if there is none."""
    summary_id = read_cut(_stored_cut(tx, session_id)).summary_id
    return None if summary_id is None else messages.find_in(tx, session_id, summary_id).compaction


def begin_at_last(tx: Tx, session_id: str) -> None:
    """Let the view of an imported transcript begin at its last summary, if that was not taken back."""
    rows = tx.all(
        "SELECT body FROM messages WHERE session_id = ? AND role = 'system' ORDER BY seq DESC LIMIT ?",
        session_id,
        _LOOKED_BACK,
    )
    noted = (decode_message(body) for (body,) in rows if _IS_ENTRY in body)
    last = next((message for message in noted if message.compaction is not None), None)
    if last is None or last.compaction is None or last.compaction.undoes is not None:
        return
    through = last.compaction.through_message_id
    ids = (through, f"{session_id}/{through}")  # a message gets another id if its own is taken
    row = tx.one("SELECT seq FROM messages WHERE session_id = ? AND id IN (?, ?)", session_id, *ids)
    if row is not None:
        place = ViewStart(int(row[0]) + 1, 0, None)
        cuts.store(tx, session_id, None, summarised(NO_CUT, place, last.id, is_short=False))


# Asked for by a person


def ask(tx: Tx, session: Session, wish: str | None, chat: CommandChat) -> bool:
    """Ask for a summary beside the lane; returns False if the conversation is too short for one."""
    (next_seq,) = required(tx.one("SELECT next_seq FROM session_ids WHERE session_id = ?", session.session_id))
    if next_seq - read_cut(_stored_cut(tx, session.session_id)).from_seq < _LEAST_MESSAGES:
        return False
    tx.tell(CompactionAsked(session.key, session.session_id, wish, chat=chat))
    return True


def undo(tx: Tx, key: str, session_id: str | None = None, chat: CommandChat | None = None) -> SummaryUndone:
    """Take the last summary of a session back. It stays in the transcript, and an entry tells of it.

    If a run is active, that happens after it, and `chat` is told if there is nothing to take back by then.

    Raises:
        SessionNotFound: there is no such session.
    """
    session = sessions.need(tx, key)
    if session_id not in (None, session.session_id) or session.deleting:
        return SummaryUndone(CompactionState.GONE)
    stored = _stored_cut(tx, session.session_id)
    cut = read_cut(stored)
    back = taken_back(cut)
    if back is None or cut.summary_id is None:
        return SummaryUndone(CompactionState.GONE)
    if _is_busy(tx, session, None):
        tx.tell(CompactionAsked(key, session.session_id, None, undoes=True, chat=chat))
        return SummaryUndone(CompactionState.BUSY)
    summary = messages.find_in(tx, session.session_id, cut.summary_id).compaction
    if summary is None:
        return SummaryUndone(CompactionState.GONE)
    note = msgspec.structs.replace(summary, undoes=cut.summary_id)
    messages.append(tx, key, session.session_id, _undo_entry(note, tx.now))
    cuts.store(tx, session.session_id, stored, back)
    tx.run("UPDATE sessions SET total_tokens = ? WHERE key = ?", summary.tokens_before, key)
    tx.tell(SessionChanged(key, "note"))
    return SummaryUndone(CompactionState.DONE, summary)


def _undo_entry(note: CompactionEntry, now: int) -> Message:
    text = f"The summary of {note.messages} messages was taken back."
    return Message(id=new_id(), role=Role.SYSTEM, content=text_content(text), timestamp=now, compaction=note)
