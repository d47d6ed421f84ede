"""Proofs: what a platform says later of a part settles the part, once.

`core/delivery/attempts.py` decides; this writes.
"""

from __future__ import annotations

from backchannel.core.delivery.attempts import after_proof, late_failure
from backchannel.core.delivery.channels import DEFAULT_ACCOUNT
from backchannel.core.delivery.delivery import DeliveryState, Part, parse_part_key
from backchannel.core.delivery.outgoing import PartProof
from backchannel.core.facts import DeliveryChanged
from backchannel.errors import PartUnderway
from backchannel.storage.tables import DELIVERY_PARTS
from backchannel.storage.tx import Tx, filters
from backchannel.storage.units import deliveries, sending

_OF_CHANNEL = f"SELECT {DELIVERY_PARTS.fields_of('p')} FROM delivery_parts p JOIN deliveries d ON d.id = p.delivery_id"


def prove(tx: Tx, channel: str, proof: PartProof) -> bool:
    """Settle a part by a proof; returns whether anything has changed. What is left of its delivery is sent.

    Raises:
        PartUnderway: it names a message whose id is not known yet; perhaps it is being sent right now.
    """
    part = _find(tx, channel, proof)
    if part is None:
        return False
    if (note := late_failure(part, proof)) is not None:
        _note(tx, part, note)
        return True
    made = after_proof(part, proof)
    if made is None:
        return False
    delivery = sending.write(tx, part, made)
    was_in_line = part.state is not DeliveryState.UNCERTAIN
    if delivery.state is DeliveryState.PENDING and not was_in_line:
        deliveries.back_in_line(tx, delivery)
    return True


def _note(tx: Tx, part: Part, note: str) -> None:
    where = "WHERE delivery_id = ? AND n = ?"
    tx.run(f"UPDATE delivery_parts SET note = ?, error = ? {where}", note, note, part.delivery_id, part.n)
    tx.run("UPDATE deliveries SET error = ? WHERE id = ? AND state = 'sent'", note, part.delivery_id)
    tx.tell(DeliveryChanged(deliveries.need(tx, part.delivery_id)))


def _find(tx: Tx, channel: str, proof: PartProof) -> Part | None:
    """Find the part that a proof names, by its key or else by the id of its message."""
    account_id = proof.account_id or DEFAULT_ACCOUNT
    if proof.key is not None and (named := parse_part_key(proof.key)) is not None:
        where = "WHERE p.delivery_id = ? AND p.n = ? AND d.channel = ? AND d.account_id = ?"
        row = tx.one(f"{_OF_CHANNEL} {where}", *named, channel, account_id)
        return None if row is None else DELIVERY_PARTS.read(row)
    if proof.message_id is None:
        return None
    where, values = filters(
        ("d.channel = ?", channel), ("d.account_id = ?", account_id), ("d.target = ?", proof.chat_id)
    )
    row = tx.one(f"{_OF_CHANNEL} WHERE p.message_id = ? AND {where} LIMIT 1", proof.message_id, *values)
    if row is None and tx.one(f"SELECT 1 FROM deliveries d WHERE d.state = 'sending' AND {where} LIMIT 1", *values):
        raise PartUnderway(proof.message_id)
    return None if row is None else DELIVERY_PARTS.read(row)
