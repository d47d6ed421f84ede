"""Errors as HTTP answers, in the form that the clients of each path read.

Libraries for OpenAI's API repeat a request by themselves after 408, 409, 429 and 5xx. So errors under `/v1/` have
`x-should-retry: false`, except those after which a retry is right.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from backchannel.errors import BadSignature, GatewayError, SlowDown, UnknownAgent

OPENAI_AT = "/v1/"
MCP_AT = "/mcp"
NO_RETRY = {"x-should-retry": "false"}

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_JSONRPC_INVALID_REQUEST = -32600


def show_error(
    error: GatewayError, path: str = "", status: int | None = None, more: Mapping[str, str] | None = None
) -> Response:
    """Show an error as an HTTP answer, in the form that the clients of the path read."""
    headers = dict(more or {})
    if error.http_status == 401 and not isinstance(error, BadSignature):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, SlowDown):
        headers["Retry-After"] = str(-(-int(error.details.get("retryAfterMs", 1000)) // 1000))
    status = status or error.http_status
    if path.startswith(OPENAI_AT):
        return _show_openai_error(error, status, headers)
    if path == MCP_AT:
        return _show_mcp_error(error, status, headers)
    return JSONResponse({"ok": False, "error": error.wire()}, status_code=status, headers=headers)


def _show_openai_error(error: GatewayError, status: int, headers: dict[str, str]) -> Response:
    if isinstance(error, UnknownAgent):
        status = 404
    body = {
        "message": error.message,
        "type": _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": error.details.get("param"),
        "code": "model_not_found" if isinstance(error, UnknownAgent) else error.code,
    }
    return JSONResponse({"error": body}, status_code=status, headers=headers if error.retryable else headers | NO_RETRY)


def _show_mcp_error(error: GatewayError, status: int, headers: dict[str, str]) -> Response:
    shown = {"code": _JSONRPC_INVALID_REQUEST, "message": error.message, "data": error.wire()}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": shown}, status, headers)
