"""Devices in OpenClaw's words: pages that stay logged in, and logging them out.

OpenClaw calls a device with a token of its own paired. Here a device gets its token by logging in, so none ever waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from backchannel.core.secrets.devices import DeviceToken
from backchannel.core.text import quoted
from backchannel.errors import TokenNotFound
from backchannel.gateway.calls import Call, method
from backchannel.openclaw.words import PAIRING_SCOPE
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams

_ROLE = "operator"


class DeviceParams(SharedParams, frozen=True, kw_only=True):
    device_id: str


class DeviceTokenParams(SharedParams, frozen=True, kw_only=True):
    device_id: str
    role: str = _ROLE


class PairedToken(Answer, frozen=True, kw_only=True):
    role: str
    scopes: list[str]
    created_at_ms: int
    last_used_at_ms: int


class PairedDevice(Answer, frozen=True, kw_only=True):
    device_id: str
    public_key: str
    client_id: str | None = None
    platform: str | None = None
    browser_origin: str | None = None
    role: str
    roles: list[str]
    scopes: list[str]
    created_at_ms: int
    approved_at_ms: int
    last_seen_at_ms: int
    connected: bool
    tokens: list[PairedToken]


class DevicesListed(Answer, frozen=True, kw_only=True):
    pending: tuple[()]
    paired: list[PairedDevice]


class DeviceRemoved(Answer, frozen=True, kw_only=True):
    device_id: str


class DeviceTokenRevoked(Answer, frozen=True, kw_only=True):
    device_id: str
    role: str
    revoked_at_ms: int


@method("device.pair.list", TokenScope.ADMIN, part=PAIRING_SCOPE)
async def device_pair_list(call: Call, params: SharedNoParams) -> DevicesListed:
    """Lists the devices that stay logged in by a token of their own.

    A device whose token was made from a former operator's token cannot log in, and is left out.
    """
    stored, known = await call.parts.store.device_tokens(), call.connections.devices
    rows = sorted([row for row in stored if not await known.is_stale(row)], key=lambda row: row.device_id)
    connected = {holder.device_token for holder in call.connections.holders}
    devices = [_show(list(tokens), connected) for _, tokens in groupby(rows, key=lambda row: row.device_id)]
    return DevicesListed(pending=(), paired=sorted(devices, key=lambda device: device.created_at_ms))


def _show(rows: Sequence[DeviceToken], connected: set[str | None]) -> PairedDevice:
    """Show the tokens of one device: one for each token that was used to log in on it."""
    first, last = min(rows, key=lambda row: row.created_at), max(rows, key=lambda row: row.used_at)
    return PairedDevice(
        device_id=last.device_id,
        public_key=last.public_key,
        client_id=last.client or None,
        platform=last.platform or None,
        browser_origin=last.origin or None,
        role=_ROLE,
        roles=[_ROLE],
        scopes=max((row.scopes.split() for row in rows), key=len),
        created_at_ms=first.created_at,
        approved_at_ms=first.created_at,
        last_seen_at_ms=last.used_at,
        connected=any(row.id in connected for row in rows),
        tokens=[
            PairedToken(
                role=_ROLE, scopes=row.scopes.split(), created_at_ms=row.created_at, last_used_at_ms=row.used_at
            )
            for row in rows
        ],
    )


@method("device.pair.remove", TokenScope.ADMIN, part=PAIRING_SCOPE)
async def device_pair_remove(call: Call, params: DeviceParams) -> DeviceRemoved:
    """Revokes the tokens of a device and closes their connections."""
    await _remove(call, params.device_id)
    return DeviceRemoved(device_id=params.device_id)


@method("device.token.revoke", TokenScope.ADMIN, part=PAIRING_SCOPE)
async def device_token_revoke(call: Call, params: DeviceTokenParams) -> DeviceTokenRevoked:
    """Revokes the tokens of a device, as `device.pair.remove` does; `operator` is its only role."""
    if params.role != _ROLE:
        raise TokenNotFound(f"no device has a token of the role {quoted(params.role, 64)} (all are of {_ROLE})")
    await _remove(call, params.device_id)
    return DeviceTokenRevoked(device_id=params.device_id, role=_ROLE, revoked_at_ms=call.parts.clock.now_ms())


async def _remove(call: Call, device_id: str) -> None:
    if not await call.parts.store.remove_device(device_id):
        raise TokenNotFound(f"no device has the id {quoted(device_id, 80)} (device.pair.list shows them)")
