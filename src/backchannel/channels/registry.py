"""The channels of a configuration: made, started with the gateway, kept going, and stopped.

A new platform is a folder here with an `adapter.py` (`core/adapters.py`); nothing else names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import structlog

from backchannel.channels.keeping import SupervisedConnection
from backchannel.config.adapters import (
    CHANNELS,
    AdapterUnusable,
    UnusableChannelSettings,
    adapter_of,
    why_missing,
)
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.delivery.channels import (
    Channel,
    ChannelBusy,
    ChannelHealth,
    ChannelSettings,
    ChannelUnusable,
    InboundTaker,
    OutboundPart,
    Sent,
    has_connection,
)
from backchannel.core.supervision import ServiceHealth
from backchannel.runtime.cluster.duties import Duties
from backchannel.service import Service

log = structlog.get_logger(__name__)

MakeTaker: TypeAlias = Callable[[str, Callable[[], None]], InboundTaker]


def configured_channels(settings: Mapping[str, ChannelSettings], clock: Clock) -> Channels:
    """Make the channels of a configuration. One whose package fails is down, and the others work."""
    channels = Channels()
    for name, own in settings.items():
        channels.add(_made(name, own, clock))
    return channels


def _made(name: str, settings: ChannelSettings, clock: Clock) -> Channel:
    if isinstance(settings, UnusableChannelSettings):
        return UnusableChannel(name, settings, settings.problem)
    adapter = adapter_of(settings)
    if adapter is None:
        raise ValueError(f"{type(settings).__name__}: the settings of a configured channel name its adapter")
    try:
        channel = CHANNELS.make(adapter, name, settings, clock)
    except AdapterUnusable as unusable:
        return UnusableChannel(name, settings, unusable.reason)
    if not isinstance(channel, Channel):
        return UnusableChannel(name, settings, f"{adapter.make} makes no backchannel.Channel")
    return channel


def why_no_channel(settings: ChannelSettings) -> str | None:
    """Say why a channel with these settings cannot work here; None: it can."""
    adapter = adapter_of(settings)
    return None if adapter is None else why_missing(adapter)


class UnusableChannel(Channel):
    """A channel whose package fails. What is to be sent waits until the package works."""

    def __init__(self, name: str, settings: ChannelSettings, reason: str) -> None:
        self.name = name
        self.settings = settings
        self._reason = reason

    async def run(self, inbound: InboundTaker) -> None:
        """Tell why nothing comes in."""
        raise ChannelUnusable(self._reason, remedy="repair the package")

    async def test(self) -> str:
        """Tell why it does not work."""
        raise ChannelUnusable(self._reason)

    async def send(self, part: OutboundPart) -> Sent:
        """Send nothing now."""
        raise ChannelBusy(self._reason)


async def close_channels(channels: Channels) -> None:
    """Close the connections of all channels; one that fails is logged and keeps no other from it."""
    for channel in channels.values():
        try:
            if (closing := channel.close()) is not None:
                await closing
        except Exception:  # the edge of a channel: the gateway stops all the same
            log.exception("a channel could not be closed", channel=channel.name)


class ChannelKeeper(Service):
    """Runs the channels, restarts those that fail, and keeps their health."""

    name = "channels"

    def __init__(self, channels: Channels, taker: MakeTaker, clock: Clock, duties: Duties) -> None:
        """Make it; `taker` gives what the channel of a name hands in to, and calls back after each."""
        self._channels = channels
        self._taker = taker
        self._clock = clock
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._kept: dict[str, SupervisedConnection] = {}
        self._is_open = False
        self._duties = duties
        duties.listen(self._duties_changed)

    def _duties_changed(self) -> None:
        """Start what has become ours, and stop what no longer is."""
        for channel in self._channels.values() if self._is_open else ():
            if has_connection(channel) and (channel.name in self._loops) is not self._duties.has(channel):
                self.add(channel)

    async def start(self) -> None:
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
        if has_connection(channel) and self._duties.has(channel):
            keeping = kept.connect(partial(channel.run, self._taker(channel.name, kept.recovered)))
            self._loops[channel.name] = asyncio.create_task(keeping, name=f"channel {channel.name}")

    async def close(self) -> None:
        """Cancel what runs. An event that was being handed in is committed, or was not taken."""
        self._is_open = False
        loops = list(self._loops.values())
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        self._loops.clear()

    def health(self) -> Mapping[str, ServiceHealth]:
        return {f"channel:{name}": self.health_of(name) for name in self._channels if name in self._kept}

    def health_of(self, name: str) -> ChannelHealth:
        """The health of a channel: what it reports itself, else whether its `run` goes on."""
        return self._channels[name].health() or self._kept[name].health

    def down(self) -> dict[str, str]:
        """Name the channels that are down, each with the last error; one that is connecting is not yet."""
        found = ((name, self.health_of(name)) for name in self._channels if name in self._kept)
        down = ((name, health) for name, health in found if not health.is_up and not health.is_connecting)
        return {name: health.error or "it is not connected" for name, health in down}
