"""Questions with buttons: when one is decided, its messages say so and lose their buttons.

The new text is a delivery of its own, in the line of its chat, which edits the message of the question. It is written
in the commit that decides. If the platform refuses the edit, the text is posted.
"""

from __future__ import annotations

from backchannel.core.delivery.delivery import Delivery, Post
from backchannel.core.sessions import Address
from backchannel.storage.tables import DELIVERIES
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
