"""Device tokens, by which OpenClaw's page stays logged in.

A page does not keep the token that a person typed in. It keeps a token made for its device, which is a key pair in the
browser. To log in with it, the page signs the nonce of the connection with that key. A device token has the rights of
the connection that it was made on, and ends with the token it was made from, its parent.

A device token is derived from its parent, the device and a random salt. The gateway keeps only a hash, but can derive
the token again for another tab that logs in by hand; a new token would log out the other tabs. The stored name of the
operator's token is made by a slow hash, so that it does not help to guess that token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from typing import NamedTuple

import structlog

from backchannel.core.contracts import Clock
from backchannel.core.secrets.devices import SIGNED_MS, DeviceToken, operators_parent
from backchannel.core.text import stored_name
from backchannel.errors import Unauthorized, Unavailable
from backchannel.gateway.auth import OPERATOR_TOKEN_ID, TOKEN_PREFIX, TokenHolder, expand_scopes, hash_token
from backchannel.storage.store import Store
from backchannel.wire.frames import Connect

log = structlog.get_logger(__name__)

_KEY_BYTES = 32
_SLOWNESS = {"n": 2**14, "r": 8, "p": 1}
"""The cost of scrypt: 50 ms for a guess at an operator's token, and once for each process."""


class ProvenDevice(NamedTuple):
    """A device whose key has signed this connection, and its client."""

    id: str
    public_key: str
    client: str
    platform: str


def prove(asked: Connect, nonce: str, now: int) -> ProvenDevice | None:
    """Check a device's signature over this connection; None if it is missing or wrong."""
    device = asked.device
    if device is None or device.nonce != nonce or abs(now - (device.signed_at or 0)) > SIGNED_MS:
        return None
    key, signature = _read_base64(device.public_key), _read_base64(device.signature)
    if len(key) != _KEY_BYTES or hashlib.sha256(key).hexdigest() != device.id:
        return None
    if not any(_is_signed(key, signature, text) for text in _signed_texts(asked)):
        return None
    public_key = base64.urlsafe_b64encode(key).decode().rstrip("=")
    client, platform = (stored_name(text) or "" for text in (asked.client.id, asked.client.platform))
    return ProvenDevice(device.id, public_key, client, platform)


def _read_base64(text: str | None) -> bytes:
    """Decode URL-safe base64 without padding; empty if it is not."""
    try:
        return base64.b64decode((text or "") + "==", altchars=b"-_")
    except (binascii.Error, ValueError):
        return b""


def _signed_texts(asked: Connect) -> tuple[str, str]:
    """Write the texts that OpenClaw's clients sign; the newer one has the kind of device too."""
    device, client = asked.device, asked.client
    assert device is not None
    scopes, token = ",".join(asked.scopes or ()), asked.brought.signed_token
    parts = device.id, client.id, client.mode, asked.role, scopes, str(device.signed_at), token, device.nonce
    plain = "|".join(part or "" for part in parts)
    kind = "|".join(_plain(text) for text in (client.platform, client.device_family))
    return f"v2|{plain}", f"v3|{plain}|{kind}"


def _plain(text: str | None) -> str:
    """Write a name as it is signed: stripped, and ASCII letters in lower case."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in (text or "").strip())


def _is_signed(key: bytes, signature: bytes, text: str) -> bool:
    # Loading it takes a moment, and few gateways have such pages.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text.encode("utf-8", "surrogatepass"))
    except (InvalidSignature, ValueError):
        return False
    return True


class DeviceTokenIssued(NamedTuple):
    """A device token, its id, and its time."""

    id: str
    token: str
    at: int

    def __repr__(self) -> str:
        return f"Issued({self.id}, <hidden>, at={self.at})"


class _Parent(NamedTuple):
    """The parent of device tokens: its name in their rows, and the secret behind them."""

    id: str
    secret: bytes

    def token(self, device_id: str, salt: str) -> str:
        made = hmac.digest(self.secret, f"device {device_id} {salt}".encode(), "sha256")
        return TOKEN_PREFIX + base64.urlsafe_b64encode(made).decode().rstrip("=")

    def __repr__(self) -> str:
        return f"_Parent({self.id}, <hidden>)"


class Devices:
    """Makes device tokens and finds their holders."""

    def __init__(self, store: Store, operator_token: str, clock: Clock) -> None:
        self._store = store
        self._operator_token = operator_token
        self._clock = clock
        self._operator: _Parent | None = None

    async def find(self, token: str, device: ProvenDevice | None) -> TokenHolder | None:
        """Find the holder of a device token; only its own device, which has signed this connection, may use it."""
        if device is None:
            return None
        operator = await self.operators_parent()  # first: nothing slow may come between the row and its use
        row = await self._store.device_token_by_digest(hash_token(token))
        if row is None or row.device_id != device.id or (row.is_of_operator and row.parent != operator):
            return None
        used = await self._used(row)
        if used is None:
            return None
        parent = OPERATOR_TOKEN_ID if used.is_of_operator else used.parent
        return TokenHolder(parent, expand_scopes(used.scopes.split()), device_token=used.id)

    async def issue(
        self, holder: TokenHolder, token: str, device: ProvenDevice, origin: str
    ) -> DeviceTokenIssued | None:
        """Give a device a token made from the one that it has logged in with.

        None if it cannot be stored now: the page is then logged in until it is reloaded.

        Raises:
            Unauthorized: the token was revoked meanwhile.
        """
        try:
            parent = await self._parent(holder, token)
            row = await self._kept(parent, self._offered(parent, holder, device, origin))
        except Unavailable as error:
            log.warning("a page will not stay logged in", reason=error.message)
            return None
        if row is None:
            raise Unauthorized("the token was revoked just now")
        return DeviceTokenIssued(row.id, parent.token(device.id, row.salt), row.created_at)

    async def operators_parent(self) -> str:
        """Name the operator's token as device tokens name their parent."""
        return (await self._operators()).id

    async def is_stale(self, row: DeviceToken) -> bool:
        """Whether it was made from an operator's token that is no longer valid here."""
        return row.is_of_operator and row.parent != await self.operators_parent()

    def _offered(self, parent: _Parent, holder: TokenHolder, device: ProvenDevice, origin: str) -> DeviceToken:
        salt, now = secrets.token_hex(16), self._clock.now_ms()
        return DeviceToken(
            id=secrets.token_hex(6),
            digest=hash_token(parent.token(device.id, salt)),
            salt=salt,
            device_id=device.id,
            public_key=device.public_key,
            parent=parent.id,
            scopes=" ".join(holder.shown_scopes),
            client=device.client,
            platform=device.platform,
            origin=stored_name(origin) or "",
            created_at=now,
            used_at=now,
        )

    async def _kept(self, parent: _Parent, offered: DeviceToken) -> DeviceToken | None:
        """Use the stored token without a write, if it is the same; None if the parent is revoked."""

        def digest_with(salt: str) -> str:
            return hash_token(parent.token(offered.device_id, salt))

        row = await self._store.device_token_of(offered.device_id, parent.id)
        if row is not None and row.is_that_of(offered, digest_with(row.salt), self._clock.now_ms()):
            row = await self._used(row)
            if row is not None:
                return row
        return await self._store.keep_device_token(offered, digest_with)

    async def _used(self, row: DeviceToken) -> DeviceToken | None:
        """Note the use of a token, once an hour; None if it ended meanwhile."""
        if not row.is_use_news(self._clock.now_ms()):
            return row
        try:
            return await self._store.use_device_token(row.id)
        except Unavailable:  # a full disk logs nobody out
            return row

    async def _parent(self, holder: TokenHolder, token: str) -> _Parent:
        if holder.token_id == OPERATOR_TOKEN_ID:
            return await self._operators()
        return _Parent(holder.token_id, token.encode("utf-8", "surrogatepass"))

    async def _operators(self) -> _Parent:
        if self._operator is None:
            self._operator = await asyncio.to_thread(_seal, self._operator_token)
        return self._operator


def _seal(token: str) -> _Parent:
    """Make the stored name of the operator's token, from which it can hardly be guessed."""
    sealed = hashlib.scrypt(token.encode("utf-8", "surrogatepass"), salt=b"device tokens", dklen=64, **_SLOWNESS)
    return _Parent(operators_parent(sealed[32:40].hex()), sealed[:32])
