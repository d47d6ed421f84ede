"""Questions with buttons: when one is decided, its messages say so and lose their buttons.

The new text is a delivery of its own, in the line of its chat, which edits the message of the question. It is written
in the commit that decides. If the platform refuses the edit, the text is posted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backchannel.core.delivery.channels import InboundEvent
from backchannel.core.delivery.delivery import Delivery, Post
from backchannel.core.sessions import Address
from backchannel.storage.tables import DELIVERIES, OWNER_CHATS
from backchannel.storage.tx import Tx
from backchannel.storage.units import deliveries


def decided(tx: Tx, question: str, text: str, short: str) -> None:
    """Show what was decided wherever it was asked with buttons; `short` is for chats where the text is too long."""
    rows = tx.all(f"{DELIVERIES.select} WHERE question = ? ORDER BY number", question)
    for asked in map(DELIVERIES.read, rows):
        if asked.channel is not None and asked.target is not None and tx.outlets.has_buttons(asked.channel):
            deliveries.post(tx, _replacing(tx, asked, text, short), at_once=True)


def _replacing(tx: Tx, asked: Delivery, text: str, short: str) -> Post:
    channel = asked.channel or ""
    fits = tx.outlets.measure(channel)(text) <= (tx.outlets.limit(channel) or 0)
    return Post(
        session_key=asked.session_key,
        address=Address(channel=channel, to=asked.target, account_id=asked.account_id, thread_id=asked.thread_id),
        text=text if fits else short,
        run_id=asked.run_id,
        always=True,
        edits=asked.id,
    )


# The direct chats of owners, where they are asked what belongs to no other chat

_IS = "channel = ? AND account_id = ? AND owner_id = ?"


def note_chat(tx: Tx, event: InboundEvent) -> None:
    """Record the direct chat in which an owner writes, if it is another than before."""
    who = event.channel, event.account_id, event.sender_id
    if tx.one(f"SELECT 1 FROM owner_chats WHERE {_IS} AND chat_id = ?", *who, event.chat_id) is None:
        channel, account_id, owner_id = who
        place = {"channel": channel, "account_id": account_id, "owner_id": owner_id}
        tx.insert(OWNER_CHATS, OWNER_CHATS.or_replace, **place, chat_id=event.chat_id)


def owner_addresses(
    tx: Tx, channel: str, account_id: str, owners: Sequence[str], named: Mapping[str, str]
) -> list[Address]:
    """List where the owners of a channel can be asked. `named` are the chats that the platform names by the person."""
    found = {owner: chat for owner in owners if (chat := _known(tx, channel, account_id, owner) or named.get(owner))}
    return [Address(channel=channel, to=chat, account_id=account_id) for chat in found.values()]


def _known(tx: Tx, channel: str, account_id: str, owner: str) -> str | None:
    row = tx.one(f"SELECT chat_id FROM owner_chats WHERE {_IS}", channel, account_id, owner)
    return None if row is None else row[0]
