"""Members: the gateways of one database, each a row with a lease.

When a lease ends, the others take over. A lease covers everything of a process: its runs have its number as fence, its
sends as sender, its duties as holder. A process whose row has ended commits nothing: the driver reads the row at the
start of each transaction. So a lease decides when others continue, and never whether something happens twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.cluster.members import GatewayInfo, GatewaySeen, LeaseRenewed, TakenOver, read_ids, write_ids
from backchannel.errors import Unavailable
from backchannel.storage.tables import DUTIES, PROCESSES
from backchannel.storage.tx import ALIVE, LIVE, QUEUED, Tx, marks, required
from backchannel.storage.units import recovery
from backchannel.storage.units.cluster import growing

TAKEN_FOR_DEAD = "the other gateways have taken this one for dead: it stops its work and begins anew in a moment"
_IS_EXPIRED = "ended_at IS NULL AND coalesce(lease_until, 0) < ? AND number <> ?"


def enter(tx: Tx, place: str, member: GatewayInfo, lease_ms: int) -> int:
    """Register this process. End earlier ones at the same place, and those with an expired lease.

    The folder of a place is locked, so no other process works there. A process that enters again had stopped all work:
    no crash is counted for its runs.
    """
    if tx.number:
        tx.run("UPDATE processes SET ended_at = ? WHERE number = ? AND ended_at IS NULL", tx.now, tx.number)
    before = [number for (number,) in tx.all(f"{ALIVE} AND place = ?", place)]
    _end(tx, [*before, *(number for number in _expired(tx) if number not in before)])
    growing.forget_unwanted(tx)
    (number,) = required(
        tx.insert_one(
            PROCESSES,
            "RETURNING number",
            started_at=tx.now,
            lease_until=tx.shared_now + lease_ms,
            place=place,
            name=member.name,
            version=member.version,
            config=member.config,
            agents=_listed(member.agents),
            jobs=_listed(member.jobs),
        )
    )
    return int(number)


def renew(tx: Tx, agents: Sequence[str], duties: Sequence[str], lease_ms: int) -> LeaseRenewed:
    """Renew this process's lease, and check whether there is anything to take over.

    It waits for no other unit and changes only its own row: it must succeed while a takeover is stuck.

    Raises:
        Unavailable: others have taken this process for dead.
    """
    renewed = tx.one(
        "UPDATE processes SET lease_until = ?, alive_at = ?, agents = ? WHERE number = ? AND ended_at IS NULL "
        "RETURNING number",
        tx.shared_now + lease_ms,
        tx.now,
        _listed(agents),
        tx.number,
    )
    if renewed is None:
        raise Unavailable(TAKEN_FOR_DEAD)
    taken = {name for (name,) in tx.all(f"SELECT name FROM duties WHERE process IN ({ALIVE})")}
    expired = tx.one(f"SELECT 1 FROM processes WHERE {_IS_EXPIRED} LIMIT 1", tx.shared_now, tx.number)
    is_any_left = expired is not None or not taken.issuperset(duties)
    return LeaseRenewed(tuple(peers(tx)), _duties_of(tx), is_any_left=is_any_left)


def take_over(tx: Tx, duties: Sequence[str]) -> TakenOver:
    """Take over from processes with an expired lease, and take the free duties."""
    dead = _expired(tx)
    _end(tx, dead)
    for duty in duties:
        tx.insert(DUTIES, f"{DUTIES.or_replace} WHERE duties.process NOT IN ({ALIVE})", name=duty, process=tx.number)
    return TakenOver(_duties_of(tx), is_any_dead=bool(dead))


def _duties_of(tx: Tx) -> frozenset[str]:
    return frozenset(name for (name,) in tx.all("SELECT name FROM duties WHERE process = ?", tx.number))


def peers(tx: Tx) -> list[GatewaySeen]:
    """List the gateways that are at work."""
    rows = tx.all(
        "SELECT number, started_at, name, version, config, agents FROM processes WHERE ended_at IS NULL ORDER BY number"
    )
    return [
        GatewaySeen(
            number=number,
            started_at=started_at,
            member=GatewayInfo(name=name or "", version=version or "", config=config or "", agents=_read(agents)),
        )
        for number, started_at, name, version, config, agents in rows
    ]


_STARTABLE = (
    f"FROM runs r JOIN sessions s ON s.key = r.session_key WHERE r.{QUEUED} "
    "AND r.resume_at IS NULL AND s.running_run IS NULL AND s.flushing = 0 AND s.deleting = 0 "
    "AND NOT EXISTS (SELECT 1 FROM runs w WHERE w.session_key = r.session_key AND w.waits_on IS NOT NULL "
    f"AND w.{LIVE} AND w.position < r.position)"
)
STARTABLE = f"SELECT 1 {_STARTABLE}"


def startable(tx: Tx, limit: int) -> list[str]:
    """List sessions with a queued run and a free lane, the longest waiting first."""
    rows = tx.all(f"SELECT r.session_key, min(r.position) {_STARTABLE} GROUP BY 1 ORDER BY 2 LIMIT ?", limit)
    return [key for key, _ in rows]


def _expired(tx: Tx) -> list[int]:
    """List the processes with an expired lease, and lock their rows until this unit ends.

    A renewal runs beside this unit: the row decides who was first.
    """
    rows = tx.all(
        f"UPDATE processes SET lease_until = 0 WHERE {_IS_EXPIRED} RETURNING number", tx.shared_now, tx.number
    )
    return sorted(number for (number,) in rows)


def _end(tx: Tx, dead: Sequence[int]) -> None:
    recovery.end_dead(tx, dead)
    tx.run(f"DELETE FROM duties WHERE process IN ({marks(dead)})", *dead)


def _listed(ids: Sequence[str]) -> str:
    return write_ids(tuple(sorted(ids)))


def _read(agents: str | None) -> tuple[str, ...]:
    return () if agents is None else read_ids(agents)
