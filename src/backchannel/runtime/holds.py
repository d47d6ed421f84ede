"""Holds on accounts: a limit on an account holds in all its chats."""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.contracts import Clock
from backchannel.core.facts import AccountHeld


class AccountHolds:
    """Until when nothing goes out by an account; the rows say the same, so that it holds after a restart."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[str, str], float] = {}

    def on_held(self, fact: AccountHeld) -> None:
        """React to a commit: an account has to wait."""
        self._until[fact.channel, fact.account_id] = self._clock.monotonic() + fact.wait_ms / 1000

    def restore(self, held: Sequence[AccountHeld]) -> None:
        """Go on waiting for what an earlier process was asked."""
        for fact in held:
            self.on_held(fact)

    def left_s(self, channel: str, account_id: str) -> float:
        """Tell how long an account still has to wait."""
        until = self._until.get((channel, account_id))
        if until is None:
            return 0.0
        left_s = until - self._clock.monotonic()
        if left_s <= 0:
            del self._until[channel, account_id]
        return max(0.0, left_s)
