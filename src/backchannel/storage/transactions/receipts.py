"""The receipt of an announce: it exists from the moment a send or a spawn is accepted, and is settled once."""

from __future__ import annotations

from backchannel.core.delivery import DeliveryState
from backchannel.core.facts import DeliveryChanged
from backchannel.core.sessions import Address
from backchannel.storage.transactions import deliveries
from backchannel.storage.tx import Tx


def open_(tx: Tx, delivery_id: str, session_key: str, exchange_id: str | None, *, run_id: str | None = None) -> None:
    """Make a receipt for a text that is not written yet; it stands in no line."""
    tx.run(
        "INSERT INTO deliveries (id, session_key, exchange_id, run_id, state, created_at, updated_at) "
        "VALUES (?, ?, ?, ?, 'pending', ?, ?)",
        delivery_id,
        session_key,
        exchange_id,
        run_id,
        tx.now,
        tx.now,
    )
    tx.tell(DeliveryChanged(deliveries.need(tx, delivery_id)))


def hand_over(tx: Tx, delivery_id: str, text: str, address: Address | None, *, run_id: str | None = None) -> None:
    """Write the text, and the run that wrote it where that was not known before, and put it in line to be sent."""
    if run_id is not None:
        tx.run("UPDATE deliveries SET run_id = ? WHERE id = ?", run_id, delivery_id)
    deliveries.hand_over(tx, delivery_id, text, address)


def settle(tx: Tx, delivery_id: str, outcome: str, reason: str) -> None:
    """Say that nothing is sent, and why."""
    deliveries.update(tx, delivery_id, state=DeliveryState(outcome).value, error=reason, updated_at=tx.now)


def reopen(tx: Tx, delivery_id: str) -> None:
    """Make a failed receipt pending again: another announce run was asked for."""
    deliveries.update(tx, delivery_id, state=DeliveryState.PENDING.value, error=None, updated_at=tx.now)
