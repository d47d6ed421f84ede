"""Pairing in OpenClaw's words: who waits to be let in on which channel. A request is named by its code."""

from __future__ import annotations

from typing import Any

from backchannel.config.schedules import show_moment
from backchannel.core.policy.pairing import MOST_PENDING, PAIRING_LIFE_MS, PairingRecord, PairingState
from backchannel.errors import PairingNotFound
from backchannel.gateway.auth import PAIRING
from backchannel.gateway.methods.pairing import PairingCodeParams, pairing_approve
from backchannel.gateway.openclaw.inventory import accounts_of
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Answer, SharedParams

_MOST_LISTED = 500


class ChannelPairingParams(SharedParams, frozen=True, kw_only=True):
    channel: str | None = None
    account_id: str | None = None


class PairingRequestParams(SharedParams, frozen=True, kw_only=True):
    channel: str
    account_id: str
    request_id: str


class PairingAccount(Answer, frozen=True, kw_only=True, omit_defaults=False):
    channel: str
    channel_label: str
    account_id: str
    notify_supported: bool = True


class PairingRequest(PairingAccount, frozen=True, kw_only=True, omit_defaults=False):
    request_id: str
    sender_id: str
    sender_label: str
    created_at: str
    last_seen_at: str
    expires_at: str


class PairingLimits(Answer, frozen=True, kw_only=True, omit_defaults=False):
    pending_per_account: int = MOST_PENDING
    ttl_ms: int = PAIRING_LIFE_MS


class ChannelPairings(Answer, frozen=True, kw_only=True, omit_defaults=False):
    accounts: list[PairingAccount]
    requests: list[PairingRequest]
    command_owner_configured: bool
    limits: PairingLimits = PairingLimits()


class PairingLetIn(Answer, frozen=True, kw_only=True, omit_defaults=False):
    request_id: str
    sender_id: str
    notification: str = "sent"
    command_owner_bootstrap: str = "not-requested"


class PairingDismissed(Answer, frozen=True, kw_only=True):
    request_id: str
    sender_id: str


async def channels_pairing_list(call: Call, params: ChannelPairingParams) -> ChannelPairings:
    """Lists the accounts on which strangers get a code, and those who wait with one; `pairing.list` tells more."""
    accounts = [
        PairingAccount(channel=name, channel_label=name, account_id=account)
        for name, channel in call.parts.channels.items()
        for account in accounts_of(channel)
        if channel.settings.pairing and _is_asked(params, name, account)
    ]
    return ChannelPairings(
        accounts=accounts,
        requests=[
            _request(pairing)
            for pairing in await _waiting(call)
            if _is_asked(params, pairing.channel, pairing.account_id)
        ],
        command_owner_configured=any(channel.settings.owners for channel in call.parts.channels.values()),
    )


def _is_asked(params: ChannelPairingParams, channel: str, account_id: str) -> bool:
    return params.channel in (None, channel) and params.account_id in (None, account_id)


async def _waiting(call: Call) -> list[PairingRecord]:
    found = await call.parts.store.pairings(state=PairingState.PENDING, limit=_MOST_LISTED, before=None)
    return [pairing for pairing in found if pairing.is_waiting(call.parts.clock.now_ms())]


def _request(pairing: PairingRecord) -> PairingRequest:
    created = show_moment(pairing.created_at)
    return PairingRequest(
        request_id=pairing.code,
        channel=pairing.channel,
        channel_label=pairing.channel,
        account_id=pairing.account_id,
        sender_id=pairing.sender_id,
        sender_label=pairing.sender_name or pairing.sender_id,
        created_at=created,
        last_seen_at=created,
        expires_at=show_moment(pairing.expires_at),
    )


async def channels_pairing_approve(call: Call, params: PairingRequestParams) -> PairingLetIn:
    """Lets a person speak who waits, once, and tells them, as `pairing.approve` does."""
    await _find(call, params)
    answered = await pairing_approve(call, PairingCodeParams(code=params.request_id))
    return PairingLetIn(request_id=params.request_id, sender_id=answered.pairing.sender_id)


async def channels_pairing_dismiss(call: Call, params: PairingRequestParams) -> PairingDismissed:
    """Forgets a person who waits: their next message gets another code. `pairing.deny` ignores them for good."""
    pairing = await _find(call, params)
    await call.parts.store.remove_pairing(pairing.channel, pairing.sender_id, pairing.account_id)
    return PairingDismissed(request_id=params.request_id, sender_id=pairing.sender_id)


async def _find(call: Call, params: PairingRequestParams) -> PairingRecord:
    now = call.parts.clock.now_ms()
    for pairing in await _waiting(call):
        is_there = (pairing.channel, pairing.account_id) == (params.channel, params.account_id)
        if is_there and pairing.has_code(params.request_id, now):
            return pairing
    raise PairingNotFound("nobody waits with this request (channels.pairing.list shows who does)")


METHODS: tuple[Method[Any], ...] = (
    Method(
        "channels.pairing.list",
        ChannelPairingParams,
        TokenScope.READ,
        channels_pairing_list,
        "`{accounts: [{channel, channelLabel, accountId, notifySupported}], requests: [{requestId, channel, "
        "channelLabel, accountId, senderId, senderLabel, createdAt, lastSeenAt, expiresAt, notifySupported}], "
        "commandOwnerConfigured, limits {pendingPerAccount, ttlMs}}`",
        part=PAIRING,
    ),
    Method(
        "channels.pairing.approve",
        PairingRequestParams,
        TokenScope.ADMIN,
        channels_pairing_approve,
        "`{requestId, senderId, notification, commandOwnerBootstrap}`",
        part=PAIRING,
    ),
    Method(
        "channels.pairing.dismiss",
        PairingRequestParams,
        TokenScope.ADMIN,
        channels_pairing_dismiss,
        "`{requestId, senderId}`",
        part=PAIRING,
    ),
)
