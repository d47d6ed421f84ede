"""What keeps a connection going: it is started again when it fails, for ever, after pauses that grow; and how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from backchannel.core.channels import (
    ChannelError,
    ChannelHealth,
    ChannelUnusable,
    InboundAnswer,
    InboundEvent,
    InboundTaker,
    IncomingFile,
)
from backchannel.core.contracts import Clock

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_AFTER_S = 10.0
"""What failed is up again when it has run for so long, or handed something in."""

_LONGEST_ERROR = 300


class Kept:
    """One connection: that of a channel, or of one of its accounts."""

    def __init__(self, channel: str, clock: Clock, account_id: str | None = None) -> None:
        self._channel = channel
        self._clock = clock
        self._log = log.bind(channel=channel, **({} if account_id is None else {"account": account_id}))
        self.health = ChannelHealth(is_up=True, since_ms=clock.now_ms())

    async def keep(self, run: Callable[[InboundTaker], Awaitable[None] | None], taker: InboundTaker) -> None:
        """Run it, and start it again when it fails, until it ends by itself or is cancelled."""
        pause_s, watched = FIRST_PAUSE_S, _Watched(taker, self.recovered)
        while True:
            steady = asyncio.get_running_loop().call_later(STEADY_AFTER_S, self.recovered)
            try:
                if (running := run(watched)) is not None:
                    await running
                return
            except ChannelUnusable as refused:
                pause_s = LONGEST_PAUSE_S  # sooner would change nothing, and may count as guessing
                self._refused(refused.reason[:_LONGEST_ERROR])
            except Exception as error:  # noqa: BLE001  # the edge of a channel: it is logged and started again
                if self.health.is_up:
                    pause_s = FIRST_PAUSE_S
                self._failed(error)
            finally:
                steady.cancel()
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def recovered(self) -> None:
        """Take down that it works."""
        if not self.health.is_up:
            self._log.info("a channel is up again")
            self._set_health(None)

    def _failed(self, error: Exception) -> None:
        """Log a failure: its traceback once, until it was up again."""
        if isinstance(error, ChannelError):  # its reason says all, and no line of ours is to blame
            shown, traced = error.reason, None
        else:
            shown, traced = f"{type(error).__name__}: {error}", error if self.health.is_up else None
        self._log.error("a channel failed", error=shown[:_LONGEST_ERROR], exc_info=traced)
        self._set_health(shown[:_LONGEST_ERROR])

    def _refused(self, reason: str) -> None:
        """Log that it cannot be used: once for each reason, since it is tried for ever."""
        if self.health.is_usable or self.health.error != reason:
            hint = f"correct channels.{self._channel} and restart the gateway; everything else works"
            self._log.error("a channel cannot be used", error=reason, hint=hint)
        self._set_health(reason, is_usable=False)

    def _set_health(self, error: str | None, *, is_usable: bool = True) -> None:
        is_up = error is None
        since = self.health.since_ms if self.health.is_up is is_up else self._clock.now_ms()
        self.health = ChannelHealth(is_up=is_up, since_ms=since, error=error, is_usable=is_usable)


class _Watched:
    """The taker of a channel; whatever it is handed shows that the channel is up."""

    def __init__(self, taker: InboundTaker, taken: Callable[[], None]) -> None:
        self._taker = taker
        self._taken = taken

    async def __call__(self, event: InboundEvent, files: Sequence[IncomingFile] = ()) -> InboundAnswer:
        answer = await self._taker(event, files)
        self._taken()
        return answer

    async def moved(self, account_id: str, chat_id: str, to: str) -> None:
        await self._taker.moved(account_id, chat_id, to)
        self._taken()
