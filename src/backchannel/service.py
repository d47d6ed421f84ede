"""Services: parts with a life of their own, and the loop that keeps them going.

Every layer above `core` may use this. `runtime/supervisor.py` starts, halts and closes services.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import structs

from backchannel.core.contracts import Clock
from backchannel.core.supervision import Backoff, ServiceHealth
from backchannel.errors import FenceLost

log = structlog.get_logger(__name__)

_LONGEST_ERROR = 300

Reactions = Mapping[type, Callable[[Any], None]]
"""What is called after a commit, by the type of the fact."""


class Service:
    """A part with a life of its own. What it does not need, it inherits."""

    name: str = ""
    """Its name in `status` and metrics; without one it is not shown there."""
    kept: Sequence[SupervisedLoop] = ()
    """What it keeps going; without any, it is up from its start to its end."""

    async def start(self) -> None:
        """Recover from rows, then work; also after `halt`."""

    async def halt(self) -> None:
        """Drop all work, and commit nothing: others may have taken it over."""

    async def close(self) -> None:
        """Stop for good; what was accepted goes on at the next start."""

    def reactions(self) -> Reactions:
        """Name what it does about commits of this process."""
        return {}

    def health(self) -> Mapping[str, ServiceHealth]:
        """Describe what it keeps going, by name."""
        return {kept.name: kept.health for kept in self.kept}


class SupervisedLoop:
    """One thing that is kept going: started again after each failure, after pauses that grow."""

    def __init__(self, name: str, clock: Clock, backoff: Backoff, *, is_up: bool = True) -> None:
        self.name = name
        self.failures = 0
        """How often it failed in a row; it counts anew once it was up for `backoff.steady_s`."""
        self.retry_at: float | None = None
        """When it is tried again, by the monotonic clock; None while it is not waiting for that."""
        self.health = ServiceHealth(is_up=is_up, since_ms=clock.now_ms())
        self._clock = clock
        self._backoff = backoff
        self._up_at = clock.monotonic() if is_up else None

    async def keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work until it returns or is cancelled. After a failure, pause and do it again."""
        while True:
            try:
                await work()
            except FenceLost:
                return  # the store is closed: the next start goes on
            except Exception as error:  # noqa: BLE001 - the edge that keeps a service going: it is logged
                await self._pause_after(error)
            else:
                return

    async def _pause_after(self, error: Exception) -> None:
        was_up_s = -1.0 if self._up_at is None else self._clock.monotonic() - self._up_at
        self._up_at = None
        self.failures = 1 if was_up_s >= self._backoff.steady_s else self.failures + 1
        pause_s = self.pause_after(error, self._backoff.pause_s(self.failures))
        self.retry_at = self._clock.monotonic() + pause_s
        self.health = structs.replace(self.health, next_try_ms=self._clock.now_ms() + round(pause_s * 1000))
        await self._clock.sleep(pause_s)
        self.retry_at, self.health = None, structs.replace(self.health, next_try_ms=None)

    def pause_after(self, error: Exception, pause_s: float) -> float:
        """Log a failure, its traceback once; returns the pause to make, which is the one given unless changed."""
        is_first = self.failures == 1
        shown = f"{type(error).__name__}: {error}"
        log.error("a service failed", service=self.name, error=shown, exc_info=error if is_first else None)
        self.fell(shown)
        return pause_s

    def fell(self, error: str) -> None:
        """Record that it is down."""
        now = self._clock.now_ms()
        since = now if self.health.is_up else self.health.since_ms
        self.health = structs.replace(
            self.health, is_up=False, since_ms=since, error=error[:_LONGEST_ERROR], error_at_ms=now
        )

    def recovered(self) -> None:
        """Record that it works."""
        if self._up_at is None:
            self._up_at = self._clock.monotonic()
        if not self.health.is_up:
            self.health = structs.replace(self.health, is_up=True, since_ms=self._clock.now_ms(), next_try_ms=None)

    def noted(self, error: str | None) -> None:
        """Record the last failure of something that goes on all the same; None: the last time it worked."""
        at = None if error is None else self._clock.now_ms()
        self.health = structs.replace(self.health, error=error and error[:_LONGEST_ERROR], error_at_ms=at)
