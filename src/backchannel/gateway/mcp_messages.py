"""What clients post at the MCP door: one JSON-RPC message, read and checked before anything is done.

What is refused here is answered as JSON-RPC too, in words of our own: a client shows them to people.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request

from backchannel.gateway.mcp_server import IDEMPOTENCY_KEY, read_call_id

_VERSION = "mcp-protocol-version"


class Refusal(Exception):
    """A request that is answered with a JSON-RPC error before any of it is carried out."""

    def __init__(self, status: int, code: int, message: str, data: Any = None, request: types.RequestId | None = None):
        super().__init__(message)
        self.status = status
        self.error = types.JSONRPCError(
            jsonrpc="2.0", id=request, error=types.ErrorData(code=code, message=message, data=data)
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and the name of its stream if its client can come back to that."""

    message: types.JSONRPCRequest
    version: str
    client_info: Any = None
    capabilities: Any = None
    stream: str | None = None

    @property
    def is_modern(self) -> bool:
        """Whether it is of the generation without sessions, in which each request says all about its client."""
        return self.version not in HANDSHAKE_PROTOCOL_VERSIONS

    def calls(self, tools: Container[str]) -> bool:
        """Whether it is a call of one of these tools that can be given a name."""
        match self.message.params:
            case {"name": str() as name, **rest} if self.message.method == "tools/call":
                return name in tools and isinstance(rest.get("_meta") or {}, dict)
        return False

    def named(self, stream: str) -> Asked:
        """Name the stream, and make it the same call whenever it is carried out, unless its client has done so."""
        params = self.message.params or {}
        if read_call_id(params) is not None:
            return replace(self, stream=stream)
        meta = {**(params.get("_meta") or {}), IDEMPOTENCY_KEY: stream}
        message = self.message.model_copy(update={"params": {**params, "_meta": meta}})
        return replace(self, message=message, stream=stream)


def read_posted(body: bytes, request: Request) -> Asked | types.JSONRPCNotification | None:
    """Read what was posted: a request, a notification, or, as None, an answer to what was never asked.

    Raises:
        Refusal
    """
    message = _read_object(body)
    version = request.headers.get(_VERSION, types.DEFAULT_NEGOTIATED_VERSION)
    is_modern = version not in HANDSHAKE_PROTOCOL_VERSIONS
    try:
        if "id" not in message:
            return _read_notification(message, version if is_modern else None)
        if "method" not in message and not is_modern and ("result" in message or "error" in message):
            return None
        asked = types.JSONRPCRequest.model_validate(message)
    except ValueError:  # what the SDK's types raise; their words are not for people
        raise _bad_message() from None
    if not all(check_accept_headers(request)):
        said = "the answer may be JSON or a stream (expected Accept: application/json, text/event-stream)"
        raise Refusal(406, types.INVALID_REQUEST, said, request=asked.id)
    return _read_modern(asked, message, request) if is_modern else Asked(asked, version)


def _read_notification(message: dict[str, Any], modern: str | None) -> types.JSONRPCNotification:
    notice = types.JSONRPCNotification.model_validate(message)
    if modern is not None and (rejected := unsupported_protocol_version_rejection(modern)) is not None:
        raise _rejected(rejected)
    return notice


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        message = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, types.PARSE_ERROR, f"the body is not JSON: {error}") from None
    if isinstance(message, list):
        raise Refusal(400, types.INVALID_REQUEST, "batches are not served: post each message in a request of its own")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _bad_message()
    return message


def _bad_message() -> Refusal:
    return Refusal(
        400,
        types.INVALID_REQUEST,
        'the body is not a JSON-RPC message (expected {"jsonrpc": "2.0", "method": …, "params"?: {…}, "id"?: …})',
    )


def _read_modern(asked: types.JSONRPCRequest, message: dict[str, Any], request: Request) -> Asked:
    if (doubled := find_duplicated_routing_header(request.headers.items())) is not None:
        raise Refusal(400, types.HEADER_MISMATCH, f"{doubled} header appears more than once", request=asked.id)
    route = classify_inbound_request(message, headers=dict(request.headers))
    if isinstance(route, InboundLadderRejection):
        raise _rejected(route, asked.id)
    return Asked(asked, route.protocol_version, route.client_info, route.client_capabilities)


def _rejected(rejection: InboundLadderRejection, request: types.RequestId | None = None) -> Refusal:
    status = ERROR_CODE_HTTP_STATUS.get(rejection.code, 400)
    return Refusal(status, rejection.code, rejection.message, rejection.data, request)
