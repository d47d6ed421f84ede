"""The channels of a configuration, and the life of every channel: started with the gateway, kept going, stopped.

A new platform is one module with a `Channel`, its settings in `config/schema_doors.py`, and one line in `ADAPTERS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from backchannel.channels.bridge import Bridge
from backchannel.channels.telegram.channel import TelegramChannel
from backchannel.config.schema_doors import BridgeSettings, TelegramSettings
from backchannel.core.channels import (
    Channel,
    ChannelError,
    ChannelHealth,
    Channels,
    ChannelSettings,
    ChannelUnusable,
    InboundAnswer,
    InboundEvent,
    InboundTaker,
    IncomingFile,
)
from backchannel.core.contracts import Clock

log = structlog.get_logger(__name__)

ADAPTERS: Mapping[type[ChannelSettings], Callable[[str, Any, Clock], Channel]] = {
    BridgeSettings: Bridge,
    TelegramSettings: TelegramChannel,
}
"""Which channel each kind of settings is for."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_AFTER_S = 10.0
"""A channel that failed is up again when it has run for so long, or handed something in."""

_LONGEST_ERROR = 300


class _Watched:
    """The taker of a channel; whatever it is handed shows that the channel is up."""

    def __init__(self, taker: InboundTaker, taken: Callable[[], None]) -> None:
        self._taker = taker
        self._taken = taken

    async def __call__(self, event: InboundEvent, files: Sequence[IncomingFile] = ()) -> InboundAnswer:
        answer = await self._taker(event, files)
        self._taken()
        return answer

    async def moved(self, account_id: str, chat_id: str, to: str) -> None:
        await self._taker.moved(account_id, chat_id, to)
        self._taken()


def configured_channels(settings: Mapping[str, ChannelSettings], clock: Clock) -> Channels:
    """Make the channels of a configuration."""
    channels = Channels()
    for name, own in settings.items():
        channels.add(ADAPTERS[type(own)](name, own, clock))
    return channels


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
        self._health: dict[str, ChannelHealth] = {}
        self._is_open = False

    def start(self) -> None:
        """Start every channel that has something to do by itself."""
        self._is_open = True
        for channel in self._channels.values():
            self.add(channel)

    def add(self, channel: Channel) -> None:
        """Start one channel, if the others are started; another of its name is stopped."""
        if not self._is_open:
            return
        self._set_health(channel.name, None)
        if (before := self._loops.pop(channel.name, None)) is not None:
            before.cancel()
        if type(channel).run is not Channel.run:
            self._loops[channel.name] = asyncio.create_task(self._keep(channel), name=f"channel {channel.name}")

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
        return self._channels[name].health() or self._health[name]

    def down(self) -> dict[str, str]:
        """Name the channels that are down, each with the last error."""
        found = ((name, self.health(name)) for name in self._channels if name in self._health)
        return {name: health.error or "it is not connected" for name, health in found if not health.is_up}

    async def _keep(self, channel: Channel) -> None:
        """Run a channel, and start it again when it fails, for as long as the gateway runs."""
        pause_s = FIRST_PAUSE_S
        take = _Watched(self._taker(channel.name), lambda: self._recovered(channel.name))

        while True:
            steady = asyncio.get_running_loop().call_later(STEADY_AFTER_S, self._recovered, channel.name)
            try:
                if (running := channel.run(take)) is not None:
                    await running
                return
            except ChannelUnusable as refused:
                pause_s = LONGEST_PAUSE_S  # sooner would change nothing, and may count as guessing
                self._refused(channel.name, refused.reason[:_LONGEST_ERROR])
            except Exception as error:  # noqa: BLE001  # the edge of a channel: it is logged and started again
                if self._health[channel.name].is_up:
                    pause_s = FIRST_PAUSE_S
                self._failed(channel.name, error)
            finally:
                steady.cancel()
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _failed(self, name: str, error: Exception) -> None:
        """Log a failure: its traceback once, until the channel was up again."""
        if isinstance(error, ChannelError):  # its reason says all, and no line of ours is to blame
            shown, traced = error.reason, None
        else:
            shown, traced = f"{type(error).__name__}: {error}", error if self._health[name].is_up else None
        log.error("a channel failed", channel=name, error=shown[:_LONGEST_ERROR], exc_info=traced)
        self._set_health(name, shown[:_LONGEST_ERROR])

    def _refused(self, name: str, reason: str) -> None:
        """Log that a channel cannot be used: once for each reason, since it is tried for ever."""
        before = self._health[name]
        if before.is_usable or before.error != reason:
            hint = f"correct channels.{name} and restart the gateway; everything else works"
            log.error("a channel cannot be used", channel=name, error=reason, hint=hint)
        self._set_health(name, reason, is_usable=False)

    def _recovered(self, name: str) -> None:
        if not self._health[name].is_up:
            log.info("a channel is up again", channel=name)
            self._set_health(name, None)

    def _set_health(self, name: str, error: str | None, *, is_usable: bool = True) -> None:
        before = self._health.get(name)
        is_up = error is None
        since = before.since_ms if before is not None and before.is_up is is_up else self._clock.now_ms()
        self._health[name] = ChannelHealth(is_up=is_up, since_ms=since, error=error, is_usable=is_usable)
