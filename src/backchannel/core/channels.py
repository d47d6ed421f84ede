"""What the outbox asks of a channel: it hands over one part of a delivery, and hears what became of it.

A channel answers a part in one of four ways, and they must be told apart, for the receipt is made of them:
`Sent` (the platform took it), `ChannelRefused` (it did not, and never will), `ChannelBusy` (it did not, and may
later), `ChannelSilent` (nobody knows). A channel that is in doubt says `ChannelSilent`: that is never wrong, while a
wrong `ChannelBusy` may post a message twice. `core/delivery.py` decides what follows.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import msgspec

DEFAULT_ACCOUNT = "default"
"""The account of a channel that has only one."""


class OutboundPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a delivery, ready to be sent."""

    delivery_id: str
    key: str
    """Its idempotency key, the same however often it is sent."""
    to: str
    """The chat, as the channel wrote it."""
    text: str
    account_id: str | None = None
    thread_id: str | None = None


class Sent(msgspec.Struct, frozen=True):
    """The platform took the part."""

    message_id: str | None = None
    """Its own id of the message, where it gives one."""


class ChannelError(Exception):
    """A part was not sent, or perhaps not; `reason` is the channel's own words, without secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChannelRefused(ChannelError):
    """The platform did not take the part, and would not take it again: no such chat, bad token."""


class ChannelBusy(ChannelError):
    """The platform surely did not take the part, and may later: a rate limit, no connection at all."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class ChannelSilent(ChannelError):
    """Nobody knows whether the platform took the part: no answer, a broken one, a fault at its end."""


class Channel(Protocol):
    """A way to one platform."""

    @property
    def name(self) -> str:
        """Its name in settings, keys and addresses."""
        ...

    @property
    def max_text_length(self) -> int:
        """How many characters one message may have; longer texts are sent in parts."""
        ...

    @property
    def takes_key(self) -> bool:
        """Whether a part may safely be sent twice: the platform knows its key, or `send` first asks for it."""
        ...

    def send(self, part: OutboundPart) -> Awaitable[Sent]:
        """Hand a part to the platform.

        Raises:
            ChannelRefused: it did not take the part, and would not take it again.
            ChannelBusy: it did not take the part, and may later.
            ChannelSilent: it is not known whether it took the part.
        """
        ...
