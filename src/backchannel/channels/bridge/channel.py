"""The bridge: any platform, by two webhooks.

Outbound, each part of a delivery is a POST to the far end's url, signed with the channel's secret:

    Idempotency-Key: <deliveryId>/<n>
    X-Backchannel-Signature: sha256=<HMAC-SHA-256 of the body, in hex>

    {"deliveryId": …, "to": …, "text": …, "accountId"?: …, "threadId"?: …, "buttons"?: [{"label": …, "value": …}],
     "replaces"?: …, "file"?: {"name": …, "mimeType": …, "size": …, "content": <base64>}}

answered by `{"messageId": …}`. The far end remembers the keys that it has taken, so that a part may come twice. Any
4xx says that it never takes the part, 429 that it may later; 5xx, a broken answer and none leave it unknown. Inbound
events come the other way, as a POST to `/channels/<name>/inbound`, signed alike. So does what the far end learns later
of a part:

    {"receipt": {"state": "sent" | "failed", "key"?: …, "messageId"?: …, "accountId"?: …, "chatId"?: …, "reason"?: …}}
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from backchannel.agents.loading import load
from backchannel.channels.bridge.settings import BridgeSettings
from backchannel.channels.signing import SIGNATURE, is_signed, sign
from backchannel.core.contracts import Clock
from backchannel.core.delivery.attached import MAX_FILE_BYTES
from backchannel.core.delivery.channels import (
    DEFAULT_ACCOUNT,
    Channel,
    ChannelBusy,
    ChannelRefused,
    ChannelSilent,
    InboundAnswer,
    InboundTaker,
    OutboundPart,
    Sent,
)
from backchannel.core.delivery.outgoing import Button, OutboundFile, PartProof
from backchannel.core.delivery.received import encode_base64
from backchannel.core.hosts import is_local_url
from backchannel.core.policy.inbound import parse_event
from backchannel.core.secrets.known import KnownSecrets, secrets_in
from backchannel.errors import BadSignature, InvalidRequest

if TYPE_CHECKING:
    import httpx2

_ANSWER_LIMIT_S = 30.0
ANSWER_LIMIT_BYTES = 64 * 1024
_TEXT_LIMIT = 200
"""How much of an answer is kept: of an error's text, and of a message id."""
_LOOKED_AT = 4096


class _OutboundContent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file that is posted; `text` is its caption."""

    name: str
    mime_type: str
    size: int
    content: str
    """As base64: the far end needs no address of the gateway, and no second request."""


class _Outbound(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is posted."""

    delivery_id: str
    to: str
    text: str
    account_id: str | None = None
    thread_id: str | None = None
    buttons: tuple[Button, ...] = ()
    replaces: str | None = None
    """The far end's id of the message whose place it takes."""
    file: _OutboundContent | None = None


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What is answered; platforms name messages by text or number."""

    message_id: str | int | None = None


class _Receipt(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What the far end says later of a part."""

    state: Literal["sent", "failed"]
    key: str | None = None
    message_id: str | int | None = None
    account_id: str | None = None
    chat_id: str | None = None
    reason: str = "it failed"

    @property
    def proof(self) -> PartProof:
        return PartProof(
            account_id=self.account_id,
            key=self.key,
            message_id=None if self.message_id is None else str(self.message_id),
            chat_id=self.chat_id,
            failed=None if self.state == "sent" else self.reason,
        )


class _Posted(msgspec.Struct, frozen=True):
    """What the far end posts, as far as it is no event."""

    receipt: _Receipt | None = None


class ReceiptAnswer(msgspec.Struct, frozen=True):
    """What became of a receipt that the far end posted."""

    ok: bool
    changed: bool
    """Whether a receipt of ours has changed."""


class Bridge(Channel):
    """The way to one far end."""

    takes_key = True
    takes_posts = True
    settings: BridgeSettings

    def __init__(
        self, name: str, settings: BridgeSettings, clock: Clock, *, answer_limit_s: float = _ANSWER_LIMIT_S
    ) -> None:
        self.name = name
        self.settings = settings
        self.max_text_length = settings.max_text_length or Channel.max_text_length
        self.has_buttons = settings.buttons
        self.max_file_bytes = MAX_FILE_BYTES if settings.files else 0
        self._clock = clock
        self._answer_limit_s = answer_limit_s
        self._client: httpx2.AsyncClient | None = None
        self._making = asyncio.Lock()
        self._hide = KnownSecrets(secrets_in(settings)).hide

    async def post(
        self, body: bytes, headers: Mapping[str, str], inbound: InboundTaker
    ) -> InboundAnswer | ReceiptAnswer:
        """Take an event or a receipt that the far end has signed.

        Raises:
            BadSignature: the body is not signed with the channel's secret.
            InvalidRequest: it is neither.
        """
        signature = headers.get(SIGNATURE)
        if not is_signed(self.settings.secret, body, signature):
            message = f"{SIGNATURE}: it does not fit this body (sha256=<HMAC of the body, in hex>)"
            raise BadSignature(message, signature=signature or "")
        if (receipt := _receipt_in(body)) is not None:
            return ReceiptAnswer(ok=True, changed=await inbound.proved(receipt.proof))
        return await inbound(parse_event(body))

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def send(self, part: OutboundPart) -> Sent:
        """Post a part to the far end.

        Raises:
            ChannelRefused, ChannelBusy, ChannelSilent
        """
        client = await self._http()
        import httpx2  # it is loaded by now

        try:
            async with asyncio.timeout(self._answer_limit_s):
                return await self._post(client, part)
        except (TimeoutError, httpx2.ReadTimeout, httpx2.WriteTimeout):
            raise ChannelSilent(f"{self._where} did not answer within {self._answer_limit_s:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise ChannelBusy(f"{self._where} cannot be reached: {self._words(error)}") from error
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise ChannelRefused(f"channels.{self.name}.url cannot be used: {self._words(error)}") from error
        except httpx2.HTTPError as error:
            raise ChannelSilent(f"{self._where} broke off: {self._words(error)}") from error

    async def _post(self, client: httpx2.AsyncClient, part: OutboundPart) -> Sent:
        body = msgspec.json.encode(
            _Outbound(
                delivery_id=part.delivery_id,
                to=part.to,
                text=part.text,
                account_id=None if part.account_id == DEFAULT_ACCOUNT else part.account_id,
                thread_id=part.thread_id,
                buttons=part.buttons,
                replaces=part.draft_id,
                file=None if part.file is None else await asyncio.to_thread(_encoded, part.file),
            )
        )
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "Idempotency-Key": part.key,
            SIGNATURE: sign(self.settings.secret, body),
        }
        async with client.stream("POST", self.settings.url, content=body, headers=headers) as answer:
            return self._read(answer, await _start_of(answer))

    async def _http(self) -> httpx2.AsyncClient:
        """Give the client, made beside the event loop: its library and the certificates take a tenth of a second."""
        async with self._making:
            if self._client is None:
                self._client = await load(self._make_client)
            return self._client

    def _make_client(self) -> httpx2.AsyncClient:
        import httpx2

        is_local = is_local_url(self.settings.url)
        return httpx2.AsyncClient(timeout=self._answer_limit_s, trust_env=not is_local)

    def _read(self, answer: httpx2.Response, body: bytes) -> Sent:
        status = answer.status_code
        if 200 <= status < 300:
            return Sent(_message_id(body))
        text = self._hide(" ".join(body.decode("utf-8", "replace").split())[:_LOOKED_AT])[:_TEXT_LIMIT]
        reason = f"{self._where} answered {status}{f': {text}' if text else ''}"
        if status == 429:
            raise ChannelBusy(reason, self._asked_wait_s(answer.headers.get("retry-after")))
        if status >= 500:
            raise ChannelSilent(reason)
        raise ChannelRefused(reason)

    def _asked_wait_s(self, retry_after: str | None) -> float | None:
        """Read `Retry-After`: seconds, or a date."""
        if retry_after is None:
            return None
        try:
            return float(retry_after)
        except ValueError:
            pass
        try:
            date = parsedate_to_datetime(retry_after)
            if date.tzinfo is None:  # as C writes dates, which HTTP knows too: it means UTC, wherever this machine is
                date = date.replace(tzinfo=UTC)
            return date.timestamp() - self._clock.now_ms() / 1000
        except (ValueError, OverflowError):
            return None

    def _words(self, error: Exception) -> str:
        return self._hide(str(error) or type(error).__name__)

    @property
    def _where(self) -> str:
        return f"the far end of {self.name}"


def _receipt_in(body: bytes) -> _Receipt | None:
    """Read a receipt; None if there is none in the body.

    Raises:
        InvalidRequest: there is one, and it cannot be read.
    """
    if b'"receipt"' not in body:
        return None
    try:
        return msgspec.json.decode(body, type=_Posted).receipt
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        names = ", ".join(_Receipt.__struct_encode_fields__)
        raise InvalidRequest(f"not a receipt: {error} (its fields are {names})") from error


def _encoded(file: OutboundFile) -> _OutboundContent:
    size, content = len(file.content), encode_base64(file.content)
    return _OutboundContent(name=file.name, mime_type=file.mime_type, size=size, content=content)


async def _start_of(answer: httpx2.Response) -> bytes:
    """Read an answer to its end, and keep its first 64 KiB."""
    kept = b""
    async for chunk in answer.aiter_raw():  # what is compressed may be a thousand times as long as it came
        kept += chunk[: ANSWER_LIMIT_BYTES - len(kept)]
    return kept


def _message_id(body: bytes) -> str | None:
    """Read the far end's own id of the message; an answer without one still means that it was taken."""
    try:
        given = msgspec.json.decode(body, type=_Answer).message_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if given is None else str(given)[:_TEXT_LIMIT]
