"""The channels of a configuration: made, started with the gateway, kept going, and stopped.

A new platform is a file, or a folder, with a `Channel`, its settings in `config/schema_doors.py`, and a line in
`ADAPTERS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import structlog

from backchannel.channels.bridge.channel import Bridge
from backchannel.channels.keeping import SupervisedConnection
from backchannel.channels.telegram.channel import TelegramChannel, not_installed
from backchannel.config.schema_doors import BridgeSettings, TelegramSettings
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import Channel, ChannelHealth, Channels, ChannelSettings, InboundTaker

log = structlog.get_logger(__name__)

ADAPTERS: Mapping[type[ChannelSettings], Callable[[str, Any, Clock], Channel]] = {
    BridgeSettings: Bridge,
    TelegramSettings: TelegramChannel,
}
"""Which channel each kind of settings is for."""


def configured_channels(settings: Mapping[str, ChannelSettings], clock: Clock) -> Channels:
    """Make the channels of a configuration."""
    channels = Channels()
    for name, own in settings.items():
        channels.add(ADAPTERS[type(own)](name, own, clock))
    return channels


def why_no_channel(settings: ChannelSettings) -> str | None:
    """Say why a channel with these settings cannot work here; None: it can."""
    if isinstance(settings, TelegramSettings) and find_spec("aiogram") is None:
        return not_installed("aiogram")
    return None


async def close_channels(channels: Channels) -> None:
    """Close the connections of all channels; one that fails is logged and keeps no other from it."""
    for channel in channels.values():
        try:
            if (closing := channel.close()) is not None:
                await closing
        except Exception:  # the edge of a channel: the gateway stops all the same
            log.exception("a channel could not be closed", channel=channel.name)


class ChannelKeeper:
    """Runs the channels, restarts those that fail, and keeps their health."""

    def __init__(self, channels: Channels, taker: Callable[[str], InboundTaker], clock: Clock) -> None:
        """Make it; `taker` gives what the channel of a name hands in to."""
        self._channels = channels
        self._taker = taker
        self._clock = clock
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._kept: dict[str, SupervisedConnection] = {}
        self._is_open = False
        self.is_ours: Callable[[Channel], bool] = lambda channel: True
        """Whether this process keeps the connection of a channel: one of all that work on a database does."""

    def with_connection(self) -> list[str]:
        """Name the channels that keep a connection."""
        return [channel.name for channel in self._channels.values() if type(channel).run is not Channel.run]

    def duties_changed(self) -> None:
        """Start what has become ours, and stop what no longer is."""
        for name in self.with_connection() if self._is_open else ():
            is_kept = name in self._loops
            if is_kept is not self.is_ours(self._channels[name]):
                self.add(self._channels[name])

    def start(self) -> None:
        """Start every channel that has something to do by itself."""
        self._is_open = True
        for channel in self._channels.values():
            self.add(channel)

    def add(self, channel: Channel) -> None:
        """Start one channel, if the others are started; another of its name is stopped."""
        if not self._is_open:
            return
        kept = self._kept[channel.name] = SupervisedConnection(channel.name, self._clock)
        if (before := self._loops.pop(channel.name, None)) is not None:
            before.cancel()
        if type(channel).run is not Channel.run and self.is_ours(channel):
            keeping = kept.keep(channel.run, self._taker(channel.name))
            self._loops[channel.name] = asyncio.create_task(keeping, name=f"channel {channel.name}")

    async def stop(self) -> None:
        """Cancel what runs. An event that was being handed in is committed, or was not taken."""
        self._is_open = False
        loops = list(self._loops.values())
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        self._loops.clear()

    def health(self, name: str) -> ChannelHealth:
        """The health of a channel: what it reports itself, else whether its `run` goes on."""
        return self._channels[name].health() or self._kept[name].health

    def down(self) -> dict[str, str]:
        """Name the channels that are down, each with the last error; one that is connecting is not yet."""
        found = ((name, self.health(name)) for name in self._channels if name in self._kept)
        down = ((name, health) for name, health in found if not health.is_up and not health.is_connecting)
        return {name: health.error or "it is not connected" for name, health in down}
