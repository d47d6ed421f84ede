"""Function agents: which there ever were, and how many runs wait for each."""

from __future__ import annotations

from collections.abc import Collection

from backchannel.storage.tx import LIVE, Tx


def remember(tx: Tx, agent_id: str) -> None:
    """Write down that a program has brought this agent as a function."""
    tx.run("INSERT INTO function_agents (id, since) VALUES (?, ?) ON CONFLICT (id) DO NOTHING", agent_id, tx.now)


def forget(tx: Tx, agent_id: str) -> bool:
    """Say that no program will bring it again; tells whether any had."""
    return tx.run("DELETE FROM function_agents WHERE id = ?", agent_id) > 0


def known(tx: Tx) -> list[str]:
    """Name the agents that a program has brought as functions."""
    return [agent_id for (agent_id,) in tx.all("SELECT id FROM function_agents ORDER BY id")]


def waiting_runs(tx: Tx, here: Collection[str]) -> dict[str, int]:
    """Count the runs that wait for a function, by its agent; those that are `here` are not waited for."""
    rows = tx.all(
        "SELECT s.agent_id, count(*) FROM runs r JOIN sessions s ON s.key = r.session_key "
        f"WHERE r.{LIVE} AND s.agent_id IN (SELECT id FROM function_agents) GROUP BY 1 ORDER BY 1"
    )
    return {agent_id: count for agent_id, count in rows if agent_id not in here}
