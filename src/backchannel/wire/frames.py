"""Frames of the WebSocket protocol, and its handshake.

A connection speaks JSON text frames: requests (`req`) from the client, answers (`res`) and events from the gateway. The
gateway opens with the event `connect.challenge`, and the client's first request is `connect`. After its answer the
client may call methods, several at the same time, each answered by its id.

Parameters are strict: an unknown or wrongly typed one is an error that names it. Methods that OpenClaw's gateway has
too take `SharedParams`, which ignore unknown ones, since its clients send parameters that mean nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from backchannel.errors import InvalidRequest
from backchannel.wire.shapes import Answer, Params, SharedParams

MAX_REQUEST_ID_LENGTH = 256
KEEP_ALIVE_S = 15.0
"""The longest silence of a connection or a stream; proxies cut silent ones."""


class TokenScope(StrEnum):
    """The rights of a token; each scope includes those before it."""

    READ = "operator.read"
    WRITE = "operator.write"
    ADMIN = "operator.admin"


class NoParams(Params, frozen=True, kw_only=True):
    """The parameters of a method that has none."""


class IdParams(Params, frozen=True, kw_only=True):
    """The parameters of a method about one thing."""

    id: str


class SharedNoParams(SharedParams, frozen=True, kw_only=True):
    """The same, for a method that OpenClaw's gateway has too; others are ignored."""


# Frames


class Request(Struct, frozen=True, tag_field="type", tag="req", forbid_unknown_fields=True):
    """A request of a client."""

    id: Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID_LENGTH)]
    method: Annotated[str, Meta(min_length=1)]
    params: Raw = Raw()


class Cancel(Struct, frozen=True, tag_field="type", tag="cancel"):
    """A client no longer waits for an answer. The answer is sent all the same."""

    id: str


class Response(Struct, frozen=True, tag_field="type", tag="res"):
    """An answer of the gateway; `id` is null only if the request's id could not be read."""

    id: str | None
    ok: bool
    payload: Any = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class _AnyId(Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID_LENGTH)] | None = None


Frame = Request | Cancel

_decode_frame: Callable[[str], Frame] = msgspec.json.Decoder(Frame).decode
_decode_id = msgspec.json.Decoder(_AnyId).decode
_encode = msgspec.json.Encoder().encode


class BadFrame(Exception):
    """A frame that is no request; `id` is its request id, if it could be read."""

    def __init__(self, id: str | None, error: InvalidRequest) -> None:
        super().__init__(error.message)
        self.id = id
        self.error = error


def read_frame(text: str) -> Frame:
    """Read one text frame.

    Raises:
        BadFrame: it is not JSON, or not a request.
    """
    try:
        return _decode_frame(text)
    except msgspec.ValidationError as error:
        raise BadFrame(_id_of(text), _not_a_request(str(error))) from None
    except msgspec.DecodeError as error:
        raise BadFrame(None, _not_a_request(f"not JSON: {error}")) from None
    except RecursionError:
        raise BadFrame(None, _not_a_request("nested too deeply")) from None


def _not_a_request(why: str) -> InvalidRequest:
    return InvalidRequest(f'not a request: {why} (expected {{"type":"req","id","method","params"}})')


def _id_of(text: str) -> str | None:
    try:
        return _decode_id(text).id
    except (msgspec.DecodeError, RecursionError):
        return None


def show_answer(id: str, payload: object) -> str:
    """Write the answer to a request."""
    return _encode(Response(id, True, payload)).decode()


def show_error(id: str | None, error: dict[str, Any]) -> str:
    """Write that a request failed."""
    return _encode(Response(id, False, error=error)).decode()


def show_event_head(event: str, payload: object) -> str:
    """Write an event up to its number, which differs per connection: see `number_event`."""
    return f'{{"type":"event","event":"{event}","payload":{_encode(payload).decode()},"seq":'


def number_event(head: str, seq: int) -> str:
    """Finish an event for one connection."""
    return f"{head}{seq}}}"


# The handshake


class ClientInfo(Struct, frozen=True, rename="camel"):
    """The program that connects."""

    id: str = ""
    version: str = ""
    platform: str = ""
    device_family: str | None = None
    mode: str = ""
    instance_id: str | None = None
    display_name: str | None = None


class DeviceInfo(Struct, frozen=True, rename="camel"):
    """The device of a client of OpenClaw's, with a signature of its key over this connection.

    A node may be named by its id. Nothing else counts without the signature.
    """

    id: str | None = None
    public_key: str | None = None
    signature: str | None = None
    signed_at: int | None = None
    nonce: str | None = None


class ConnectAuth(Struct, frozen=True, rename="camel"):
    """The tokens of a client. `repr` hides them."""

    token: str | None = None
    device_token: str | None = None
    """The token of a page that stays logged in. OpenClaw's page also sends it as `token`."""

    @property
    def signed_token(self) -> str:
        """The token that a device's signature covers."""
        return self.token or self.device_token or ""

    def __repr__(self) -> str:
        return "ConnectAuth(token=<hidden>, device_token=<hidden>)"


class Connect(Struct, frozen=True, kw_only=True, rename="camel"):
    """The parameters of `connect`; unknown fields are accepted."""

    min_protocol: Annotated[int, Meta(ge=0, le=1_000_000)]
    max_protocol: Annotated[int, Meta(ge=0, le=1_000_000)]
    client: ClientInfo = ClientInfo()
    role: str = "operator"
    node_id: str | None = None
    """Of the role `node`: its name."""
    device: DeviceInfo | None = None
    scopes: list[str] | None = None
    caps: list[str] = []
    """Of the role `node`: its capabilities, as it reports them."""
    auth: ConnectAuth | None = None

    @property
    def brought(self) -> ConnectAuth:
        return self.auth or ConnectAuth()

    @property
    def node_name(self) -> str | None:
        """The name of a node: its own id, else its device's, else that of the installation."""
        if self.node_id is not None:
            return self.node_id
        return (self.device and self.device.id) or self.client.instance_id


read_connect = msgspec.json.Decoder(Connect).decode


class Policy(Answer, frozen=True, kw_only=True):
    """The limits for a client."""

    max_payload: int
    max_buffered_bytes: int
    tick_interval_ms: int
