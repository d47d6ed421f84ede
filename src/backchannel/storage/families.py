"""Families: a session, the sub-agents that it started, and what they have used together."""

from __future__ import annotations

import msgspec

from backchannel.core.delivery import DeliveryState
from backchannel.core.messages import Usage
from backchannel.core.runs import Run
from backchannel.core.sessions import Session
from backchannel.core.spawn_values import Spawn, read_spawn
from backchannel.storage import runs, sessions
from backchannel.storage.tx import Tx, required


class SpawnRecord(msgspec.Struct, frozen=True):
    """A spawn with what became of it."""

    spawn: Spawn
    run: Run
    """The child's own."""
    delivery_id: str
    delivery_state: DeliveryState
    delivery_changed_at: int


class ChildSession(msgspec.Struct, frozen=True):
    """A child; one that no spawn of this gateway made has no story."""

    session: Session
    story: SpawnRecord | None


class Family(msgspec.Struct, frozen=True):
    """A session's children, the newest and the living first, and the usage of all that descend from it."""

    children: list[ChildSession]
    total: int
    usage: Usage
    """Its own included."""


def family(tx: Tx, key: str, limit: int) -> Family:
    """Load the children of a session, and add up the whole tree."""
    rows = tx.all(
        "SELECT key FROM sessions WHERE spawned_by = ? "
        f"ORDER BY archived_at IS NOT NULL, created_at DESC, {sessions.FIRST_RUN} DESC, key LIMIT ?",
        key,
        limit,
    )
    (total,) = required(tx.one("SELECT count(*) FROM sessions WHERE spawned_by = ?", key))
    children = [ChildSession(sessions.required_session(tx, child), story(tx, child)) for (child,) in rows]
    return Family(children, int(total), _usage(tx, key))


def story(tx: Tx, child_key: str) -> SpawnRecord | None:
    """Load what started a sub-agent, and what became of it."""
    row = tx.one(
        "SELECT s.body, s.delivery_id, d.state, d.updated_at FROM spawns s JOIN deliveries d ON d.id = s.delivery_id "
        "WHERE s.child_key = ?",
        child_key,
    )
    if row is None:
        return None
    spawn = read_spawn(row[0])
    return SpawnRecord(spawn, runs.need(tx, spawn.child_run), row[1], DeliveryState(row[2]), row[3])


def _usage(tx: Tx, key: str) -> Usage:
    tokens_in, tokens_out, cost = required(
        tx.one(
            # UNION, not UNION ALL: a circle, which only a damaged row can make, ends where it began.
            "WITH RECURSIVE tree(key) AS (SELECT CAST(? AS TEXT) UNION "
            "SELECT s.key FROM sessions s JOIN tree t ON s.spawned_by = t.key) "
            "SELECT coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), sum(cost) FROM sessions "
            "WHERE key IN (SELECT key FROM tree)",
            key,
        )
    )
    return Usage(input=int(tokens_in), output=int(tokens_out), cost=cost)
