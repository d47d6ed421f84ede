"""Channels, pairing and posts in OpenClaw's words. A pairing request is named by its code."""

from __future__ import annotations

from backchannel.config.schedules import show_moment
from backchannel.core.delivery.channels import DEFAULT_ACCOUNT, Channel
from backchannel.core.policy.pairing import MOST_PENDING, PAIRING_LIFE_MS, PairingRecord, PairingState
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, PairingNotFound
from backchannel.gateway.calls import Call, method
from backchannel.gateway.fields import IdempotencyKey, NothingAttached
from backchannel.gateway.methods.channels import OK, channel_states
from backchannel.gateway.methods.deliveries import SendParams, send
from backchannel.gateway.methods.pairing import PairingCodeParams, pairing_approve
from backchannel.openclaw.words import PAIRING_SCOPE
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.rows import ReceiptRow
from backchannel.wire.shapes import Answer, SharedParams

_MOST_LISTED = 500


class ChannelAccount(Answer, frozen=True, kw_only=True):
    account_id: str
    configured: bool
    connected: bool
    last_error: str | None = None


class ChannelsStatus(Answer, frozen=True, kw_only=True):
    ts: int
    channel_order: list[str]
    channel_labels: dict[str, str]
    channels: dict[str, ChannelAccount]
    channel_accounts: dict[str, list[ChannelAccount]]
    channel_default_account_id: dict[str, str]


class MessageToSend(SharedParams, frozen=True, kw_only=True):
    """A message to send. The chat is `to`, with or without its channel before it, or `target`."""

    message: str = ""
    to: str | None = None
    target: str | None = None
    account_id: str | None = None
    thread_id: str | None = None
    media: NothingAttached = None
    media_url: NothingAttached = None
    media_urls: NothingAttached = None
    buffer: NothingAttached = None


class MessageActionParams(SharedParams, frozen=True, kw_only=True):
    channel: str
    action: str
    params: MessageToSend
    account_id: str | None = None
    session_key: str | None = None
    idempotency_key: IdempotencyKey | None = None


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


def _accounts(channel: Channel) -> list[str]:
    """List the accounts of a channel; a channel without names has one."""
    return sorted(channel.own_names) or [DEFAULT_ACCOUNT]


@method("channels.status", TokenScope.READ)
async def channels_status(call: Call, params: SharedNoParams) -> ChannelsStatus:
    """Shows whether each channel works; `channels.list` has more."""
    parts, states = call.parts, channel_states(call.parts)
    accounts = {name: _accounts(parts.channels[name]) for name in parts.channels}
    shown = {
        state.name: [
            ChannelAccount(
                account_id=account, configured=True, connected=state.status == OK, last_error=state.last_error
            )
            for account in accounts[state.name]
        ]
        for state in states
    }
    return ChannelsStatus(
        ts=parts.clock.now_ms(),
        channel_order=list(shown),
        channel_labels={name: name for name in shown},
        channels={name: each[0] for name, each in shown.items()},
        channel_accounts=shown,
        channel_default_account_id={name: each[0].account_id for name, each in shown.items()},
    )


@method("channels.pairing.list", TokenScope.READ, part=PAIRING_SCOPE)
async def channels_pairing_list(call: Call, params: ChannelPairingParams) -> ChannelPairings:
    """Lists the accounts that send strangers a code, and the strangers who wait; `pairing.list` has more."""
    accounts = [
        PairingAccount(channel=name, channel_label=name, account_id=account)
        for name, channel in call.parts.channels.items()
        for account in _accounts(channel)
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


@method("channels.pairing.approve", TokenScope.ADMIN, part=PAIRING_SCOPE)
async def channels_pairing_approve(call: Call, params: PairingRequestParams) -> PairingLetIn:
    """Approves a stranger who waits, as `pairing.approve` does."""
    await _find(call, params)
    answered = await pairing_approve(call, PairingCodeParams(code=params.request_id))
    return PairingLetIn(request_id=params.request_id, sender_id=answered.pairing.sender_id)


@method("channels.pairing.dismiss", TokenScope.ADMIN, part=PAIRING_SCOPE)
async def channels_pairing_dismiss(call: Call, params: PairingRequestParams) -> PairingDismissed:
    """Forgets a stranger who waits: the next message gets another code. `pairing.deny` ignores them for good."""
    pairing = await _find(call, params)
    await call.parts.store.remove_pairing(pairing.channel, pairing.sender_id, pairing.account_id)
    return PairingDismissed(request_id=params.request_id, sender_id=pairing.sender_id)


async def _find(call: Call, params: PairingRequestParams) -> PairingRecord:
    now = call.parts.clock.now_ms()
    for pairing in await _waiting(call):
        is_there = (pairing.channel, pairing.account_id) == (params.channel, params.account_id)
        if is_there and pairing.has_code(params.request_id, now):
            return pairing
    raise PairingNotFound("no sender waits with this request (channels.pairing.list shows who does)")


@method("message.action", TokenScope.WRITE)
async def message_action(call: Call, params: MessageActionParams) -> ReceiptRow:
    """Sends a text as `send` does; the only action is `send`."""
    if params.action != "send":
        raise InvalidRequest(f"action: got {quoted(params.action, 64)}, expected send", param="action")
    given = params.params
    to = (given.to or "").removeprefix(f"{params.channel}:") or given.target
    if not to:
        raise InvalidRequest("params.to: a message needs a chat", param="params.to")
    return await send(
        call,
        SendParams(
            channel=params.channel,
            to=to,
            message=given.message,
            account_id=given.account_id or params.account_id,
            thread_id=given.thread_id,
            session_key=params.session_key,
            idempotency_key=params.idempotency_key,
        ),
    )
