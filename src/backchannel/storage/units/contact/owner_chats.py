"""The direct chats of owners, where they are asked what belongs to no other chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backchannel.core.delivery.channels import InboundEvent
from backchannel.core.sessions import Address
from backchannel.storage.tables import OWNER_CHATS
from backchannel.storage.tx import Tx

_IS = "channel = ? AND account_id = ? AND owner_id = ?"


def note(tx: Tx, event: InboundEvent) -> None:
    """Record the direct chat in which an owner writes, if it is another than before."""
    who = event.channel, event.account_id, event.sender_id
    if tx.one(f"SELECT 1 FROM owner_chats WHERE {_IS} AND chat_id = ?", *who, event.chat_id) is None:
        channel, account_id, owner_id = who
        place = {"channel": channel, "account_id": account_id, "owner_id": owner_id}
        tx.insert(OWNER_CHATS, OWNER_CHATS.or_replace, **place, chat_id=event.chat_id)


def addresses(tx: Tx, channel: str, account_id: str, owners: Sequence[str], named: Mapping[str, str]) -> list[Address]:
    """List where the owners of a channel can be asked. `named` are the chats that the platform names by the person."""
    found = {owner: chat for owner in owners if (chat := _known(tx, channel, account_id, owner) or named.get(owner))}
    return [Address(channel=channel, to=chat, account_id=account_id) for chat in found.values()]


def _known(tx: Tx, channel: str, account_id: str, owner: str) -> str | None:
    row = tx.one(f"SELECT chat_id FROM owner_chats WHERE {_IS}", channel, account_id, owner)
    return None if row is None else row[0]
