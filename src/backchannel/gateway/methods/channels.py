"""Channels: their state, their queue, and testing one."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from backchannel.config.adapters import adapter_name
from backchannel.core.delivery.channels import Channel, ChannelError, ChannelSettings
from backchannel.core.sessions import WEBCHAT
from backchannel.core.text import clean_name
from backchannel.gateway.calls import Call, method
from backchannel.gateway.parts import GatewayParts
from backchannel.wire.answers import ChannelsListed, ChannelTested
from backchannel.wire.frames import NoParams, TokenScope
from backchannel.wire.rows import ChannelSettingsShown, ChannelShown, ChannelState
from backchannel.wire.shapes import Params

log = structlog.get_logger(__name__)

OK, CONNECTING, DOWN = "ok", "connecting", "down"
FAILED, UNTESTED = "failed", "untested"
TEST_S = 20.0
"""The time limit for a platform to answer a test."""
_LONGEST_ANSWER = 300


class ChannelTestParams(Params, frozen=True, kw_only=True):
    name: str


@method("channels.list", TokenScope.READ)
async def channels_list(call: Call, params: NoParams) -> ChannelsListed:
    """Lists the channels, webchat first, with their state and their queue; secrets are never shown."""
    parts, counts = call.parts, await call.parts.store.delivery_counts()
    waiting, failed, uncertain = _counted(counts.get(WEBCHAT.channel, {}))
    webchat = ChannelShown(
        name=WEBCHAT.channel,
        adapter=WEBCHAT.channel,
        status=OK,
        waiting=waiting,
        failed=failed,
        uncertain=uncertain,
    )
    return ChannelsListed(
        channels=[webchat, *(_show(parts, parts.channels[name], counts.get(name, {})) for name in parts.channels)]
    )


@method("channels.test", TokenScope.WRITE)
async def channels_test(call: Call, params: ChannelTestParams) -> ChannelTested:
    """Asks the platform of a channel which account we have there."""
    name = params.name
    call.parts.channels.check(name, with_webchat=True)
    if name == WEBCHAT.channel:
        return ChannelTested(name=name, status=OK, detail="it is built in, and always there")
    try:
        asked = call.parts.channels[name].test()
        if asked is None:
            return ChannelTested(name=name, status=UNTESTED, detail="it can only be tried by sending")
        async with asyncio.timeout(TEST_S):
            told = call.parts.secrets.hide(await asked)
            return ChannelTested(name=name, status=OK, detail=clean_name(told, limit=_LONGEST_ANSWER))
    except TimeoutError:
        return ChannelTested(name=name, status=FAILED, detail=f"it did not answer within {TEST_S:g} s")
    except ChannelError as error:
        return ChannelTested(name=name, status=FAILED, detail=call.parts.secrets.hide(error.reason))
    except Exception as error:  # the edge of a channel: it is logged, and the answer says so
        log.exception("a channel could not be tested", channel=name)
        return ChannelTested(name=name, status=FAILED, detail=f"the channel failed: {type(error).__name__}")


def channel_states(parts: GatewayParts) -> list[ChannelState]:
    """Show for each channel whether it works, since when, and its last error."""
    return [ChannelState(**_state(parts, channel)) for channel in parts.channels.values()]


def _state(parts: GatewayParts, channel: Channel) -> dict[str, Any]:
    health, reach = parts.keeper.health_of(channel.name), parts.runtime.outbox.reach
    unsent = reach.down.get(channel.name)
    is_up = health.is_up and unsent is None
    error, error_at = health.error, health.error_at_ms
    if (last := reach.last.get(channel.name)) and (
        unsent is not None or (health.is_up and last.at_ms > (error_at or 0))
    ):
        error, error_at = last
    return {
        "name": channel.name,
        "adapter": adapter_name(channel.settings) or type(channel).__name__,
        "status": OK if is_up else CONNECTING if health.is_connecting and unsent is None else DOWN,
        "since": health.since_ms if health.is_up is is_up else reach.down_since(channel.name),
        "last_error": None if error is None else parts.secrets.hide(error),
        "last_error_at": error_at,
    }


def _show(parts: GatewayParts, channel: Channel, counts: dict[str, int]) -> ChannelShown:
    waiting, failed, uncertain = _counted(counts)
    return ChannelShown(
        **_state(parts, channel),
        accounts=sorted(channel.own_names) or None,
        settings=_settings(channel, channel.settings),
        waiting=waiting,
        failed=failed,
        uncertain=uncertain,
    )


def _settings(channel: Channel, settings: ChannelSettings) -> ChannelSettingsShown:
    return ChannelSettingsShown(
        allow_from=settings.allow_from,
        owners=settings.owners,
        require_mention=settings.require_mention,
        allow_bots=settings.allow_bots,
        pairing=settings.pairing,
        max_text_length=channel.max_text_length,
    )


def _counted(counts: dict[str, int]) -> tuple[int, int, int]:
    """Count the deliveries that wait, have failed and are uncertain."""
    return counts.get("pending", 0) + counts.get("sending", 0), counts.get("failed", 0), counts.get("uncertain", 0)
