"""Devices: pages that stay logged in, each by a device token and a key's signature.

A device token is made from the token that somebody logged in with, its parent, and ends with its parent. The same
device and the same parent give the same token until it ends. So several tabs of a browser share one token, even if each
logged in by hand.
"""

from __future__ import annotations

import msgspec

DEVICE_LIFE_MS = 30 * 24 * 3600 * 1000
"""How long a device token counts after it was made or used last."""
USED_MS = 3600 * 1000
"""How exactly it is known when that was: not every connection shall write."""
MOST_OF_ONE = 100
"""How many devices are remembered of one token; those that came last stay."""
SIGNED_MS = 5 * 60 * 1000
"""How far the time of a signature may be from the gateway's: the nonce is what makes it count once."""

_OF_OPERATOR = "operator:"


def operators_parent(mark: str) -> str:
    """Name the operator's token as a parent: by a mark, since it has no row, and another may be configured any day."""
    return _OF_OPERATOR + mark


class DeviceToken(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A device token as it is kept; `digest` is the SHA-256 of the token itself."""

    id: str
    digest: str
    salt: str
    device_id: str
    public_key: str
    parent: str
    scopes: str
    client: str
    platform: str
    origin: str
    created_at: int
    used_at: int

    @property
    def is_of_operator(self) -> bool:
        """Whether it was made from the operator's token, this gateway's or another."""
        return self.parent.startswith(_OF_OPERATOR)

    @property
    def ends_at(self) -> int:
        return self.used_at + DEVICE_LIFE_MS

    def is_over(self, now: int) -> bool:
        """Whether it was not used for too long; a time far ahead is that of a wrong clock."""
        return abs(now - self.used_at) >= DEVICE_LIFE_MS

    def is_use_news(self, now: int) -> bool:
        """Whether that it is used now has to be written."""
        return abs(now - self.used_at) >= USED_MS

    def is_that_of(self, offered: DeviceToken, digest: str, now: int) -> bool:
        """Whether it can stay instead of one that is offered, and whose token would have this digest with its salt."""
        return self.digest == digest and self.scopes == offered.scopes and not self.is_over(now)
