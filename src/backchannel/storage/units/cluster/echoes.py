"""Echoes: commits of other gateways, as facts read from the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from backchannel.core.cluster.echoes import END, SESSION, EchoId
from backchannel.core.facts import (
    ApprovalChanged,
    CheckDue,
    DeliveryChanged,
    Fact,
    GrowthWanted,
    LaneFree,
    MessageAppended,
    RunChanged,
    SessionChanged,
    TimerSet,
    TokenEnded,
    TranscriptClosed,
)
from backchannel.core.messages import decode_message
from backchannel.core.runs import Run
from backchannel.storage.tables import DELIVERIES, RUNS
from backchannel.storage.tx import Tx, marks
from backchannel.storage.units import approvals, chats
from backchannel.storage.units.cluster import growing

_LOOKED_BACK = 8
"""How many messages of a session are searched for the last one of a run."""


def facts_of(tx: Tx, words: Sequence[EchoId]) -> list[Fact]:
    """Read the rows that words name; returns a fact for each, in order."""
    wanted: dict[str, list[str]] = {}
    for kind, ref in words:
        wanted.setdefault(kind, []).append(ref)
    found: dict[str, Mapping[str, Fact]] = {kind: _READ[kind](tx, wanted[kind]) for kind in _READ if kind in wanted}
    facts: list[Fact] = []
    for kind, ref in words:
        if kind.startswith(SESSION):
            facts.append(SessionChanged(ref, kind.removeprefix(SESSION)))
        elif kind in _TOLD:
            facts.append(_TOLD[kind](ref))
        elif (fact := found.get(kind, {}).get(ref)) is not None:
            facts.append(fact)
    if END in wanted:
        facts.extend(_ends(tx, wanted[END]))
    if "hold" in wanted:
        facts.extend(chats.holds(tx))
    return facts


def _timer(due_at: str) -> TimerSet:
    return TimerSet(int(due_at or 0))  # a gateway of an earlier version does not say when


def _runs(tx: Tx, ids: Sequence[str]) -> Mapping[str, Fact]:
    rows = tx.all(f"{RUNS.select} WHERE id IN ({marks(ids)})", *ids)
    return {run.id: RunChanged(run) for run in map(RUNS.read, rows)}


def _messages(tx: Tx, ids: Sequence[str]) -> Mapping[str, Fact]:
    rows = tx.all(
        "SELECT m.id, s.key, m.session_id, m.seq, m.body FROM messages m JOIN session_ids s "
        f"ON s.session_id = m.session_id WHERE m.id IN ({marks(ids)})",
        *ids,
    )
    return {
        id_: MessageAppended(key, session_id, seq, decode_message(body), body.encode())
        for id_, key, session_id, seq, body in rows
    }


def _ends(tx: Tx, run_ids: Sequence[str]) -> Iterator[Fact]:
    """Give the ends of runs, each after the last message of the run."""
    for fact in _runs(tx, run_ids).values():
        if isinstance(fact, RunChanged) and fact.run.is_finished:
            yield from _last_message(tx, fact.run)
            yield fact


def _last_message(tx: Tx, run: Run) -> Iterator[Fact]:
    rows = tx.all(
        "SELECT seq, body FROM messages WHERE session_id = ? ORDER BY seq DESC LIMIT ?", run.session_id, _LOOKED_BACK
    )
    for seq, body in rows:
        message = decode_message(body)
        if message.run_id == run.id:
            yield MessageAppended(run.session_key, run.session_id or "", seq, message, body.encode())
            return


def _deliveries(tx: Tx, ids: Sequence[str]) -> Mapping[str, Fact]:
    rows = tx.all(f"{DELIVERIES.select} WHERE id IN ({marks(ids)})", *ids)
    return {delivery.id: DeliveryChanged(delivery) for delivery in map(DELIVERIES.read, rows)}


def _approvals(tx: Tx, ids: Sequence[str]) -> Mapping[str, Fact]:
    found = (approvals.find(tx, id_) for id_ in ids)
    return {approval.id: ApprovalChanged(approval) for approval in found if approval is not None}


def _tokens(tx: Tx, ids: Sequence[str]) -> Mapping[str, Fact]:
    rows = tx.all(f"SELECT id FROM tokens WHERE id IN ({marks(ids)}) AND revoked_at IS NOT NULL", *ids)
    return {id_: TokenEnded(id_) for (id_,) in rows}


def _devices(tx: Tx, ids: Sequence[str]) -> Mapping[str, Fact]:
    kept = {id_ for (id_,) in tx.all(f"SELECT id FROM device_tokens WHERE id IN ({marks(ids)})", *ids)}
    return {id_: TokenEnded(id_, is_device=True) for id_ in ids if id_ not in kept}


def _closed(tx: Tx, ids: Sequence[str]) -> Mapping[str, Fact]:
    rows = tx.all(
        "SELECT i.key, i.session_id, i.ended_at, CASE WHEN s.archived_at = s.updated_at THEN 1 ELSE 0 END "
        "FROM session_ids i LEFT JOIN sessions s ON s.key = i.key AND s.session_id = i.session_id "
        f"AND s.spawned_by IS NOT NULL WHERE i.session_id IN ({marks(ids)}) AND i.end_reason = 'deleted'",
        *ids,
    )
    return {id_: TranscriptClosed(key, id_, at, bool(is_named)) for key, id_, at, is_named in rows}


_TOLD: Mapping[str, Callable[[str], Fact]] = {
    "wanted": GrowthWanted,
    "lane": LaneFree,
    "timer": _timer,
    "check": CheckDue,
}
"""Words that need no row."""
_READ: Mapping[str, Callable[[Tx, Sequence[str]], Mapping[str, Fact]]] = {
    "run": _runs,
    "message": _messages,
    "delivery": _deliveries,
    "approval": _approvals,
    "token": _tokens,
    "device": _devices,
    "grew": growing.find,
    "closed": _closed,
}
