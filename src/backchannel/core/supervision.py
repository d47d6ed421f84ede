"""Back-off and health of what is kept going: channels, MCP servers, timers and other services."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Backoff(NamedTuple):
    """Pauses between tries: the first pause, twice as long after each failure, up to the longest."""

    first_s: float
    longest_s: float
    steady_s: float = 0.0
    """How long something must have been up for its next failure to count as the first."""

    def pause_s(self, failures: int) -> float:
        """Give the pause after this many failures in a row."""
        return min(self.first_s * 2.0 ** min(max(0, failures - 1), 60), self.longest_s)


class ServiceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of something that is kept going."""

    is_up: bool
    since_ms: int
    """Since when it has been up, or down."""
    error: str | None = None
    """What went wrong last, without secrets; it is kept when the service is up again."""
    error_at_ms: int | None = None
    """When that was."""
    next_try_ms: int | None = None
    """When it is tried again, while it is down and waits for that."""
