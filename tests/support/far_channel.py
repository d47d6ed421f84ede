"""A channel without a network, for tests in which only what was taken counts."""

from __future__ import annotations

from typing import Any

from backchannel.core.delivery.channels import Channel, ChannelSettings, OutboundPart, Sent

FAR: dict[str, Any] = {
    "adapter": "bridge",
    "url": "http://127.0.0.1:9/",
    "secret": "a secret of its own",
    "allowFrom": ["*"],
}
"""The settings of a channel; `FarChannel` takes the place of what they lead to."""


class FarChannel(Channel):
    """A platform that takes each key once, however often it is sent."""

    name = "far"
    takes_key = True

    settings = ChannelSettings(allow_from=("*",))

    def __init__(self, max_text_length: int = 1000) -> None:
        self.max_text_length = max_text_length
        self.taken: dict[str, OutboundPart] = {}

    async def send(self, part: OutboundPart) -> Sent:
        self.taken.setdefault(part.key, part)
        return Sent(part.key)
