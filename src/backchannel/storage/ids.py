"""New ids. Times lead those that are indexed in bulk, so that inserts stay at one end of the index."""

from __future__ import annotations

import random
import re
import time
import uuid

from backchannel.core.short_ids import MOST_SHOWN, IdKind, WrittenId
from backchannel.storage.tx import Tx


def new_id() -> str:
    """Make an id for a run, message or delivery: sortable by time, unique by chance in the rest. It is no secret."""
    return f"{time.time_ns() // 1_000_000:012x}{random.getrandbits(80):020x}"


def new_session_id() -> str:
    return str(uuid.uuid4())


# Looking up ids by their beginning: a range of their index, however many there are.

_PLACES = {
    IdKind.RUN: "SELECT id FROM runs WHERE id",
    IdKind.DELIVERY: "SELECT id FROM deliveries WHERE id",
    IdKind.EXCHANGE: "SELECT id FROM exchanges WHERE id",
    IdKind.JOB: "SELECT id FROM cron_jobs WHERE id",
    IdKind.TOKEN: "SELECT id FROM tokens WHERE id",
}
_CURRENT_IDS = "SELECT session_id FROM session_ids WHERE end_reason IS NULL AND session_id"
_KEYS = "SELECT key FROM sessions WHERE key"
_UNUSUAL = re.compile("[%_!]")
_LAST = "\U0010ffff"


def matching(tx: Tx, kind: IdKind, written: WrittenId) -> list[str]:
    """Give the id itself, or else some of those that fit what was written: enough to tell one from several."""
    select = _PLACES.get(kind) or (_KEYS if ":" in written.head else _CURRENT_IDS)
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
        MOST_SHOWN + 1,
    )
    found = [whole for (whole,) in rows if written.fits(whole)]
    if kind is IdKind.SESSION and not written.tail and ":" not in written.head:
        found += _children(tx, written.head)
    return found


def _children(tx: Tx, head: str) -> list[str]:
    """Find sub-agents by the beginning of the last part of their key: a look at all keys, when a person asks."""
    written = _UNUSUAL.sub(r"!\g<0>", head)
    rows = tx.all(
        "SELECT key FROM sessions WHERE key LIKE ? ESCAPE '!' ORDER BY key LIMIT ?",
        f"agent:%:subagent:{written}%",
        MOST_SHOWN + 1,
    )
    return [key for (key,) in rows]
