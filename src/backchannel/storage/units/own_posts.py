"""Posts of our own accounts, known by the ids that the platform gave them.

A post in a broadcast channel names only the channel as its sender. So one of our accounts cannot see that another one
wrote it. The platform may even deliver the post before it has answered the sender: until then nobody knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.delivery.channels import InboundId
from backchannel.errors import OwnPostUnderway
from backchannel.storage.tx import Tx
from backchannel.storage.units import lines


def is_own(tx: Tx, id: InboundId, twins: Sequence[InboundId]) -> bool:
    """Whether one of our accounts sent a message, as a part of a delivery or as a draft.

    `twins` are the ids that the message has for our other accounts.

    Raises:
        OwnPostUnderway: something is being posted to its chat, and it may be that.
    """
    if _was_sent(tx, id) or _is_draft(tx, id):
        return True
    if any(_is_sending(tx, twin) for twin in twins):
        raise OwnPostUnderway(id.message_id)
    return False


def _was_sent(tx: Tx, id: InboundId) -> bool:
    row = tx.one(
        "SELECT 1 FROM delivery_parts JOIN deliveries ON id = delivery_id "
        "WHERE (message_id = ? OR draft_id = ?) AND channel = ? AND target = ? LIMIT 1",
        id.message_id,
        id.message_id,
        id.channel,
        id.chat_id,
    )
    return row is not None


def _is_draft(tx: Tx, id: InboundId) -> bool:
    row = tx.one(
        "SELECT 1 FROM drafts WHERE channel = ? AND target = ? AND message_id = ? LIMIT 1",
        id.channel,
        id.chat_id,
        id.message_id,
    )
    return row is not None


def _is_sending(tx: Tx, twin: InboundId) -> bool:
    place = twin.channel, twin.account_id, twin.chat_id
    where = "channel = ? AND account_id = ? AND target = ?"
    sending = f"SELECT 1 FROM deliveries WHERE {where} AND {lines.IN_LINE} AND state = 'sending' LIMIT 1"
    posting = f"SELECT 1 FROM drafts WHERE {where} AND message_id IS NULL AND state <> 'lost' LIMIT 1"
    return tx.one(sending, *place) is not None or tx.one(posting, *place) is not None
