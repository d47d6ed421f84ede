"""Chats with a new id on their platform, and accounts that must wait.

A move is written once, with the return addresses of its sessions. The queue of the old id is moved when its turn comes,
or at once if a send has shown the move. Addresses stored in runs and spawns stay: posts to them follow the move.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from backchannel.core.delivery.channels import DEFAULT_ACCOUNT
from backchannel.core.facts import AccountHeld, SessionChanged
from backchannel.core.sessions import Address, read_address, write_address
from backchannel.storage.tables import ACCOUNT_HOLDS, CHAT_MOVES
from backchannel.storage.tx import Tx
from backchannel.storage.units import sessions

_LAST = "\U0010ffff"
"""Sorts after every character of an address."""


class ChatPlace(NamedTuple):
    """A chat by its present or former id."""

    channel: str
    account_id: str
    chat_id: str


_AGAIN = "ON CONFLICT (channel, account_id, chat_id) DO UPDATE SET"
_IS = "channel = ? AND account_id = ? AND chat_id = ?"


def moved_to(tx: Tx, chat: ChatPlace) -> str | None:
    """Return the new id of a chat; None if it has none."""
    row = tx.one(f"SELECT moved_to FROM chat_moves WHERE {_IS}", *chat)
    return None if row is None else row[0]


def home(tx: Tx, channel: str, account_id: str, chat_id: str) -> str | None:
    """Return the id that names the sessions of a chat; None if it is this one."""
    row = tx.one(f"SELECT home FROM chat_moves WHERE {_IS}", channel, account_id, chat_id)
    return None if row is None else row[0]


def move(tx: Tx, channel: str, account_id: str, chat_id: str, to: str) -> None:
    """Record that a chat has another id. A repetition changes nothing."""
    old, new = ChatPlace(channel, account_id, chat_id), ChatPlace(channel, account_id, to)
    if to == chat_id or moved_to(tx, old) == to:
        return
    first = home(tx, *old) or chat_id
    tx.run(
        "UPDATE chat_moves SET moved_to = ? WHERE channel = ? AND account_id = ? AND moved_to = ?",
        to,
        channel,
        account_id,
        chat_id,
    )
    tx.insert(CHAT_MOVES, f"{_AGAIN} moved_to = excluded.moved_to", **old._asdict(), moved_to=to)
    # If the chat had this id first, it is back at its home.
    tx.insert(CHAT_MOVES, CHAT_MOVES.or_replace, **new._asdict(), moved_to=None, home=None if first == to else first)
    _readdress(tx, old, to)


def _readdress(tx: Tx, chat: ChatPlace, to: str) -> None:
    """Update the return addresses of a chat's sessions, those of its threads too."""
    opening = (write_address(Address(channel=chat.channel, to=chat.chat_id)) or "").removesuffix("}")
    found = tx.all(
        "SELECT key, delivery_context FROM sessions WHERE delivery_context >= ? AND delivery_context < ?",
        opening,
        opening + _LAST,
    )
    for key, stored in found:
        address = read_address(stored)
        if (address.account_id or DEFAULT_ACCOUNT) == chat.account_id:
            sessions.update(tx, key, "delivery_context = ?", write_address(replace(address, to=to), stored))
            tx.tell(SessionChanged(key, "patch"))


# Accounts that must wait


def hold(tx: Tx, channel: str, account_id: str, wait_ms: int) -> None:
    """Record that an account must wait."""
    until, replaces = tx.now + wait_ms, ACCOUNT_HOLDS.or_replace
    tx.insert(ACCOUNT_HOLDS, replaces, channel=channel, account_id=account_id, set_at=tx.now, until_at=until)
    tx.tell(AccountHeld(channel, account_id, wait_ms))


def holds(tx: Tx) -> list[AccountHeld]:
    """List the accounts that wait, and how long. A clock that was set back makes no wait longer."""
    rows = tx.all("SELECT channel, account_id, set_at, until_at FROM account_holds WHERE until_at > ?", tx.now)
    return [AccountHeld(channel, account, until - max(set_at, tx.now)) for channel, account, set_at, until in rows]
