"""Errors that a caller can meet, each with a stable code.

One place in the gateway turns them into WebSocket, HTTP, MCP and CLI output (`GatewayError.wire`). Nothing matches on
message text. `wire_code` is the general code of the wire protocol, and `code` is the exact, stable one. `details` holds
facts for programs. Messages say what came and what would work.

    GatewayError
    ├── InvalidRequest          the request is wrong
    │   ├── UnknownMethod, ProtocolMismatch, PayloadTooLarge
    │   ├── InvalidSessionKey, SessionIdReplaced, AmbiguousLabel, AmbiguousId, LabelInUse, MainSessionKept
    │   ├── UnknownAgent, UnknownChannel, UnknownModel
    │   │                                 └── ModelUnusable
    │   ├── InvalidSchedule, JobExists, JobConfigured, JobRunning
    │   └── IdempotencyConflict
    ├── NotFound                what was named does not exist
    │   ├── SessionNotFound, RunNotFound, ExchangeNotFound, DeliveryNotFound, JobNotFound, TokenNotFound
    │   └── ApprovalNotFound, PairingNotFound, SlotNotFound, UnknownTool
    ├── Forbidden               the caller is known, and may not
    │   └── ScopeMissing, PolicyDenied, OriginNotAllowed
    ├── Unauthorized            no valid token
    │   └── DeviceTokenRefused
    ├── BadSignature, SlowDown, BudgetExceeded
    ├── Unavailable             not now; nothing was changed
    │   └── QueueFull, StorageFull, DatabaseLocked, ShuttingDown
    ├── EndedByOperator         the operator ended this call
    └── StartupError            the gateway cannot start
        └── ConfigError, StateFolderInUse, DatabaseUnusable

`RunFailed` (a run that a Python program waited for, in `gateway/app.py`) and the errors of the command line (in `cli/`)
derive from `GatewayError` too. `FenceLost`, `StopRequested`, `ChatMovedMeanwhile`, `OwnPostUnderway` and
`PartUnderway` never reach a caller.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class GatewayError(Exception):
    """The base of all errors that are meant for a caller."""

    code: ClassVar[str] = "internal"
    wire_code: ClassVar[str] = "UNAVAILABLE"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def wire(self) -> dict[str, Any]:
        """Show the error as doors send it."""
        shown: dict[str, Any] = {"code": self.wire_code, "message": self.message}
        shown["details"] = {"code": self.code, **self.details}
        if self.retryable:
            shown["retryable"] = True
        if "retryAfterMs" in self.details:
            shown["retryAfterMs"] = self.details["retryAfterMs"]
        return shown


class InvalidRequest(GatewayError):
    """The request itself is wrong: parameters, types, values."""

    code = "bad_params"
    wire_code = "INVALID_REQUEST"
    http_status = 400


class UnknownMethod(InvalidRequest):
    """No method has this name."""

    code = "unknown_method"
    http_status = 404


class InvalidSessionKey(InvalidRequest):
    """The text is not a session key, or not one that can be addressed."""

    code = "invalid_session_key"


class AmbiguousLabel(InvalidRequest):
    """Several sessions have this label."""

    code = "ambiguous_label"


class AmbiguousId(InvalidRequest):
    """Several ids begin with the given text."""

    code = "ambiguous_id"


class LabelInUse(InvalidRequest):
    """Another session of the agent has this label."""

    code = "label_in_use"


class UnknownAgent(InvalidRequest):
    """No configured or registered agent has this id."""

    code = "unknown_agent"


class UnknownModel(InvalidRequest):
    """The model reference is malformed, unknown or cannot be used."""

    code = "unknown_model"


class ModelUnusable(UnknownModel):
    """The model's provider is known, but its key or its package is missing."""

    code = "model_unusable"


class UnknownChannel(InvalidRequest):
    """No channel has this name, or it cannot deliver."""

    code = "unknown_channel"


class InvalidSchedule(InvalidRequest):
    """The text is no schedule, its time never comes, or its time zone is unknown."""

    code = "invalid_schedule"


class JobExists(InvalidRequest):
    """Another cron job has this id."""

    code = "job_exists"
    http_status = 409


class JobConfigured(InvalidRequest):
    """The cron job is in the configuration, and can be changed only there."""

    code = "job_configured"


class JobRunning(InvalidRequest):
    """The last run of the cron job has not ended."""

    code = "job_running"
    http_status = 409


class MainSessionKept(InvalidRequest):
    """The main session can only be reset."""

    code = "main_session"


class SessionIdReplaced(InvalidRequest):
    """The session id was replaced by a reset, or is not the current one."""

    code = "session_id_replaced"


class IdempotencyConflict(InvalidRequest):
    """The key was used for another request. The error shows nothing of the first request."""

    code = "idempotency_conflict"
    http_status = 409


class ProtocolMismatch(InvalidRequest):
    """The client speaks another version of the protocol."""

    code = "PROTOCOL_MISMATCH"


class PayloadTooLarge(InvalidRequest):
    """A frame or body is over its limit."""

    code = "payload_too_large"
    http_status = 413


class NotFound(GatewayError):
    """What was named does not exist."""

    code = "not_found"
    wire_code = "NOT_FOUND"
    http_status = 404


class SessionNotFound(NotFound):
    """No session has this key, id or label."""

    code = "session_not_found"

    @classmethod
    def named(cls, name: str, more: str = "", **details: Any) -> Self:
        """Make the error for a name that no session has; `more` says what would work."""
        return cls(f"no session {name}{more} (sessions.list shows those there are)", **details)


class RunNotFound(NotFound):
    """No run has this id."""

    code = "run_not_found"


class ExchangeNotFound(NotFound):
    """No exchange has this id, or this run."""

    code = "exchange_not_found"


class DeliveryNotFound(NotFound):
    """No delivery has this id."""

    code = "delivery_not_found"


class JobNotFound(NotFound):
    """No cron job has this id."""

    code = "CRON_JOB_NOT_FOUND"


class TokenNotFound(NotFound):
    """No token has this id."""

    code = "token_not_found"


class ApprovalNotFound(NotFound):
    """No approval has this id."""

    code = "approval_not_found"


class PairingNotFound(NotFound):
    """No pairing request has this code, and no sender this id."""

    code = "pairing_not_found"


class SlotNotFound(NotFound):
    """No call that has or waits for a slot of this gateway has this id."""

    code = "slot_not_found"


class UnknownTool(NotFound):
    """No tool has this name."""

    code = "unknown_tool"


class Forbidden(GatewayError):
    """The caller is known, and may not do this."""

    code = "forbidden"
    wire_code = "FORBIDDEN"
    http_status = 403


class ScopeMissing(Forbidden):
    """The token lacks a scope that the method needs."""

    code = "scope_missing"


class PolicyDenied(Forbidden):
    """A send policy forbids this; the message names the rule."""

    code = "policy_denied"


class OriginNotAllowed(Forbidden):
    """A page of a foreign origin may not use the gateway. OpenClaw's page explains this code."""

    code = "CONTROL_UI_ORIGIN_NOT_ALLOWED"


class Unauthorized(GatewayError):
    """No valid token came."""

    code = "AUTH_TOKEN_MISMATCH"
    wire_code = "FORBIDDEN"
    http_status = 401


class DeviceTokenRefused(Unauthorized):
    """A page's device token is not valid. On this code, OpenClaw's page deletes it and asks for another token."""

    code = "AUTH_DEVICE_TOKEN_MISMATCH"


class BadSignature(GatewayError):
    """A post to a channel is not signed with its secret. `signature` is the signature that came."""

    code = "bad_signature"
    wire_code = "FORBIDDEN"
    http_status = 401

    def __init__(self, message: str, *, signature: str = "") -> None:
        super().__init__(message)
        self.signature = signature


class SlowDown(GatewayError):
    """Too many wrong tokens, signatures or codes. A right one is accepted at once."""

    code = "rate_limited"
    http_status = 429
    retryable = True


class BudgetExceeded(GatewayError):
    """A budget is used up. `budget` is its name, and `opensAt` when it opens again."""

    code = "budget_exceeded"
    http_status = 429


class Unavailable(GatewayError):
    """The gateway cannot do this now; nothing was changed."""

    code = "unavailable"
    http_status = 503
    retryable = True


class StorageFull(Unavailable):
    """The disk is full. Reads work, and writes wait for space."""

    code = "storage_full"


class QueueFull(Unavailable):
    """Too many messages wait in the session."""

    code = "queue_full"


class DatabaseLocked(Unavailable):
    """Another program holds a lock on a row to be changed. The message names the program."""

    code = "database_locked"


class ShuttingDown(Unavailable):
    """The gateway is stopping. Accepted runs continue at its next start."""

    code = "shutting_down"


class EndedByOperator(GatewayError):
    """The operator ended a call that had a slot or waited for one."""

    code = "ended_by_operator"
    http_status = 409

    def __init__(self, *, had_begun: bool) -> None:
        before = "" if had_begun else " before it had begun"
        super().__init__(f"the operator ended this call{before}")
        self.had_begun = had_begun


class StartupError(GatewayError):
    """The gateway cannot start; the message says what to change."""

    code = "startup"
    wire_code = "INVALID_REQUEST"


class ConfigError(StartupError):
    """The configuration is invalid. The message names path, line and the nearest valid name."""

    code = "config"


class StateFolderInUse(StartupError):
    """Another process holds the state folder."""

    code = "state_in_use"


class DatabaseUnusable(StartupError):
    """The database is corrupt, newer than this program, or not one of ours; it was not touched."""

    code = "database"


class FenceLost(Exception):
    """A write came from a holder that no longer owns the run. Internal: the runner stops quietly."""


class ChatMovedMeanwhile(Exception):
    """A message was routed before its chat got another id. Internal: it is routed anew."""


class OwnPostUnderway(Exception):
    """A post may be the gateway's own: the platform has not returned its id yet. Internal: it is checked again soon."""


class PartUnderway(Exception):
    """A proof names an unknown message while something is being sent. Internal: it is looked up again soon."""


class StopRequested(Exception):
    """A step came after its run was asked to stop. Internal: the runner ends the run as aborted."""
