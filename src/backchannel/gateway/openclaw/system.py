"""The gateway's machine, log and settings, for OpenClaw's clients."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from backchannel.config.schedules import show_moment
from backchannel.core.secrets.known import shown_settings
from backchannel.gateway.calls import Call, method
from backchannel.gateway.logs import RECENT
from backchannel.version import __version__
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams

_LINES, _MOST_LINES = 500, 5000
_BYTES, _MOST_BYTES = 250_000, 1_000_000


class Present(Answer, frozen=True, kw_only=True):
    ts: int
    mode: str
    """`gateway` or `client`."""
    version: str | None = None
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


class LogsTailParams(SharedParams, frozen=True, kw_only=True):
    cursor: Annotated[int, Meta(ge=0)] | None = None
    limit: Annotated[int, Meta(ge=1, le=_MOST_LINES)] = _LINES
    max_bytes: Annotated[int, Meta(ge=1, le=_MOST_BYTES)] = _BYTES


class LogLines(Answer, frozen=True, kw_only=True):
    file: str
    cursor: int
    """It counts lines since the start."""
    size: int
    lines: list[str]
    truncated: bool
    reset: bool
    """Whether the cursor is from an earlier process."""


class ConfigShown(Answer, frozen=True, kw_only=True):
    path: str
    exists: bool
    valid: bool
    hash: str
    config: dict[str, Any]
    """A secret is `<hidden>`; elsewhere, what is or looks like one is `[hidden]` or `[redacted]`."""
    issues: tuple[()]
    warnings: list[str]


@method("logs.tail", TokenScope.READ)
async def logs_tail(call: Call, params: LogsTailParams) -> LogLines:
    """Reads the newest lines of this process's log, or those after a cursor; the last thousand are kept.

    The log has no secrets, and less of what was said than the transcripts that this scope may read.
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


@method("config.get", TokenScope.READ)
async def config_get(call: Call, params: SharedNoParams) -> ConfigShown:
    """Shows the settings in force without secrets; unset ones are left out."""
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


@method("system-presence", TokenScope.READ)
async def system_presence(call: Call, params: SharedNoParams) -> list[Present]:
    """Lists the gateway and the connected clients with their scopes."""
    now = call.parts.clock.now_ms()
    clients = [
        Present(ts=now, mode="client", roles=(holder.role,), scopes=tuple(holder.shown_scopes))
        for holder in call.connections.holders
    ]
    return [Present(ts=now, mode="gateway", version=__version__), *clients]


class NoTypes(Answer, frozen=True, kw_only=True, omit_defaults=False):
    by_type: dict[str, int] = field(default_factory=dict)


class SystemInfo(Answer, frozen=True, kw_only=True, omit_defaults=False):
    machine_name: str
    hostname: str
    platform: str
    release: str
    arch: str
    os_label: str
    node_version: str
    """The versions of the gateway and of Python."""
    pid: int
    uptime_ms: int
    cpu_count: int
    load_average: tuple[float, float, float]
    memory_total_bytes: int
    memory_free_bytes: int
    disk_total_bytes: int
    disk_available_bytes: int
    disk_path: str


@method("system.info", TokenScope.READ)
async def system_info(call: Call, params: SharedNoParams) -> SystemInfo:
    """Shows the machine of the gateway, its free memory, and the free space of the disk with its state."""
    state = call.parts.config.state_dir
    disk, host = shutil.disk_usage(state), platform.node() or "unknown"
    return SystemInfo(
        machine_name=host,
        hostname=host,
        platform=platform.system().lower(),
        release=platform.release(),
        arch=platform.machine(),
        os_label=f"{platform.system()} {platform.release()}",
        node_version=f"Backchannel {__version__}, Python {platform.python_version()}",
        pid=os.getpid(),
        uptime_ms=call.connections.uptime_ms,
        cpu_count=os.cpu_count() or 1,
        load_average=os.getloadavg(),
        memory_total_bytes=_memory("SC_PHYS_PAGES"),
        memory_free_bytes=_memory("SC_AVPHYS_PAGES"),
        disk_total_bytes=disk.total,
        disk_available_bytes=disk.free,
        disk_path=str(state),
    )


class NoDiagnostics(Answer, frozen=True, kw_only=True, omit_defaults=False):
    generated_at: str
    capacity: int = 0
    count: int = 0
    dropped: int = 0
    events: tuple[()] = ()
    summary: NoTypes = NoTypes()


@method("diagnostics.stability", TokenScope.READ, is_open=True)
async def diagnostics_stability(call: Call, params: SharedNoParams) -> NoDiagnostics:
    """Shows an empty record: failures are in `logs.tail`, `status` and the metrics."""
    return NoDiagnostics(generated_at=show_moment(call.parts.clock.now_ms()))


def _memory(pages: str) -> int:
    """Measure a kind of memory; zero if the system does not say."""
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if pages in os.sysconf_names else 0
