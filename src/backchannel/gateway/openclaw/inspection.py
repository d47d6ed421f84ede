"""The log of a running gateway, and its settings; no secret is in either."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backchannel.core.secrets.known import shown_settings
from backchannel.gateway.logs import RECENT
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams

_LINES, _MOST_LINES = 500, 5000
_BYTES, _MOST_BYTES = 250_000, 1_000_000


class LogsTailParams(SharedParams, frozen=True, kw_only=True):
    cursor: Annotated[int, Meta(ge=0)] | None = None
    limit: Annotated[int, Meta(ge=1, le=_MOST_LINES)] = _LINES
    max_bytes: Annotated[int, Meta(ge=1, le=_MOST_BYTES)] = _BYTES


class LogLines(Answer, frozen=True, kw_only=True):
    file: str
    cursor: int
    size: int
    lines: list[str]
    truncated: bool
    reset: bool


class ConfigShown(Answer, frozen=True, kw_only=True):
    path: str
    exists: bool
    valid: bool
    hash: str
    config: dict[str, Any]
    issues: tuple[()]
    warnings: list[str]


async def logs_tail(call: Call, params: LogsTailParams) -> LogLines:
    """Reads the newest lines of this process's log, or those after a cursor; the last thousand are kept.

    Who may read every transcript may read it: it tells less of what was said than they do, and shows no secret.
    """
    tail = RECENT.after(params.cursor, params.limit, params.max_bytes)
    return LogLines(
        file="memory",
        cursor=tail.end,
        size=tail.end,
        lines=tail.lines,
        truncated=tail.left_out,
        reset=params.cursor is not None and params.cursor > tail.end,
    )


async def config_get(call: Call, params: SharedNoParams) -> ConfigShown:
    """Shows the settings in force, without their secrets; what is unset is left out."""
    settings, secrets = call.parts.config, call.parts.secrets
    config: dict[str, Any] = _without_nulls(shown_settings(settings, secrets))
    return ConfigShown(
        path=str(settings.file or settings.state_dir / "backchannel.json5"),
        exists=settings.file is not None,
        valid=True,
        hash=hashlib.sha256(msgspec.json.encode(config)).hexdigest(),
        config=config,
        issues=(),
        warnings=[secrets.hide(finding.message) for finding in settings.warnings],
    )


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
        case list():
            return [_without_nulls(inner) for inner in value]
    return value


METHODS: tuple[Method[Any], ...] = (
    Method(
        "logs.tail",
        LogsTailParams,
        TokenScope.READ,
        logs_tail,
        "`{file, cursor, size, lines, truncated, reset}`; a cursor counts lines since the start, and `reset` says that "
        "it was one of an earlier process",
    ),
    Method(
        "config.get",
        SharedNoParams,
        TokenScope.READ,
        config_get,
        "`{path, exists, valid, hash, config, issues, warnings}`; a setting that is a secret is `<hidden>`, and "
        "what is or looks like one elsewhere is `[hidden]` or `[redacted]`",
    ),
)
