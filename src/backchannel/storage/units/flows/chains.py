"""Chains: the sends and spawns that led to a run."""

from __future__ import annotations

from collections.abc import Callable

from backchannel.core.flows.barrier import barrier_of_wake, read_barrier
from backchannel.core.flows.exchange_values import read_exchange
from backchannel.core.flows.spawn_values import read_spawn
from backchannel.core.keys import KeyScheme
from backchannel.core.policy.limits import Lineage, path_at
from backchannel.core.runs import Chain, Run, RunKind
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import runs


def shown(scheme: KeyScheme) -> Callable[[str], str]:
    """Return the function that writes keys in texts and paths."""
    return scheme.shown


def lineage(tx: Tx, run_id: str | None, show: Callable[[str], str]) -> Lineage | None:
    """Find the place of the calling run in its chain; a call from outside a run starts a new chain."""
    if run_id is None:
        return None
    run = runs.need(tx, run_id)
    path = path_at(_path(tx, run), show(run.session_key))
    return Lineage(chain=Chain(run.chain_id, run.hop), path=path, runs=count_runs(tx, run.chain_id))


def _path(tx: Tx, run: Run) -> tuple[str, ...]:
    """Return the path to the run's flow, if it has one."""
    if run.exchange_id is not None and (row := tx.one("SELECT body FROM exchanges WHERE id = ?", run.exchange_id)):
        return read_exchange(row[0]).path
    if run.spawn_id is not None and (row := tx.one("SELECT body FROM spawns WHERE id = ?", run.spawn_id)):
        return read_spawn(row[0]).path
    if run.kind is RunKind.WAKE and (row := tx.one("SELECT body FROM barriers WHERE id = ?", barrier_of_wake(run.id))):
        return read_barrier(row[0]).path
    return ()


def count_runs(tx: Tx, chain_id: str) -> int:
    """Count the runs of a chain: the run that began it is one, or the whole flow of a call from outside."""
    (further,) = required(tx.one("SELECT count(*) FROM runs WHERE chain_id = ? AND hop > 0", chain_id))
    first = max(_first_runs(tx, chain_id, flow) for flow in ("exchange_id", "spawn_id"))
    return int(further) + max(1, first)


def _first_runs(tx: Tx, chain_id: str, flow: str) -> int:
    (count,) = required(
        tx.one(
            f"SELECT count(*) FROM runs WHERE {flow} = (SELECT {flow} FROM runs WHERE id = ?) "
            "AND chain_id = ? AND hop = 0",
            chain_id,
            chain_id,
        )
    )
    return int(count)
