"""Ids found by their beginning, as a range of an index."""

from __future__ import annotations

import re
from itertools import accumulate

from backchannel.core.short_ids import MOST_SHOWN, IdKind, WrittenId
from backchannel.openclaw.words import DASHBOARD
from backchannel.storage.tx import Tx
from backchannel.storage.units import sessions

_PLACES = {
    IdKind.RUN: "SELECT id FROM runs WHERE id",
    IdKind.DELIVERY: "SELECT id FROM deliveries WHERE id",
    IdKind.EXCHANGE: "SELECT id FROM exchanges WHERE id",
    IdKind.JOB: "SELECT id FROM cron_jobs WHERE id",
    IdKind.TOKEN: "SELECT id FROM tokens WHERE id",
    IdKind.APPROVAL: "SELECT id FROM approvals WHERE id",
}
_DEVICE_TOKENS = "SELECT id FROM device_tokens WHERE id"
_CURRENT_IDS = "SELECT session_id FROM session_ids WHERE end_reason IS NULL AND session_id"
_ARCHIVED_IDS = "SELECT session_id FROM session_ids WHERE end_reason = 'deleted' AND session_id"
_KEYS = "SELECT key FROM sessions WHERE key"
_BEFORE_UUID = ("", "subagent:", DASHBOARD)
"""The texts between the agent and the UUID at the end of a key."""
_UUID_PARTS = (8, 4, 4, 4, 12)
_UNUSUAL = re.compile("[%_!]")
_LAST = "\U0010ffff"


def matching(tx: Tx, kind: IdKind, written: WrittenId, limit: int = MOST_SHOWN + 1) -> list[str]:
    """Return the id itself if it exists, else enough matching ids to see if there are several.

    An archived session is found only if no other matches, so that ids of current ones stay valid.
    """
    select = _PLACES.get(kind) or (_KEYS if ":" in written.head else _CURRENT_IDS)
    found = _fitting(tx, select, written, limit)
    if kind is IdKind.TOKEN and found != [written.text]:
        found += _fitting(tx, _DEVICE_TOKENS, written, limit)
    if kind is IdKind.SESSION and not written.tail and ":" not in written.head and found != [written.text]:
        found += _children(tx, written.head) if written.is_long_enough else []
    return found or (_fitting(tx, _ARCHIVED_IDS, written, limit) if select is _CURRENT_IDS else [])


def _fitting(tx: Tx, select: str, written: WrittenId, limit: int) -> list[str]:
    if tx.one(f"{select} = ?", written.text) is not None:
        return [written.text]
    if not written.is_long_enough:
        return []
    column = select.split()[1]
    rows = tx.all(
        f"{select} >= ? AND {column} < ? AND {column} LIKE ? ESCAPE '!' ORDER BY {column} LIMIT ?",
        written.head,
        written.head + _LAST,
        "%" + _UNUSUAL.sub(r"!\g<0>", written.tail),
        limit,
    )
    return [whole for (whole,) in rows if written.fits(whole)]


def _children(tx: Tx, head: str) -> list[str]:
    """Find sub-agents by the beginning of their key's last part, a range of the index for each agent."""
    found: list[str] = []
    for agent_id in sessions.agents_with_sessions(tx):
        first = f"agent:{agent_id}:subagent:{head}"
        range_of_keys = f"{_KEYS} >= ? AND key < ? ORDER BY key LIMIT ?"
        found += [key for (key,) in tx.all(range_of_keys, first, first + _LAST, MOST_SHOWN + 1)]
    return found[: MOST_SHOWN + 1]


def with_uuid(tx: Tx, beginning: str, agent_id: str | None, limit: int) -> list[str]:
    """Find sessions by the beginning of their key's UUID, with or without dashes."""
    found: dict[str, None] = {}
    for agent in sessions.agents_with_sessions(tx) if agent_id is None else [agent_id]:
        for before in _BEFORE_UUID:
            for uuid in (beginning, _dashed(beginning)):
                first = f"agent:{agent}:{before}{uuid}"
                select = f"{_KEYS} >= ? AND key < ? AND archived_at IS NULL ORDER BY key LIMIT ?"
                found |= dict.fromkeys(key for (key,) in tx.all(select, first, first + _LAST, limit))
    return [key for key in found if len(key.rpartition(":")[2].replace("-", "")) == sum(_UUID_PARTS)][:limit]


def _dashed(digits: str) -> str:
    """Add the dashes to the beginning of a UUID."""
    ends = list(accumulate(_UUID_PARTS))
    return "-".join(filter(None, (digits[end - size : end] for size, end in zip(_UUID_PARTS, ends, strict=True))))


def is_own_run(tx: Tx, run_id: str, key: str) -> bool:
    """True if a run exists and belongs to a session.

    Of a flow that the session started, only the first run belongs to it. Turns and announces belong to the other side.
    """
    row = tx.one(
        "SELECT 1 FROM runs r WHERE r.id = ? AND (r.session_key = ? "
        "OR (r.kind = 'primary' AND EXISTS (SELECT 1 FROM exchanges e WHERE e.id = r.exchange_id "
        "AND e.requester_key = ?)) "
        "OR (r.kind = 'child' AND EXISTS (SELECT 1 FROM spawns s WHERE s.id = r.spawn_id AND s.requester_key = ?)))",
        run_id,
        key,
        key,
        key,
    )
    return row is not None
