"""Failures of providers, as `ModelFailed`: in their own words, and whether trying again may help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from backchannel.agents.endpoints import Endpoint
from backchannel.agents.wires.events import BadAnswer
from backchannel.core.contracts import ModelFailed
from backchannel.core.incoming_json import MOST_ASKED, TooMuchJson, check_parts
from backchannel.core.secrets.known import hide_key

_MAX_WORDS = 1_000
_MAX_LOOKED_AT = 4_000
"""How much of a provider's text is looked at: more than is shown, because hiding a key makes it shorter."""
_DEEPEST = 20
_RETRYABLE_STATUSES = frozenset({408, 409, 429})
_QUOTA_WORDS = frozenset(
    {
        "billing_error",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "insufficient_quota",
        "organization_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "project_spend_limit_exceeded",
    }
)
"""Codes and types of errors that say that the account is exhausted: waiting does not help."""
_STATUSES = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
    "server_is_overloaded": 503,
    "overloaded": 503,
    "server_error": 500,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
} | dict.fromkeys(_QUOTA_WORDS - {"billing_error"}, 429)
"""The status that an error inside a stream would have had before it."""
_TOO_LONG = re.compile(
    r"prompt is too long|maximum context length|context length exceeded|reduce the length of the (?:messages|prompt)"
    r"|exceeds? the (?:available |maximum |model'?s? )*context (?:size|window|length)"
    r"|context[_ ](?:length|window)[_ ]exceeded"
    r"|exceed_context_size|exceeds the maximum number of tokens|greater than the context length"
    r"|input (?:is|length|tokens?) .{0,40}(?:too long|exceeds?)"
    r"|too many (?:input )?tokens|longer than the model'?s context|max(?:imum)? (?:model|sequence) length",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:> |context length (?:is|of) |context size (?:\(|of |is )|context window (?:of |is |\()|tokens allowed \(?"
    r"|limit (?:of|is) |max_model_len(?:gth)?[ =:]+|maximum model length of |up to )(\d[\d,]{2,9})",
    re.IGNORECASE,
)


class ProviderError(Exception):
    """An error that a provider told: in an answer with a status, or in the middle of a stream."""

    def __init__(self, body: Any, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__("the provider told an error")
        self.body = body
        self.status = status
        self.headers = headers or {}


def read_error_body(body: bytes) -> Any:
    """Read the body of an error: its JSON if it is some, else its text."""
    try:
        check_parts(body, MOST_ASKED)
        return msgspec.json.decode(body)
    except (TooMuchJson, ValueError, RecursionError):
        return body[: 4 * _MAX_LOOKED_AT].decode("utf-8", "replace")


def build_failure(error: Exception, endpoint: Endpoint) -> ModelFailed:
    """Say what went wrong, in the provider's own words where it had some, and whether trying again may help."""
    import httpx2

    provider = endpoint.provider
    match error:
        case ModelFailed():
            return error
        case ProviderError():
            return _told(error, endpoint)
        case httpx2.TransportError():
            is_billed = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
            words = f"the connection to {provider} failed: {root_of(error)}"
            return failed(words, endpoint, retryable=True, is_billed=is_billed)
        case BadAnswer():
            return failed(f"{provider} did not answer as its API says: {error}", endpoint, retryable=True)
    return failed(f"{provider} did not answer as its API says: {root_of(error)}", endpoint, retryable=True)


def is_passing(status: int) -> bool:
    """Whether a status tells of a failure that may pass."""
    return status in _RETRYABLE_STATUSES or status >= 500


def is_models_own(status: int) -> bool:
    """Whether a status tells of a failure of the model itself: its key, its account, its name."""
    return status in (401, 402, 403, 404)


def failed(
    message: str,
    endpoint: Endpoint,
    *,
    retryable: bool,
    retry_after_s: float | None = None,
    is_too_long: bool = False,
    limit_tokens: int | None = None,
    is_billed: bool = True,
    is_models_own: bool = False,
) -> ModelFailed:
    """Make a failure whose message does not show the key."""
    return ModelFailed(
        hide_key(message[:_MAX_LOOKED_AT], endpoint.api_key)[:_MAX_WORDS],
        retryable=retryable,
        retry_after_s=retry_after_s,
        is_too_long=is_too_long,
        limit_tokens=limit_tokens,
        is_billed=is_billed,
        is_models_own=is_models_own,
    )


def _told(error: ProviderError, endpoint: Endpoint) -> ModelFailed:
    codes, words = codes_of(error.body), words_of(error.body)
    status = error.status or next((_STATUSES[code] for code in codes if code in _STATUSES), None) or _numeric(codes)
    is_too_long = "context_length_exceeded" in codes or is_about_length(words)
    is_exhausted = status == 402 or bool(_QUOTA_WORDS & set(codes)) or "credit balance is too low" in words.lower()
    retryable = status is None or is_passing(status)
    told = f"{words or 'no reason given'} (HTTP {status} from {endpoint.provider})"
    return failed(
        f"{endpoint.provider} failed: {words or 'no reason given'}" if status is None else told,
        endpoint,
        retryable=retryable and not is_exhausted and not is_too_long,
        retry_after_s=read_retry_after(error.headers),
        is_too_long=is_too_long,
        limit_tokens=read_limit(words) if is_too_long else None,
        is_billed=error.status is None,
        is_models_own=is_exhausted or (status is not None and is_models_own(status)),
    )


def codes_of(body: Any) -> list[str]:
    """List the codes and types that an error body names, outermost last."""
    found: list[str] = []
    for _ in range(_DEEPEST):
        if not isinstance(body, dict):
            break
        named = [str(body[name]) for name in ("code", "type") if isinstance(body.get(name), str | int)]
        found, body = named + found, body.get("error")
    return found


def _numeric(codes: list[str]) -> int | None:
    numbers = (int(code) for code in codes if len(code) == 3 and code.isdecimal())
    return next((number for number in numbers if 400 <= number < 600), None)


def is_about_length(words: str) -> bool:
    """Whether a provider says that a request exceeds the context window."""
    return _TOO_LONG.search(words[:_MAX_LOOKED_AT]) is not None


def read_limit(words: str) -> int | None:
    """Find the context window that a provider names when a request exceeds it."""
    found = _LIMIT.search(words[:_MAX_LOOKED_AT])
    return int(found[1].replace(",", "")) if found else None


def words_of(body: object) -> str:
    """Find the message in an error body: `{error: {message}}`, `{message}`, or just text."""
    for _ in range(_DEEPEST):
        if not isinstance(body, dict):
            break
        body = body.get("error") or body.get("message") or body.get("detail")
    try:
        return " ".join(str(body)[:_MAX_LOOKED_AT].split()) if body else ""
    except RecursionError:
        return ""


def root_of(error: BaseException) -> str:
    """Give the words of what an error began with."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error)[:_MAX_LOOKED_AT].strip() or type(error).__name__


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the pause that a provider asks for: in milliseconds, in seconds, or as the date of its end."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
    except ValueError:
        pass
    if (told := headers.get("retry-after")) is None:
        return None
    try:
        return max(0.0, float(told))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(told)
        return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
