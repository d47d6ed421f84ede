"""Channels: which there are, whether each works, and what waits to be sent over it."""

from __future__ import annotations

from typing import Any

from backchannel.core.channels import Channel, ChannelSettings
from backchannel.core.sessions import WEBCHAT
from backchannel.core.shapes import Answer
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.protocol import NoParams, TokenScope

OK, DOWN = "ok", "down"


class ChannelSettingsShown(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """What every channel can be set; nothing that is particular to one is shown, for it may be a secret."""

    allow_from: tuple[str, ...]
    owners: tuple[str, ...]
    require_mention: bool
    allow_bots: bool
    max_text_length: int


class ChannelShown(Answer, frozen=True, kw_only=True):
    name: str
    adapter: str
    status: str
    waiting: int
    failed: int
    uncertain: int
    since: int | None = None
    last_error: str | None = None
    accounts: list[str] | None = None
    settings: ChannelSettingsShown | None = None


class ChannelsListed(Answer, frozen=True, kw_only=True):
    channels: list[ChannelShown]


async def channels_list(call: Call, params: NoParams) -> ChannelsListed:
    """Lists the channels, webchat first: whether each works, and how much of what is to be sent over it."""
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


def _show(parts: GatewayParts, channel: Channel, counts: dict[str, int]) -> ChannelShown:
    health, unsent = parts.keeper.health(channel.name), parts.runtime.outbox.reach.down.get(channel.name)
    is_up = health.is_up and unsent is None
    waiting, failed, uncertain = _counted(counts)
    return ChannelShown(
        name=channel.name,
        adapter=str(channel.settings.__struct_config__.tag or type(channel).__name__),
        status=OK if is_up else DOWN,
        since=health.since_ms if health.is_up is is_up else None,
        last_error=unsent or health.error,
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
        max_text_length=settings.max_text_length or channel.max_text_length,
    )


def _counted(counts: dict[str, int]) -> tuple[int, int, int]:
    """Tell how many deliveries wait, have failed and are uncertain."""
    return counts.get("pending", 0) + counts.get("sending", 0), counts.get("failed", 0), counts.get("uncertain", 0)


METHODS: tuple[Method[Any], ...] = (
    Method(
        "channels.list",
        NoParams,
        TokenScope.READ,
        channels_list,
        "`{channels: [{name, adapter, status: ok | down, since?, lastError?, waiting, failed, uncertain, accounts?, "
        "settings? {allowFrom, owners, requireMention, allowBots, maxTextLength}}]}`; no secret is shown",
    ),
)
