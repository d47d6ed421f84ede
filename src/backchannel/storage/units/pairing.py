"""Pairings: strangers with a code, and the answers of owners.

The row and the delivery of its code are written in the unit that takes the message: a crash leaves both or neither.
"""

from __future__ import annotations

import secrets

from backchannel.core.delivery.channels import InboundEvent
from backchannel.core.delivery.delivery import Post
from backchannel.core.facts import PairingChanged
from backchannel.core.policy.answering import Answerer, may_answer
from backchannel.core.policy.inbound import Arrival
from backchannel.core.policy.pairing import (
    ALPHABET,
    APPROVED_TEXT,
    CODE_LENGTH,
    EXPIRED_TEXT,
    PAIRING_LIFE_MS,
    PairingRecord,
    PairingState,
    SenderKnown,
    code_text,
    paired_text,
    request_buttons,
    request_name,
    request_text,
)
from backchannel.core.sessions import read_address, write_address
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, PairingNotFound
from backchannel.storage.tables import PAIRINGS
from backchannel.storage.tx import Tx, filters, required
from backchannel.storage.units import deliveries
from backchannel.storage.units.contact import questions

_FRESH = "created_at > ? AND created_at < ?"


def _fresh(tx: Tx) -> tuple[int, int]:
    return tx.now - PAIRING_LIFE_MS, tx.now + PAIRING_LIFE_MS


def look_up(tx: Tx, event: InboundEvent) -> SenderKnown:
    """Load what is known of a message's sender, and how many strangers wait on its channel."""
    row = tx.one(
        f"{PAIRINGS.select} WHERE channel = ? AND account_id = ? AND sender_id = ?",
        event.channel,
        event.account_id,
        event.sender_id,
    )
    waiting = f"SELECT count(*) FROM pairings WHERE state = 'pending' AND channel = ? AND {_FRESH}"
    (pending,) = required(tx.one(waiting, event.channel, *_fresh(tx)))
    return SenderKnown(None if row is None else PAIRINGS.read(row), int(pending), tx.now)


def begin(tx: Tx, arrival: Arrival) -> None:
    """Give a stranger a code, and post it to their chat. Expired codes are removed."""
    event, key, address = arrival.event, str(arrival.routed.key), arrival.routed.address
    remove_void(tx, event.channel)
    row = tx.insert_one(
        PAIRINGS,
        f"ON CONFLICT (channel, account_id, sender_id) DO NOTHING {PAIRINGS.returning}",
        channel=event.channel,
        account_id=event.account_id,
        sender_id=event.sender_id,
        sender_name=event.sender_name,
        code=_new_code(tx),
        state=PairingState.PENDING.value,
        session_key=key,
        address=write_address(address),
        created_at=tx.now,
    )
    if row is None:
        return  # another gateway on this database has just given them one
    pairing = PAIRINGS.read(row)
    deliveries.post(tx, Post(session_key=key, address=address, text=code_text(pairing.code)), at_once=True)
    _ask_owners(tx, arrival, pairing)
    tx.tell(PairingChanged(pairing))


def _ask_owners(tx: Tx, arrival: Arrival, pairing: PairingRecord) -> None:
    """Ask the owners of the channel in their direct chats, as far as these are known."""
    owners = arrival.rules.settings.owners
    named = dict(arrival.owner_chats)
    for address in questions.owner_addresses(tx, pairing.channel, pairing.account_id, owners, named):
        request = Post(
            session_key=pairing.session_key,
            address=address,
            text=request_text(pairing),
            always=True,
            buttons=request_buttons(pairing),
            question=request_name(pairing.number),
        )
        deliveries.post(tx, request, at_once=True)


def remove_void(tx: Tx, channel: str) -> None:
    """Remove the strangers of a channel whose codes have expired."""
    void = "DELETE FROM pairings WHERE state = 'pending' AND channel = ? AND (created_at <= ? OR created_at >= ?)"
    for (number,) in tx.all(f"{void} RETURNING number", channel, *_fresh(tx)):
        questions.decided(tx, request_name(number), EXPIRED_TEXT, EXPIRED_TEXT)


def _new_code(tx: Tx) -> str:
    """Make a code that nobody else has."""
    while True:
        code = "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))
        if not any(pairing.has_code(code, tx.now) for pairing in with_codes(tx)):
            return code


def with_codes(tx: Tx) -> list[PairingRecord]:
    """List the pairings with valid codes, answered ones too."""
    return [PAIRINGS.read(row) for row in tx.all(f"{PAIRINGS.select} WHERE {_FRESH}", *_fresh(tx))]


def answer(tx: Tx, code: str, state: PairingState, by: Answerer) -> PairingRecord:
    """Answer a pairing by its code. The same answer again changes nothing. Whoever is approved is told once.

    Raises:
        PairingNotFound: nobody whom `by` may let in has this code now.
        InvalidRequest: it was answered otherwise.
    """
    found = [pairing for pairing in with_codes(tx) if pairing.has_code(code, tx.now)]
    if not found or not may_answer(found[0].channel, by).allowed:
        where = "`/pairing list` in a chat and `backchannel pairing list` show who waits"
        raise PairingNotFound(f"nobody waits with this code (it counts for an hour; {where})")
    (pairing,) = found
    if pairing.state is state:
        return pairing
    if pairing.state is not PairingState.PENDING:
        removing = "`backchannel pairing remove`, on the machine of the gateway,"
        works = f"{removing} takes that back, and the next message gets a new code"
        raise InvalidRequest(f"this code was {pairing.state} already ({works})", param="code")
    changed = "UPDATE pairings SET state = ?, answered_at = ?, answered_by = ? WHERE number = ? RETURNING "
    row = tx.one(changed + PAIRINGS.fields, state.value, tx.now, by.name, pairing.number)
    answered = PAIRINGS.read(required(row))
    if state is PairingState.APPROVED:
        told = Post(session_key=answered.session_key, address=read_address(answered.address), text=APPROVED_TEXT)
        deliveries.post(tx, told, at_once=True)
    told_text = f"{paired_text(answered)} ({by.name})"
    questions.decided(tx, request_name(answered.number), told_text, told_text)
    tx.tell(PairingChanged(answered))
    return answered


def remove(tx: Tx, channel: str, sender_id: str, account_id: str | None = None) -> list[PairingRecord]:
    """Remove a person on one account or on all: they are a stranger again.

    Raises:
        PairingNotFound: nobody of this id is known.
    """
    account, values = ("", ()) if account_id is None else (" AND account_id = ?", (account_id,))
    delete = f"DELETE FROM pairings WHERE channel = ? AND sender_id = ?{account} {PAIRINGS.returning}"
    removed = [PAIRINGS.read(row) for row in tx.all(delete, channel, sender_id, *values)]
    if not removed:
        shown = f"{quoted(sender_id, 64)} on {quoted(channel, 64)}"
        raise PairingNotFound(f"nobody is known as {shown} by pairing (`backchannel pairing list --all` shows who is)")
    return removed


def page(
    tx: Tx, *, state: PairingState | None = None, channel: str | None = None, limit: int, before: int | None = None
) -> list[PairingRecord]:
    """List pairings, newest first, without expired ones; `before` is the number of the last one seen."""
    current = f"(state <> 'pending' OR ({_FRESH}))"
    where, values = filters(("state = ?", state), ("channel = ?", channel), ("number < ?", before))
    rows = tx.all(
        f"{PAIRINGS.select} WHERE {where} AND {current} ORDER BY number DESC LIMIT ?", *values, *_fresh(tx), limit
    )
    return [PAIRINGS.read(row) for row in rows]


def count_pending(tx: Tx) -> int:
    (count,) = required(tx.one(f"SELECT count(*) FROM pairings WHERE state = 'pending' AND {_FRESH}", *_fresh(tx)))
    return int(count)
