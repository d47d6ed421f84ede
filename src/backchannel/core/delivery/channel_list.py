"""The one list of the channels of a gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from backchannel.core.delivery.channels import Channel, channel_name_problem, no_channel
from backchannel.core.sessions import WEBCHAT
from backchannel.errors import UnknownChannel


class Channels(Mapping[str, Channel]):
    """The channels of a gateway, by name."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}

    def __getitem__(self, name: str) -> Channel:
        return self._channels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._channels))

    def __len__(self) -> int:
        return len(self._channels)

    def add(self, channel: Channel) -> None:
        """Add a channel; one that has the same name is replaced.

        Raises:
            ValueError: it cannot have this name.
        """
        if problem := channel_name_problem(channel.name):
            raise ValueError(f"{channel.name[:64]!r}: {problem}")
        self._channels[channel.name] = channel

    def check(self, name: str, *, with_webchat: bool = False) -> None:
        """Refuse a name that no channel has.

        Raises:
            UnknownChannel: the message lists those there are.
        """
        if name in self._channels or (with_webchat and name == WEBCHAT.channel):
            return
        there = [WEBCHAT.channel, *self] if with_webchat else list(self)
        hint = "chat.inject writes to webchat; " if name == WEBCHAT.channel else ""
        raise UnknownChannel(no_channel(name, there, hint), channel=name[:64])

    def text_limit(self, name: str) -> int | None:
        """How long a message on a channel may be; None if there is no such channel."""
        if name == WEBCHAT.channel:
            return sys.maxsize  # it shows the transcript, where a message is never split
        channel = self._channels.get(name)
        return None if channel is None else channel.max_text_length
