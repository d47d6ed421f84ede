"""Chats that got another id on their platform, and accounts that a platform asked to wait.

A move is written once, with the return addresses of the sessions that it concerns. What stands in line for the old id
is put into the line of the new one when its turn comes, or in the same commit where sending it has shown the move.
Addresses that were frozen elsewhere, in runs and spawns, stay as they are: whatever is posted to them takes that way.
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
"""Comes after every character that an address has."""


class ChatPlace(NamedTuple):
    """A chat by the id that it has, or had, on its platform."""

    channel: str
    account_id: str
    chat_id: str


_AGAIN = "ON CONFLICT (channel, account_id, chat_id) DO UPDATE SET"
_IS = "channel = ? AND account_id = ? AND chat_id = ?"


def moved_to(tx: Tx, chat: ChatPlace) -> str | None:
    """Tell which id a chat has now; None if it is this one."""
    row = tx.one(f"SELECT moved_to FROM chat_moves WHERE {_IS}", *chat)
    return None if row is None else row[0]


def home(tx: Tx, channel: str, account_id: str, chat_id: str) -> str | None:
    """Tell which id the sessions of a chat are named by; None if it is this one."""
    row = tx.one(f"SELECT home FROM chat_moves WHERE {_IS}", channel, account_id, chat_id)
    return None if row is None else row[0]


def move(tx: Tx, channel: str, account_id: str, chat_id: str, to: str) -> None:
    """Write down that a chat has another id; the same again changes nothing."""
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
    # It may have had this id before: then it is where it began.
    tx.insert(CHAT_MOVES, CHAT_MOVES.or_replace, **new._asdict(), moved_to=None, home=None if first == to else first)
    _readdress(tx, old, to)


def _readdress(tx: Tx, chat: ChatPlace, to: str) -> None:
    """Let the return addresses of the sessions of a chat, those of its threads included, follow it."""
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


# Accounts that wait


def hold(tx: Tx, channel: str, account_id: str, wait_ms: int) -> None:
    """Write down that nothing goes out by an account for a while."""
    until, replaces = tx.now + wait_ms, ACCOUNT_HOLDS.or_replace
    tx.insert(ACCOUNT_HOLDS, replaces, channel=channel, account_id=account_id, set_at=tx.now, until_at=until)
    tx.tell(AccountHeld(channel, account_id, wait_ms))


def holds(tx: Tx) -> list[AccountHeld]:
    """List the accounts that still wait, and how long; a clock that was set back makes no wait longer than it was."""
    rows = tx.all("SELECT channel, account_id, set_at, until_at FROM account_holds WHERE until_at > ?", tx.now)
    return [AccountHeld(channel, account, until - max(set_at, tx.now)) for channel, account, set_at, until in rows]
