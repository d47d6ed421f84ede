"""Connections of channels: each is restarted after a failure, with a growing pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog
from msgspec import structs

from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import (
    ChannelBusy,
    ChannelError,
    ChannelHealth,
    ChannelUnusable,
    InboundAnswer,
    InboundEvent,
    InboundTaker,
    IncomingFile,
)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
LONGEST_ASKED_S = 3600.0
"""How long a platform may ask for at most that it is left alone."""
STEADY_AFTER_S = 10.0
"""What failed is up again when it has run for so long, or handed something in."""

_LONGEST_ERROR = 300


class SupervisedConnection:
    """One connection: that of a channel, or of one of its accounts."""

    def __init__(self, channel: str, clock: Clock, account_id: str | None = None, *, tells: bool = False) -> None:
        """Make it; with `tells` it is connecting until `answered` or `recovered` is called, else up from the start."""
        self._channel = channel
        self._tells = tells
        self._steady: asyncio.TimerHandle | None = None
        self._clock = clock
        about = {"channel": channel} if account_id is None else {"channel": channel, "account": account_id}
        self._log = structlog.get_logger(__name__, **about)  # not bound: the logs may be configured later than this
        self.health = ChannelHealth(is_up=not tells, is_connecting=tells, since_ms=clock.now_ms())

    async def keep(self, run: Callable[[InboundTaker], Awaitable[None] | None], taker: InboundTaker) -> None:
        """Run it, and start it again when it fails, until it ends by itself or is cancelled."""
        pause_s, watched = _FIRST_PAUSE_S, _Watched(taker, self.recovered)
        while True:
            asked_s = 0.0
            if not self._tells:
                self.answered()
            try:
                if (running := run(watched)) is not None:
                    await running
                return
            except ChannelUnusable as refused:
                pause_s = _LONGEST_PAUSE_S  # sooner would change nothing, and may count as guessing
                self._refused(refused.reason[:_LONGEST_ERROR], refused.remedy)
            except Exception as error:  # noqa: BLE001  # the edge of a channel: it is logged and started again
                if self.health.is_up:
                    pause_s = _FIRST_PAUSE_S
                asked_s = (error.retry_after_s or 0.0) if isinstance(error, ChannelBusy) else 0.0
                self._failed(error)
            finally:
                if self._steady is not None:
                    self._steady.cancel()
            await self._clock.sleep(max(pause_s, min(asked_s, LONGEST_ASKED_S)))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def answered(self) -> None:
        """Take down that the platform is there: what was connecting is up; what failed is, if it holds for a while."""
        if self.health.is_connecting:
            self.recovered()
        if self._steady is not None:
            self._steady.cancel()
        self._steady = asyncio.get_running_loop().call_later(STEADY_AFTER_S, self.recovered)

    def recovered(self) -> None:
        """Take down that it works."""
        if not self.health.is_up:
            if not self.health.is_connecting:
                self._log.info("a channel is up again")
            self.health = structs.replace(
                self.health, is_up=True, is_connecting=False, is_usable=True, since_ms=self._clock.now_ms()
            )

    def troubled(self, reason: str) -> None:
        """Take down what went wrong with one message, while all others go on."""
        self.health = structs.replace(self.health, error=reason[:_LONGEST_ERROR], error_at_ms=self._clock.now_ms())

    def _failed(self, error: Exception) -> None:
        """Log a failure: its traceback once, until it was up again."""
        if isinstance(error, ChannelError):  # its reason says all, and no line of ours is to blame
            shown, traced = error.reason, None
        else:
            is_first = self.health.is_up or self.health.is_connecting
            shown, traced = f"{type(error).__name__}: {error}", error if is_first else None
        self._log.error("a channel failed", error=shown[:_LONGEST_ERROR], exc_info=traced)
        self._set_down(shown[:_LONGEST_ERROR])

    def _refused(self, reason: str, remedy: str | None) -> None:
        """Log that it cannot be used: once for each reason, since it is tried for ever."""
        if self.health.is_usable or self.health.error != reason:
            remedy = remedy or f"correct channels.{self._channel}"
            hint = f"{remedy} and restart the gateway; everything else works"
            self._log.error("a channel cannot be used", error=reason, hint=hint)
        self._set_down(reason, is_usable=False)

    def _set_down(self, error: str, *, is_usable: bool = True) -> None:
        now = self._clock.now_ms()
        since = now if self.health.is_up else self.health.since_ms
        self.health = ChannelHealth(is_up=False, since_ms=since, error=error, error_at_ms=now, is_usable=is_usable)


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
