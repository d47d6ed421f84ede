"""Receipts as doors show them: what became of each outbound message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backchannel.core.channels import DEFAULT_ACCOUNT
from backchannel.core.delivery import Delivery
from backchannel.core.sessions import WEBCHAT
from backchannel.storage.transactions.deliveries import Receipt
from backchannel.tools.inputs import Answer


class PartRow(Answer, frozen=True, kw_only=True):
    """One message of a delivery."""

    n: int
    state: str
    message_id: str | None = None
    attempts: int = 0
    error: str | None = None


class DeliveryRow(Answer, frozen=True, kw_only=True):
    """A delivery without its parts, as events tell of it."""

    id: str
    state: str
    session_key: str
    attempts: int
    created_at: int
    updated_at: int
    exchange_id: str | None = None
    run_id: str | None = None
    channel: str | None = None
    account_id: str | None = None
    to: str | None = None
    thread_id: str | None = None
    error: str | None = None
    due_at: int | None = None


class ReceiptRow(DeliveryRow, frozen=True, kw_only=True):
    """A delivery with its text and its parts."""

    parts: list[PartRow]
    text: str | None = None


def show_delivery(delivery: Delivery, show_key: Callable[[str], str]) -> DeliveryRow:
    """Show what a delivery's row says, as an event."""
    return DeliveryRow(**_shown(delivery, show_key))


def show_receipt(receipt: Receipt, show_key: Callable[[str], str]) -> ReceiptRow:
    """Show a delivery whole."""
    return ReceiptRow(
        **_shown(receipt.delivery, show_key),
        text=receipt.delivery.text,
        parts=[
            PartRow(
                n=part.n,
                state=part.state.value,
                message_id=part.message_id,
                attempts=part.attempts,
                error=part.error,
            )
            for part in receipt.parts
        ],
    )


def _shown(delivery: Delivery, show_key: Callable[[str], str]) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "state": delivery.state.value,
        "session_key": show_key(delivery.session_key),
        "attempts": delivery.attempts,
        "created_at": delivery.created_at,
        "updated_at": delivery.updated_at,
        "exchange_id": delivery.exchange_id,
        "run_id": delivery.run_id,
        "channel": delivery.channel,
        "account_id": None if delivery.account_id == DEFAULT_ACCOUNT else delivery.account_id,
        "to": None if delivery.channel == WEBCHAT.channel else delivery.target,  # its chat is the session itself
        "thread_id": delivery.thread_id,
        "error": delivery.error,
        "due_at": delivery.due_at,
    }
