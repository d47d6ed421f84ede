"""Interruptions: a session's work is ended in bounded parts, one a commit.

They follow a stop, a reset or a deletion. A session may have tens of thousands of open exchanges and queued runs, and a
unit blocks the event loop. So the first commit, which is answered, ends a bounded number. A timer that is due at once
ends the rest. Its row has all that a later part needs, also after a crash. For most sessions the first part is all.
"""

from __future__ import annotations

import msgspec

from backchannel.core.flows.exchange_values import Change
from backchannel.core.keys import SessionKey
from backchannel.core.sessions import Session
from backchannel.core.stored import StoredForm
from backchannel.storage.tx import LIVE, Tx, required
from backchannel.storage.units import runs, sessions, timers
from backchannel.storage.units.flows import exchanges

INTERRUPTION_TIMER = "interrupt"
INTERRUPTION_PART = 64
"""How many exchanges and runs one commit ends, which takes some 20 ms."""

_ENDED_BY = {
    Change.STOP: "(kind IN ('turn', 'wake') OR spawn_id IS NOT NULL)",
    # In a new transcript a sub-agent does not know the work that it is asked to report. A set-aside run does not know
    # the calls that it has made, and would repeat them.
    Change.RESET: "((kind = 'announce' AND spawn_id IS NOT NULL) OR step > 0)",
    Change.DELETE: "1 = 1",
}
"""The runs that a change ends besides the active one. People's messages stay, except in a deletion."""


class InterruptionRest(msgspec.Struct, frozen=True, array_like=True):
    """The rest of an interruption: the session's work from before this time, after this exchange."""

    key: str
    change: Change
    at: int
    last_run: int
    active_run: str | None
    after: str = ""


_STORED: StoredForm[InterruptionRest] = StoredForm(InterruptionRest)


def begin(tx: Tx, session: Session, change: Change) -> None:
    """Begin an interruption. Exchanges are shortened before their runs are stopped."""
    (last_run,) = required(tx.one("SELECT coalesce(max(position), 0) FROM runs"))
    # A reset lets a run that waits for a model go on in the new transcript.
    active = session.running_run if change is Change.RESET else runs.active_run(tx, session)
    rest = InterruptionRest(session.key, change, tx.now, int(last_run), active)
    if active is not None:
        _end_run(tx, rest, active)
    _do_part(tx, rest)


def due(tx: Tx, ref: str) -> None:
    """Do the next part of an interruption."""
    _do_part(tx, _STORED.read(ref), ref)


def count_runs(tx: Tx, session: Session, change: Change) -> int:
    """Count the runs that a change would end, in a session that is not being stopped."""
    current = session.running_run if change is Change.RESET else runs.active_run(tx, session)
    (active,) = required(tx.one("SELECT count(*) FROM runs WHERE id = ? AND abort_requested = 0", current))
    (others,) = required(
        tx.one(
            f"SELECT count(*) FROM runs WHERE session_key = ? AND {LIVE} AND abort_requested = 0 AND id <> ? "
            f"AND {_ENDED_BY[change]}",
            session.key,
            current or "",
        )
    )
    return int(active) + int(others)


def _do_part(tx: Tx, rest: InterruptionRest, stored: str | None = None) -> None:
    shortened = exchanges.open_of(tx, rest.key, until=rest.at, after=rest.after, limit=INTERRUPTION_PART)
    for exchange_id in shortened:
        _shorten(tx, rest, exchange_id)
    ended = _next_runs(tx, rest, INTERRUPTION_PART - len(shortened))
    for run_id in ended:
        _end_run(tx, rest, run_id)
    if len(shortened) + len(ended) == INTERRUPTION_PART:
        left = msgspec.structs.replace(rest, after=shortened[-1] if shortened else rest.after)
        timers.set_timer(tx, INTERRUPTION_TIMER, _STORED.write(left, stored), tx.now)
    elif rest.change is Change.DELETE:
        sessions.archive_when_idle(tx, sessions.required_session(tx, rest.key))


def _next_runs(tx: Tx, rest: InterruptionRest, limit: int) -> list[str]:
    rows = tx.all(
        f"SELECT id FROM runs WHERE session_key = ? AND {LIVE} AND position <= ? AND abort_requested = 0 "
        f"AND {_ENDED_BY[rest.change]} ORDER BY position LIMIT ?",
        rest.key,
        rest.last_run,
        limit,
    )
    return [run_id for (run_id,) in rows]


def _end_run(tx: Tx, rest: InterruptionRest, run_id: str) -> None:
    run = runs.need(tx, run_id)
    if run.exchange_id is not None:
        _shorten(tx, rest, run.exchange_id)
    runs.request_abort(tx, rest.key, run_id)


def _shorten(tx: Tx, rest: InterruptionRest, exchange_id: str) -> None:
    exchanges.session_interrupted(tx, exchange_id, SessionKey.stored(rest.key), rest.change, rest.active_run)
