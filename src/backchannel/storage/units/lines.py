"""Lines of chats: the queue of each chat, and its places.

Places grow by one in the order of commits: the counter's row is locked until the commit.
"""

from __future__ import annotations

from backchannel.core.delivery.channels import DEFAULT_ACCOUNT
from backchannel.core.delivery.delivery import DeliveryLane
from backchannel.storage.tables import DELIVERY_LINES
from backchannel.storage.tx import Tx, required

# Queued rows, in the words of their index.
IN_LINE = "state IN ('pending', 'sending') AND text IS NOT NULL"
_IS = "channel = ? AND account_id = ? AND target = ? AND thread_id = ?"


def in_lane(lane: DeliveryLane) -> tuple[str, list[str]]:
    """Build the WHERE for the rows of a lane, in the form that their index needs."""
    where, values = "channel = ? AND account_id = ? AND target = ?", [lane.channel, lane.account_id, lane.to]
    if lane.thread_id is None:
        return f"{where} AND thread_id IS NULL AND {IN_LINE}", values
    return f"{where} AND thread_id = ? AND {IN_LINE}", [*values, lane.thread_id]


def is_busy(tx: Tx, lane: DeliveryLane) -> bool:
    """Whether something is queued."""
    where, values = in_lane(lane)
    return tx.one(f"SELECT 1 FROM deliveries WHERE {where} LIMIT 1", *values) is not None


def take_place(tx: Tx, channel: str | None, account_id: str | None, target: str | None, thread_id: str | None) -> int:
    """Take the last place in a chat's line; 0 without a chat."""
    if channel is None or target is None:
        return 0
    return _take(tx, DeliveryLane(channel, account_id or DEFAULT_ACCOUNT, target, thread_id), 1)


def last_place(tx: Tx, lane: DeliveryLane) -> int:
    """Return the last place that was given out; 0 if none was."""
    row = tx.one(
        f"SELECT last FROM delivery_lines WHERE {_IS}", lane.channel, lane.account_id, lane.to, lane.thread_id or ""
    )
    return 0 if row is None else int(row[0])


def take_places_of(tx: Tx, lane: DeliveryLane, other: DeliveryLane) -> int:
    """Take as many places as another line has given out; returns by how much its places move."""
    count = last_place(tx, other)
    return _take(tx, lane, count) - count


def _take(tx: Tx, lane: DeliveryLane, count: int) -> int:
    (last,) = required(
        tx.insert_one(
            DELIVERY_LINES,
            "ON CONFLICT (channel, account_id, target, thread_id) "
            "DO UPDATE SET last = delivery_lines.last + excluded.last RETURNING last",
            channel=lane.channel,
            account_id=lane.account_id,
            target=lane.to,
            thread_id=lane.thread_id or "",
            last=count,
        )
    )
    return int(last)
