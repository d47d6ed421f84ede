"""Fields that requests of several doors have, and their checks."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from backchannel.core.contracts import THINKING_LEVELS
from backchannel.core.delivery.received import image_type
from backchannel.core.incoming_json import TooMuchJson, check_parts
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Block, ImageBlock, text_content
from backchannel.core.sessions import WEBCHAT, Address
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest
from backchannel.gateway.parts import GatewayParts
from backchannel.tools.base import hash_request
from backchannel.wire.shapes import CLIENTS_KEY, NAME, NAME_LIMIT, Params, SharedParams, bad_params, describe_type
from backchannel.wire.shapes import ONE_LINE as ONE_LINE

P = TypeVar("P", bound=Params)

MAX_IMAGES = 20
MAX_REQUEST_IMAGE_BYTES = 5 * 1024 * 1024
"""The largest image in a request."""
_IMAGE_EXPECTED = "expected an image in base64 as content (PNG, JPEG, GIF or WebP)"

IdempotencyKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256, pattern=CLIENTS_KEY)]
"""A client's key, which is the id of its run. Ids of hooks and nodes are refused."""
TriggersKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256, pattern=ONE_LINE)]
"""A key of a hook or a node, which gets an id of its own kind."""
Label: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT, pattern=NAME)]

NothingAttached: TypeAlias = Annotated[list[Any], Meta(max_length=0)] | Annotated[str, Meta(max_length=0)] | None
"""Files that clients may send with a message. None is accepted here, and none is dropped silently."""


class Attachment(SharedParams, frozen=True, kw_only=True):
    """A file with a message, in base64 or as a data URL."""

    content: str
    mime_type: str = ""
    file_name: str = ""


ImagesAttached: TypeAlias = Annotated[list[Attachment], Meta(max_length=MAX_IMAGES)] | None
"""Images with a message. Other files are refused, and none is dropped silently."""

# Fields that name the request or the session, which the digest has in another form, or expect a session id.
_NOT_PART_OF_THE_RUN = frozenset(
    ["idempotency_key", "key", "session_key", "agent_id", "session_id", "expected_existing_session_id"]
)


def read_posted(path: str, body: bytes, params: type[P]) -> P:
    """Read the parameters of a posted body.

    Raises:
        InvalidRequest: it is not JSON, or a parameter is unknown, missing or of the wrong type; the message names it.
    """
    try:
        check_parts(body)
        return msgspec.json.decode(body, type=params)
    except msgspec.ValidationError as error:
        raise bad_params(path, error, params) from None
    except TooMuchJson as error:
        raise InvalidRequest(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:  # what is not UTF-8 is no error of the decoder's own
        raise InvalidRequest(f"{path}: the body is not JSON: {error}") from None


def read_idempotency_key(given: str | None, name: str) -> str | None:
    """Read a key from outside the parameters, such as a header.

    Raises:
        InvalidRequest: it cannot be one.
    """
    try:
        return msgspec.convert(given, IdempotencyKey | None)
    except msgspec.ValidationError:
        expected = describe_type(msgspec.inspect.type_info(IdempotencyKey))
        raise InvalidRequest(f"{name}: expected {expected}", param=name) from None


def read_content(message: str, param: str = "message") -> tuple[Block, ...]:
    """Read the text of a message.

    Raises:
        InvalidRequest: it is empty.
    """
    if not message.strip():
        raise InvalidRequest(f"{param}: it is empty", param=param)
    return text_content(message)


def read_images(attached: ImagesAttached) -> tuple[Block, ...]:
    """Read the images of a message.

    Raises:
        InvalidRequest: one of the files is no image that models can see, or too large.
    """
    return tuple(
        read_base64(file.content.rpartition(";base64,")[2], "attachments", _IMAGE_EXPECTED) for file in attached or ()
    )


def read_thinking(level: str | None, param: str = "thinking") -> str | None:
    """Read a thinking level, which the caller wrote under the name `param`.

    Raises:
        InvalidRequest: there is no such level.
    """
    if level is not None and level not in THINKING_LEVELS:
        raise InvalidRequest(
            f"{param}: {quoted(level, 64)} is not a level (expected {', '.join(THINKING_LEVELS)})", param=param
        )
    return level


def read_model(parts: GatewayParts, ref: str | None) -> str | None:
    """Read the name of a model.

    Raises:
        UnknownModel: there is none of this name, or it cannot be used.
    """
    if ref is not None:
        parts.models.check(ref)
    return ref


class _Addressed(Protocol):
    @property
    def channel(self) -> str | None: ...
    @property
    def to(self) -> str | None: ...
    @property
    def account_id(self) -> str | None: ...
    @property
    def thread_id(self) -> str | None: ...


def read_reply_to(parts: GatewayParts, params: _Addressed) -> Address | None:
    """Read the address of the reply; None means the session's return address.

    Raises:
        UnknownChannel: the channel is not configured.
        InvalidRequest: the address is incomplete.
    """
    if params.channel is None:
        if params.to or params.account_id or params.thread_id:
            raise InvalidRequest("channel: it is missing (an address needs one)", param="channel")
        return None
    parts.channels.check(params.channel, with_webchat=True)
    if params.to is None and params.channel != WEBCHAT.channel:
        raise InvalidRequest(f"to: it is missing (an address on {params.channel} needs one)", param="to")
    return Address(channel=params.channel, to=params.to, account_id=params.account_id, thread_id=params.thread_id)


def digest_of(token_id: str, method: str, key: SessionKey | str, params: Params) -> str | None:
    """Hash the request of an idempotency key: its token, method, session and parameters; None without a key.

    `key` is the session, or its stand-in if each request gets a new session.
    """
    given: dict[str, Any] = msgspec.structs.asdict(params)
    if given.get("idempotency_key") is None:
        return None
    if not given.get("attachments"):
        given.pop("attachments", None)  # an empty list says no more than none
    shaping = {name: value for name, value in given.items() if name not in _NOT_PART_OF_THE_RUN}
    return hash_request(token_id, method, str(key), shaping)


def read_base64(data: str, param: str, expected: str) -> ImageBlock:
    """Read an image. Its first bytes say its type, whatever the request says.

    Raises:
        InvalidRequest: it is too large, or no image that models can see; `expected` says what would be one.
    """
    if len(data) > MAX_REQUEST_IMAGE_BYTES * 4 // 3 + 4:
        raise InvalidRequest(f"{param}: an image has at most {MAX_REQUEST_IMAGE_BYTES} bytes", param=param)
    try:
        kind = image_type(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{param}: the image is not in base64: {expected}", param=param) from None
    if kind is None:
        raise InvalidRequest(f"{param}: the content is no image that models can see: {expected}", param=param)
    return ImageBlock(mime_type=kind, data=data)
