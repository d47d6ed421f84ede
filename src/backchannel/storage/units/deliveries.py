"""Units about deliveries: the outbox and its receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from backchannel.core.channels import ChannelError, Sent
from backchannel.core.delivery import Delivery, DeliveryLane, DeliveryState, Part
from backchannel.core.sessions import Address
from backchannel.storage.transactions import deliveries, exchanges, idempotency, mending, sending
from backchannel.storage.transactions.deliveries import Post, Receipt
from backchannel.storage.transactions.sending import Claimed
from backchannel.storage.tx import Tx
from backchannel.storage.units.base import Units


class DeliveryUnits(Units):
    """What leaves for a chat."""

    async def post(self, post: Post, *, idempotency_key: str | None = None, digest: str | None = None) -> Receipt:
        """Put a text in line to be sent; the same key again answers with the first receipt.

        Raises:
            IdempotencyConflict: the key stands for something else.
        """

        def unit(tx: Tx) -> Receipt:
            known = idempotency.once(
                tx, idempotency_key, digest, now, lambda: deliveries.post(tx, post, now, outlets).id
            )
            return deliveries.receipt(tx, known)

        now, outlets = self._now, self.outlets
        return await self._driver.write(unit)

    def claim_part(self, lane: DeliveryLane) -> asyncio.Future[Claimed | None]:
        """Mark the next part of a lane as being sent, if it is time."""
        return self._driver.write(partial(sending.claim, lane=lane, outlets=self.outlets, now=self._now))

    def settle_part(self, part: Part, answer: Sent | ChannelError, *, takes_key: bool) -> asyncio.Future[Delivery]:
        """Write what an attempt to send a part came to."""
        unit = partial(sending.attempted, claimed=part, answer=answer, takes_key=takes_key, now=self._now)
        return self._driver.write(unit)

    async def recover_deliveries(self, takes_key: Callable[[str], bool]) -> None:
        """Decide on every part that was being sent when its process ended."""
        if self._driver.look(sending.any_sending):
            await self._driver.write(partial(sending.recover, takes_key=takes_key, now=self._now))

    async def lanes_in_line(self) -> list[DeliveryLane]:
        return await self._read(sending.lanes_in_line)

    async def lanes_due(self) -> list[DeliveryLane]:
        """Name the lanes whose retry has come."""
        return self._driver.look(partial(sending.lanes_due, now=self._now))

    async def next_delivery_due(self) -> int | None:
        """Tell when the next retry is due, after those that are."""
        return self._driver.look(partial(sending.next_due, now=self._now))

    async def receipt(self, delivery_id: str) -> Receipt:
        """Load a delivery with its parts.

        Raises:
            DeliveryNotFound: there is none of this id.
        """
        return self._driver.look(partial(deliveries.receipt, delivery_id=delivery_id))

    async def receipts(
        self,
        *,
        session_key: str | None = None,
        state: DeliveryState | None = None,
        limit: int,
        before: int | None = None,
    ) -> list[Receipt]:
        """List deliveries, newest first; `before` is the number of the last one seen."""
        unit = partial(deliveries.page, session_key=session_key, state=state, limit=limit, before=before)
        return await self._read(unit)

    async def oldest_deliveries(self, state: DeliveryState, limit: int, after: int) -> list[Delivery]:
        """List the deliveries in a state, oldest first; `after` is the number of the last one seen."""
        return await self._read(partial(deliveries.oldest, state=state, limit=limit, after=after))

    async def retry_delivery(self, delivery_id: str) -> Receipt:
        """Put a delivery back in line; one whose announce run failed has that run again."""

        def unit(tx: Tx) -> Receipt:
            if exchanges.announce_again(tx, deliveries.need(tx, delivery_id), now):
                return deliveries.receipt(tx, delivery_id)
            return mending.retry(tx, delivery_id, outlets, now)

        now, outlets = self._now, self.outlets
        return await self._driver.write(unit)

    async def reroute_delivery(self, delivery_id: str, address: Address) -> Receipt:
        return await self._driver.write(
            partial(mending.reroute, delivery_id=delivery_id, address=address, outlets=self.outlets, now=self._now)
        )

    async def drop_delivery(self, delivery_id: str) -> Receipt:
        return await self._driver.write(partial(mending.drop, delivery_id=delivery_id, now=self._now))
