"""Families: a session, its sub-agents, and their usage."""

from __future__ import annotations

from math import inf

from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.flows.spawn_values import ChildSession, Family, SpawnRecord, read_spawn
from backchannel.core.forest import Forest, Relative, Relatives, grow_forest
from backchannel.core.messages import Usage
from backchannel.core.sessions import Session, SessionFilter
from backchannel.storage.tables import SESSIONS
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import runs, sessions

ARCHIVED_SHOWN = 100
"""The most archived children of a session in a list of trees."""


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
    """Load the spawn of a sub-agent, with its run and its receipt."""
    row = tx.one(
        "SELECT s.body, s.delivery_id, d.state, d.updated_at FROM spawns s JOIN deliveries d ON d.id = s.delivery_id "
        "WHERE s.child_key = ?",
        child_key,
    )
    if row is None:
        return None
    spawn = read_spawn(row[0])
    return SpawnRecord(spawn, runs.need(tx, spawn.child_run), row[1], DeliveryState(row[2]), row[3])


def branch(tx: Tx, key: str, limit: int) -> Relatives:
    """Load a session with all its descendants, the nearest first."""
    found = {key: sessions.required_session(tx, key)}
    return _relatives(tx, found, is_cut=_descend(tx, found, limit))


def newest_trees(tx: Tx, agent_id: str | None, limit: int) -> Relatives:
    """Load the newest sessions, with their ancestors and their archived children.

    Those of one agent come with all descendants, and without ancestors.
    """
    page = sessions.page(tx, SessionFilter(agent_id=agent_id), after=None, limit=limit + 1)
    found = {session.key: session for session in page[:limit]}
    is_cut = len(page) > limit
    if agent_id is not None:
        return _relatives(tx, found, is_cut=_descend(tx, found, len(found) + limit) or is_cut)
    for session in list(found.values()):
        _add_parents(tx, found, session)
    for key in list(found):
        _add_children(tx, found, key, ARCHIVED_SHOWN, only_archived=True)
    return _relatives(tx, found, is_cut=is_cut)


def _descend(tx: Tx, found: dict[str, Session], limit: int) -> bool:
    """Add the descendants of the sessions found, up to a limit; returns whether there may be more."""
    order = list(found)
    for key in order:
        if len(found) >= limit:
            return True
        order += _add_children(tx, found, key, limit - len(found))
    return False


def _add_parents(tx: Tx, found: dict[str, Session], session: Session) -> None:
    while session.spawned_by is not None and session.spawned_by not in found:
        parent = sessions.find(tx, session.spawned_by)
        if parent is None:
            return
        found[parent.key] = session = parent


def _add_children(tx: Tx, found: dict[str, Session], key: str, limit: int, *, only_archived: bool = False) -> list[str]:
    archived = " AND archived_at IS NOT NULL" if only_archived else ""
    rows = tx.all(
        f"{SESSIONS.select} WHERE spawned_by = ?{archived} "
        f"ORDER BY created_at DESC, {sessions.FIRST_RUN} DESC, key LIMIT ?",
        key,
        limit,
    )
    fresh = {child.key: child for child in map(SESSIONS.read, rows) if child.key not in found}
    found |= fresh
    return list(fresh)


def _relatives(tx: Tx, found: dict[str, Session], *, is_cut: bool) -> Relatives:
    forest = grow_forest({key: session.spawned_by for key, session in found.items()})
    members: dict[str, Relative] = {}
    for key in reversed(_in_order(forest)):
        session, below = found[key], [members[child].tree_usage for child in forest.children[key]]
        (spawned,) = required(tx.one("SELECT count(*) FROM sessions WHERE spawned_by = ?", key))
        usage = _sum([_own_usage(session), *below]) if spawned == len(below) else _usage(tx, key)
        story_of_it = story(tx, key) if session.spawned_by is not None else None
        members[key] = Relative(session, story_of_it, int(spawned), usage)
    for siblings in forest.children.values():
        siblings.sort(key=lambda child: _started_at(members[child]), reverse=True)
    return Relatives(forest, members, is_cut)


def _started_at(member: Relative) -> float:
    """Return when a sub-agent began. One that still waits is the newest."""
    return (member.story.run.started_at if member.story else None) or inf


def _in_order(forest: Forest) -> list[str]:
    """List all keys, each after its parent."""
    order = list(forest.roots)
    for key in order:
        order += forest.children[key]
    return order


def _own_usage(session: Session) -> Usage:
    return Usage(input=session.tokens_in, output=session.tokens_out, cost=session.cost)


def _sum(usages: list[Usage]) -> Usage:
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return Usage(
        input=sum(usage.input for usage in usages),
        output=sum(usage.output for usage in usages),
        cost=sum(costs) if costs else None,
    )


def _usage(tx: Tx, key: str) -> Usage:
    tokens_in, tokens_out, cost = required(
        tx.one(
            # UNION, not UNION ALL: a circle, made by a damaged row, ends where it began.
            "WITH RECURSIVE tree(key, tokens_in, tokens_out, cost) AS ("
            "SELECT key, tokens_in, tokens_out, cost FROM sessions WHERE key = ? UNION "
            "SELECT s.key, s.tokens_in, s.tokens_out, s.cost FROM sessions s JOIN tree t ON s.spawned_by = t.key) "
            "SELECT coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), sum(cost) FROM tree",
            key,
        )
    )
    return Usage(input=int(tokens_in), output=int(tokens_out), cost=cost)
