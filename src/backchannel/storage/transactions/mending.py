"""Mending: what a person does with a delivery that did not arrive."""

from __future__ import annotations

from backchannel.core.delivery import DeliveryAction, DeliveryState, act
from backchannel.core.sessions import Address
from backchannel.errors import InvalidRequest, PolicyDenied, UnknownChannel
from backchannel.storage.transactions import deliveries, sessions
from backchannel.storage.tx import Tx


def retry(tx: Tx, delivery_id: str) -> deliveries.Receipt:
    """Put a delivery back in line, as if its parts that did not arrive had never been tried."""
    delivery = deliveries.need(tx, delivery_id)
    act(DeliveryAction.RETRY, delivery)
    if delivery.text is None or delivery.channel is None:
        works = "retry the run that was to write it: runs.retry"
        raise InvalidRequest(f"cannot retry delivery {delivery_id}: it has no text ({works})", deliveryId=delivery_id)
    if tx.outlets.limit(delivery.channel) is None:
        message = f"{deliveries.no_channel(delivery.channel, tx.outlets)}; re-route it, or configure the channel"
        raise UnknownChannel(message, deliveryId=delivery_id)
    tx.run(
        "UPDATE delivery_parts SET state = 'pending', attempts = 0, error = NULL, waited_ms = 0 "
        "WHERE delivery_id = ? AND state NOT IN ('sent', 'dropped')",
        delivery_id,
    )
    return _back_in_line(tx, delivery_id)


def reroute(tx: Tx, delivery_id: str, address: Address) -> deliveries.Receipt:
    """Send a delivery's whole text elsewhere; what did not arrive at the old place is dropped there.

    Raises:
        UnknownChannel, PolicyDenied: it cannot go there.
        InvalidRequest: it cannot be re-routed any more, or not yet.
    """
    delivery = deliveries.need(tx, delivery_id)
    act(DeliveryAction.REROUTE, delivery)
    if tx.outlets.limit(address.channel) is None or address.to is None:
        raise UnknownChannel(deliveries.no_channel(address.channel, tx.outlets), channel=address.channel[:64])
    session = sessions.find(tx, delivery.session_key)
    decision = tx.outlets.decide(delivery.session_key, session.send_policy if session else None, address.channel)
    if not decision.allowed:
        raise PolicyDenied(f"not sent: {decision.reason}", rule=decision.rule, deliveryId=delivery_id)
    tx.run("UPDATE delivery_parts SET state = 'dropped' WHERE delivery_id = ? AND state <> 'sent'", delivery_id)
    moved = deliveries.hand_over(tx, delivery_id, delivery.text or "", address, at_once=True)
    return deliveries.Receipt(moved, deliveries.parts_of(tx, delivery_id))


def drop(tx: Tx, delivery_id: str) -> deliveries.Receipt:
    """Settle a delivery as given up; its parts tell how far it came."""
    act(DeliveryAction.DROP, deliveries.need(tx, delivery_id))
    dropped = deliveries.update(tx, delivery_id, state=DeliveryState.DROPPED.value, due_at=None, updated_at=tx.now)
    return deliveries.Receipt(dropped, deliveries.parts_of(tx, delivery_id))


def _back_in_line(tx: Tx, delivery_id: str) -> deliveries.Receipt:
    deliveries.to_the_end(tx, delivery_id)
    pending = DeliveryState.PENDING.value
    changed = deliveries.update(tx, delivery_id, state=pending, due_at=None, error=None, updated_at=tx.now)
    return deliveries.Receipt(changed, deliveries.parts_of(tx, delivery_id))
