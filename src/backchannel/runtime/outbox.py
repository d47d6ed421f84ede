"""The outbox: sends one part at a time per chat, chats side by side.

A part is marked as being sent in its own commit, before it is handed to its channel. The outcome is committed before
the next part. In memory there are only tasks and wake-ups. The rows say whose turn it is, when to retry and how often.
A start decides about parts that an earlier process was sending, and wakes every line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from backchannel.core.contracts import Clock
from backchannel.core.delivery.attached import MAX_FILE_BYTES
from backchannel.core.delivery.attempts import NO_RECOURSE, DoubtStays, Recourse
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.delivery.channels import (
    Channel,
    ChannelError,
    ChannelMoved,
    ChannelRefused,
    ChannelSilent,
    OutboundPart,
    Sent,
    can_find,
    file_limit,
)
from backchannel.core.delivery.delivery import DeliveryLane, DeliveryState, PartClaimed
from backchannel.core.delivery.outgoing import OutboundFile
from backchannel.core.delivery.splitting import Measure
from backchannel.core.facts import AccountHeld, DeliveryChanged
from backchannel.core.policy.send_policy import SendDecision
from backchannel.errors import FenceLost
from backchannel.runtime.clocks import sleep_or_event
from backchannel.runtime.cluster.duties import Duties
from backchannel.runtime.cluster.media import Media
from backchannel.runtime.guard import SendGuard
from backchannel.runtime.holds import AccountHolds
from backchannel.runtime.supervisor import CLOSE_LIMIT_S, DatabaseWait
from backchannel.service import Reactions, Service
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

T = TypeVar("T")

DOWN_AFTER = 3
"""A channel is down when this many attempts to send in a row got no answer."""
_LONGEST_ERROR = 300


Settled = Callable[[DeliveryLane], Awaitable[None]]


class ChannelOutlets:
    """Where deliveries can go, from the channels of this process and the send policy."""

    def __init__(self, channels: Channels, guard: SendGuard) -> None:
        self._channels = channels
        self._guard = guard

    @property
    def names(self) -> Sequence[str]:
        return list(self._channels)

    @property
    def owners(self) -> Sequence[tuple[str, str]]:
        return [(name, owner) for name, channel in self._channels.items() for owner in channel.settings.owners]

    def limit(self, channel: str) -> int | None:
        return self._channels.text_limit(channel)

    def measure(self, channel: str) -> Measure:
        found = self._channels.get(channel)
        return len if found is None or type(found).text_length is Channel.text_length else found.text_length

    def streams(self, channel: str) -> bool:
        found = self._channels.get(channel)
        return found is not None and found.streams

    def file_limit(self, channel: str) -> int:
        found = self._channels.get(channel)
        return 0 if found is None else file_limit(found)

    def has_buttons(self, channel: str) -> bool:
        found = self._channels.get(channel)
        return found is not None and found.has_buttons

    def recourse(self, channel: str) -> Recourse:
        found = self._channels.get(channel)
        if found is None:
            return NO_RECOURSE
        lives_s = found.key_lives_s
        return Recourse(
            takes_key=found.takes_key,
            key_lives_ms=None if lives_s is None else round(lives_s * 1000),
            can_find=can_find(found),
            find_after_ms=round(found.find_after_s * 1000),
        )

    def decide(self, key: str, override: str | None, channel: str) -> SendDecision:
        return self._guard.decide_delivery(key, override, channel)


class _InARow(NamedTuple):
    """How many attempts to send over a channel failed one after the other, with the last error."""

    attempts: int
    error: str
    since_ms: int


class SendFailure(NamedTuple):
    """What kept messages from getting through, and when it did so last."""

    error: str
    at_ms: int


class Reach:
    """Which channels can be reached, by their last attempts. A refusal is an answer: such a channel is up."""

    def __init__(self) -> None:
        self._failures: dict[str, _InARow] = {}
        self.last: dict[str, SendFailure] = {}
        """Why channels were down last, also those that are up again."""

    @property
    def down(self) -> dict[str, str]:
        """The channels over which nothing gets through, each with the last error."""
        return {name: failed.error for name, failed in self._failures.items() if failed.attempts >= DOWN_AFTER}

    def down_since(self, channel: str) -> int:
        """When the first of the attempts failed that make a channel count as down, in milliseconds since 1970."""
        return self._failures[channel].since_ms

    def note(self, channel: str, answer: Sent | ChannelError, now_ms: int) -> None:
        """Count an attempt."""
        count, _, since_ms = self._failures.pop(channel, _InARow(0, "", now_ms))
        if isinstance(answer, Sent | ChannelRefused | ChannelMoved):
            if count >= DOWN_AFTER:
                log.info("a channel is up again", channel=channel)
            return
        error = answer.reason[:_LONGEST_ERROR]
        self._failures[channel] = _InARow(count + 1, error, since_ms)
        if count + 1 >= DOWN_AFTER:
            self.last[channel] = SendFailure(error, now_ms)
        if count + 1 == DOWN_AFTER:
            log.warning("a channel is down", channel=channel, attempts=DOWN_AFTER, error=error)


class Outbox(Service):
    """Sends deliveries through their channels."""

    name = "outbox"

    def __init__(
        self,
        store: Store,
        channels: Channels,
        clock: Clock,
        holds: AccountHolds,
        settled: Settled,
        wait: DatabaseWait,
        duties: Duties,
        media: Media,
    ) -> None:
        """Make it; `settled` waits for drafts that are on their way to a chat."""
        self._sends_over = duties.sends_over
        self._media = media
        self._store = store
        self._wait = wait
        self._settled = settled
        self._holds = holds
        self._channels = channels
        self._clock = clock
        self.reach = Reach()
        self._workers: dict[DeliveryLane, asyncio.Task[None]] = {}
        self._again: set[DeliveryLane] = set()
        """Lanes that were woken while their worker may already have looked for the last time."""
        self._faults: set[tuple[str, type[Exception]]] = set()
        """Faults whose traceback was logged."""
        self._is_open = False
        self._closing = asyncio.Event()

    async def start(self) -> None:
        """Go on with what is in line."""
        await self.recover()
        self._holds.restore(await self._store.account_holds())
        self._is_open = True
        self._closing.clear()
        for lane in await self._store.lanes_in_line():
            self.wake(lane)

    def reactions(self) -> Reactions:
        return {DeliveryChanged: self.on_delivery, AccountHeld: self.on_held}

    async def halt(self) -> None:
        await self._stop(0)

    async def close(self) -> None:
        """Stop sending; a part on its way is waited for, what is left goes on at the next start."""
        await self._stop(CLOSE_LIMIT_S)

    async def recover(self) -> None:
        """Decide on what was being sent by processes that have ended."""
        await self._store.recover_deliveries()

    def on_held(self, fact: AccountHeld) -> None:
        """React to a commit: an account has to wait."""
        self._holds.on_held(fact)

    def on_delivery(self, fact: DeliveryChanged) -> None:
        """React to a commit: something new is in line, to be sent at once."""
        if fact.delivery.state is DeliveryState.PENDING and fact.delivery.due_at is None:
            lane = fact.delivery.lane
            if lane is not None:
                self.wake(lane)

    async def _stop(self, limit_s: float) -> None:
        self._is_open = False
        self._closing.set()
        left: set[asyncio.Task[None]] = set(self._workers.values())
        if left and not self._store.is_closed:
            _, left = await asyncio.wait(left, timeout=limit_s)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def wake(self, lane: DeliveryLane) -> None:
        """Have a lane looked at: the first in line may be sent now."""
        if not self._is_open or not self._sends_over(lane.channel):
            return
        if lane in self._workers:
            self._again.add(lane)
            return
        worker = self._workers[lane] = asyncio.create_task(self._work(lane), name=f"outbox {lane.channel}")
        worker.add_done_callback(lambda done: self._ended(lane, done))

    def _ended(self, lane: DeliveryLane, done: asyncio.Task[None]) -> None:
        del self._workers[lane]
        error = None if done.cancelled() else done.exception()
        if isinstance(error, FenceLost):
            return  # whoever has the lease now decides on the part
        if error is not None:
            log.error("the outbox failed", channel=lane.channel, exc_info=error)
        elif lane in self._again:
            self._again.discard(lane)
            self.wake(lane)

    async def _work(self, lane: DeliveryLane) -> None:
        """Send what a lane has, until its next part has to wait."""
        while self._is_open:
            self._again.discard(lane)
            await self._settled(lane)
            if (held_s := self._holds.left_s(lane.channel, lane.account_id)) > 0:
                await sleep_or_event(self._clock, held_s, self._closing)
                continue
            claimed = await self._commit(lane.channel, partial(self._store.claim_part, lane))
            if claimed is None:
                return
            if claimed.part.draft_id is not None:
                # Its run may have ended only just before the claim, with a draft on its way that nobody waited for yet.
                await self._settled(lane)
            self._store.check_lease()
            answer = await (self._find(claimed) if claimed.asks else self._send(claimed))
            self.reach.note(lane.channel, answer, self._clock.now_ms())
            await self._commit(lane.channel, partial(self._store.settle_part, claimed.part, answer))

    async def _send(self, claimed: PartClaimed) -> Sent | ChannelError:
        channel = self._channels[claimed.delivery.channel or ""]
        answer = await self._called(claimed, channel.send)
        return ChannelSilent("the channel gave no answer") if answer is None else answer

    async def _find(self, claimed: PartClaimed) -> Sent | ChannelError:
        """Ask whether a part is there that may have arrived, and send it if it is not."""
        answer = await self._called(claimed, self._channels[claimed.delivery.channel or ""].find)
        if answer is None:
            self._store.check_lease()
            return await self._send(claimed)
        return DoubtStays(answer) if isinstance(answer, ChannelError) else answer

    async def _called(
        self, claimed: PartClaimed, call: Callable[[OutboundPart], Awaitable[Sent | None]]
    ) -> Sent | ChannelError | None:
        delivery, part = claimed.delivery, claimed.part
        try:
            return await call(_outbound(claimed, await self._file(claimed)))
        except ChannelError as error:
            log.info("a part was not sent", delivery=delivery.id, key=part.key, error=error.reason)
            return error
        except Exception as error:  # noqa: BLE001  # the edge of a channel: it is not known what arrived; it is logged
            self._log_fault("a channel failed", delivery.channel or "", error)
            return ChannelSilent(f"the channel failed: {_words(error)}")

    async def _file(self, claimed: PartClaimed) -> OutboundFile | None:
        """Load the file of a part."""
        if (copy := claimed.file) is None:
            return None
        content = await self._media.load(copy.file, MAX_FILE_BYTES)
        if content is None:
            raise ChannelRefused("its copy is not there any more")
        return OutboundFile(name=copy.name, mime_type=copy.mime_type, content=content)

    async def _commit(self, channel: str, unit: Callable[[], Awaitable[T]]) -> T:
        """Commit a step of a lane, and retry until it is done: it must not be lost, nor the lane stand still."""
        return await self._wait.durably(unit, partial(self._log_fault, "the outbox failed", channel))

    def _log_fault(self, what: str, channel: str, error: Exception) -> None:
        """Log a fault: its traceback once, since it comes again with every attempt."""
        is_new = (channel, type(error)) not in self._faults
        self._faults.add((channel, type(error)))
        log.error(what, channel=channel, error=_words(error), exc_info=error if is_new else None)


def _outbound(claimed: PartClaimed, file: OutboundFile | None) -> OutboundPart:
    delivery, part = claimed.delivery, claimed.part
    return OutboundPart(
        delivery_id=delivery.id,
        key=part.key,
        to=delivery.target or "",
        text=part.text,
        account_id=delivery.account_id,
        thread_id=delivery.thread_id,
        reply_to=delivery.quotes if part.n == 1 else None,
        draft_id=part.draft_id,
        buttons=claimed.buttons,
        file=file,
    )


def _words(error: Exception) -> str:
    """Name a fault; what an import lacks is no secret, what others say may be one."""
    return f"{type(error).__name__}: {error}" if isinstance(error, ImportError) else type(error).__name__
