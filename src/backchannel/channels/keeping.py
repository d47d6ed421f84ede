"""Connections of channels: each is restarted after a failure, with a growing pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from msgspec import structs

from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import (
    ChannelBusy,
    ChannelError,
    ChannelHealth,
    ChannelUnusable,
)
from backchannel.core.supervision import Backoff
from backchannel.service import SupervisedLoop

_BACKOFF = Backoff(1.0, 60.0)
_MANY = 60
"""So many failures that the next pauses are the longest, until it was up again."""
LONGEST_ASKED_S = 3600.0
"""How long a platform may ask for at most that it is left alone."""
STEADY_AFTER_S = 10.0
"""What failed is up again when it has run for so long, or handed something in."""
_LONGEST_ERROR = 300


class SupervisedConnection(SupervisedLoop):
    """One connection: that of a channel, or of one of its accounts."""

    health: ChannelHealth

    def __init__(self, channel: str, clock: Clock, account_id: str | None = None, *, tells: bool = False) -> None:
        """Make it; with `tells` it is connecting until `answered` or `recovered` is called, else up from the start."""
        super().__init__(channel, clock, _BACKOFF, is_up=not tells)
        self._tells = tells
        self._steady: asyncio.TimerHandle | None = None
        about = {"channel": channel} if account_id is None else {"channel": channel, "account": account_id}
        self._log = structlog.get_logger(__name__, **about)  # not bound: the logs may be configured later than this
        self.health = ChannelHealth(is_up=not tells, is_connecting=tells, since_ms=clock.now_ms())

    async def connect(self, run: Callable[[], Awaitable[None] | None]) -> None:
        """Run it, and start it again when it fails, until it ends by itself or is cancelled."""

        async def attempt() -> None:
            if not self._tells:
                self.answered()
            try:
                if (running := run()) is not None:
                    await running
            finally:
                if self._steady is not None:
                    self._steady.cancel()

        await self.keep(attempt)

    def pause_after(self, error: Exception, pause_s: float) -> float:
        """Log a failure. A refusal waits longest; a busy platform, as long as it asks."""
        if isinstance(error, ChannelUnusable):
            self._refused(error.reason[:_LONGEST_ERROR], error.remedy)
            self.failures = _MANY
            return _BACKOFF.longest_s  # sooner would change nothing, and may count as guessing
        self._failed(error)
        asked_s = (error.retry_after_s or 0.0) if isinstance(error, ChannelBusy) else 0.0
        return max(pause_s, min(asked_s, LONGEST_ASKED_S))

    def answered(self) -> None:
        """Record that the platform is there: what was connecting is up; what failed is, if it holds for a while."""
        if self.health.is_connecting:
            self.recovered()
        if self._steady is not None:
            self._steady.cancel()
        self._steady = asyncio.get_running_loop().call_later(STEADY_AFTER_S, self.recovered)

    def recovered(self) -> None:
        """Record that it works."""
        if not self.health.is_up and not self.health.is_connecting:
            self._log.info("a channel is up again")
        super().recovered()
        if self.health.is_connecting or not self.health.is_usable:
            self.health = structs.replace(self.health, is_connecting=False, is_usable=True)

    def troubled(self, reason: str) -> None:
        """Record what went wrong with one message, while all others go on."""
        self.health = structs.replace(self.health, error=reason[:_LONGEST_ERROR], error_at_ms=self._clock.now_ms())

    def _failed(self, error: Exception) -> None:
        """Log a failure: its traceback once, until it was up again."""
        if isinstance(error, ChannelError):  # its reason says all, and no line of ours is to blame
            shown, traced = error.reason, None
        else:
            is_first = self.health.is_up or self.health.is_connecting
            shown, traced = f"{type(error).__name__}: {error}", error if is_first else None
        self._log.error("a channel failed", error=shown[:_LONGEST_ERROR], exc_info=traced)
        self._set_down(shown)

    def _refused(self, reason: str, remedy: str | None) -> None:
        """Log that it cannot be used: once for each reason, since it is tried for ever."""
        if self.health.is_usable or self.health.error != reason:
            remedy = remedy or f"correct channels.{self.name}"
            hint = f"{remedy} and restart the gateway; everything else works"
            self._log.error("a channel cannot be used", error=reason, hint=hint)
        self._set_down(reason, is_usable=False)

    def _set_down(self, error: str, *, is_usable: bool = True) -> None:
        self.fell(error)
        self.health = structs.replace(self.health, is_connecting=False, is_usable=is_usable)
