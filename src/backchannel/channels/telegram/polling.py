"""Long polling: updates of Telegram are acknowledged once they are committed.

Asking for updates from a number on acknowledges all before it. So that number moves on only when everything before it
was handed in, or is of no use. The updates of one chat are handed in one after the other, by their numbers. Different
chats go side by side, so slow files of one chat hold up no other. While the first update is not done, Telegram gives
the same ones again, up to a hundred from there on: no more are begun.

An update never ends the polling. An update that cannot be taken now is handed in again for as long as it takes. An
update that a fault of ours blocks is tried a few times and then skipped: it must not hold up all others for ever.

When nothing is left to acknowledge the number is forgotten: after a quiet week Telegram begins to count anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog

from backchannel.channels.telegram.reading import NumberedUpdate, read_number
from backchannel.channels.telegram.wire import ChannelConflict, Wire
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import ChannelBusy, ChannelError, ChannelSilent
from backchannel.core.supervision import Backoff
from backchannel.errors import GatewayError, Unavailable

log = structlog.get_logger(__name__)

WAIT_S = 30
"""How long Telegram keeps a question open when there is nothing new."""
_LOOK_AGAIN_S = 1.0
"""How soon it is asked again while something is not done."""
_BACKOFF = Backoff(1.0, 30.0)

MOST_TRIES = 6
"""How often an update is handed in that a fault of ours keeps from being taken: for half a minute in all."""

HandIn = Callable[[Any], Awaitable[None]]
"""Takes an update as it came; returns when it is committed, or of no use."""


class Poller:
    """Asks for the updates of one bot, and hands them in."""

    def __init__(
        self, wire: Wire, hand_in: HandIn, clock: Clock, connected: Callable[[], None], troubled: Callable[[str], None]
    ) -> None:
        """Make it; `connected` is called after each answer of Telegram, `troubled` when an update is not taken."""
        self._wire = wire
        self._connected = connected
        self._troubled = troubled
        self._hand_in = hand_in
        self._clock = clock
        self._offset: int | None = None
        self._done: dict[int, bool] = {}
        """Whether each update that is not acknowledged is done, by its number."""
        self._last: dict[int | None, asyncio.Task[None]] = {}
        """What is handed in last of each chat."""
        self._progress = asyncio.Event()
        self._unreadable: list[str] = []
        """What is wrong with the updates without a number that came last: Telegram gives them again and again."""

    async def run(self) -> None:
        """Ask and hand in until it is cancelled.

        Raises:
            ChannelError: Telegram cannot be asked.
        """
        has_failed = False
        try:
            while True:
                try:
                    await self._poll()
                    has_failed = False
                except (ChannelBusy, ChannelSilent, ChannelConflict) as error:
                    if has_failed:  # once is nothing: connections that are held for long are cut by all sorts of things
                        raise
                    has_failed = True
                    await self._after(error)
        finally:
            await self._stop()

    async def _poll(self) -> None:
        wait_s = 0 if self._done else WAIT_S
        asked_at = asyncio.get_running_loop().time()
        updates = await self._wire.updates(self._offset, wait_s)
        self._connected()
        numbered = self._numbered(updates)
        for number, raw in numbered:
            self._begin(number, raw)
        if self._done:
            await self._some_progress()
        elif not numbered:
            self._offset = None
            if asyncio.get_running_loop().time() - asked_at < _LOOK_AGAIN_S:
                await self._clock.sleep(_LOOK_AGAIN_S)  # a server that keeps no question open

    def _numbered(self, updates: Sequence[Any]) -> list[tuple[NumberedUpdate, Any]]:
        """Order updates by their numbers. One without could never be acknowledged: it is left out, and logged once."""
        numbered, unreadable = [], []
        for raw in updates:
            try:
                numbered.append((read_number(raw), raw))
            except msgspec.ValidationError as error:
                unreadable.append(str(error))
        if unreadable and unreadable != self._unreadable:
            log.error(
                "updates of Telegram have no number, and are left out", count=len(unreadable), error=unreadable[0]
            )
        self._unreadable = unreadable
        return sorted(numbered, key=lambda pair: pair[0].update_id)

    async def _after(self, error: ChannelError) -> None:
        """Do what helps before it is asked again."""
        if isinstance(error, ChannelConflict) and error.is_webhook:
            log.info("a webhook was set for this bot; it is removed, because the settings have none")
            await self._wire.delete_webhook()
        else:
            asked_s = error.retry_after_s if isinstance(error, ChannelBusy) else None
            await self._clock.sleep(asked_s or _LOOK_AGAIN_S)

    def _begin(self, number: NumberedUpdate, raw: Any) -> None:
        if number.update_id in self._done:
            return
        self._done[number.update_id] = False
        chat = number.chat_id
        task = asyncio.create_task(self._one(number.update_id, raw, self._last.get(chat)))
        self._last[chat] = task
        task.add_done_callback(lambda done: self._ended(chat, done))

    async def _one(self, update_id: int, raw: Any, before: asyncio.Task[None] | None) -> None:
        """Hand in an update when the one before it in its chat is done."""
        if before is not None:
            await asyncio.wait({before})
        await self._until_taken(update_id, raw)
        self._acknowledge(update_id)

    async def _until_taken(self, update_id: int, raw: Any) -> None:
        tries = faults = 0
        while True:
            tries += 1
            pause_s = _BACKOFF.pause_s(tries)
            try:
                await self._hand_in(raw)
                return
            except (Unavailable, ChannelSilent, ChannelBusy) as error:
                log.warning("a message cannot be taken now, and is tried again", error=str(error), pause_s=pause_s)
                self._troubled(f"a message cannot be taken now: {error}")
            except GatewayError as error:
                log.error("a message cannot be taken, and is left out", error=str(error))
                return
            except Exception as error:  # noqa: BLE001  # the edge of a channel: it is logged, and the bot goes on
                faults += 1
                self._troubled(told_of_fault(error, faults, update=update_id))
                if faults == MOST_TRIES:
                    return
            await self._clock.sleep(pause_s)

    def _acknowledge(self, update_id: int) -> None:
        self._done[update_id] = True
        first_open = min((number for number, is_done in self._done.items() if not is_done), default=None)
        settled = [number for number in self._done if first_open is None or number < first_open]
        for number in settled:
            del self._done[number]
        if settled:
            self._offset = max(settled) + 1
        self._progress.set()

    def _ended(self, chat: int | None, task: asyncio.Task[None]) -> None:
        if self._last.get(chat) is task:
            del self._last[chat]

    async def _some_progress(self) -> None:
        """Wait until all is done, or for a moment."""
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                while self._done:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            pass

    async def _stop(self) -> None:
        left = list(self._last.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def told_of_fault(error: Exception, faults: int, **update: object) -> str:
    """Log that a fault of ours keeps an update from being taken, its traceback once; returns what health says of it."""
    shown = f"{type(error).__name__}: {error}"
    if faults == MOST_TRIES:
        log.error("a message cannot be taken because of a fault, and is left out", error=shown, **update)
        return f"a message was left out because of a fault: {shown}"
    if faults == 1:
        log.error("a message cannot be taken because of a fault, and is tried again", exc_info=error, **update)
    return f"a message cannot be taken because of a fault: {shown}"
