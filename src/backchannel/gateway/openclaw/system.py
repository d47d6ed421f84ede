"""The machine and the process of the gateway, as OpenClaw's Control UI shows them to the operator."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any

from backchannel.gateway.ws.connections import Call, Method
from backchannel.version import __version__
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer


class SystemInfo(Answer, frozen=True, kw_only=True, omit_defaults=False):
    machine_name: str
    hostname: str
    platform: str
    release: str
    arch: str
    os_label: str
    node_version: str
    """The runtime: here, of this gateway and of Python."""
    pid: int
    uptime_ms: int
    cpu_count: int
    load_average: tuple[float, float, float]
    memory_total_bytes: int
    memory_free_bytes: int
    disk_total_bytes: int
    disk_available_bytes: int
    disk_path: str


async def system_info(call: Call, params: SharedNoParams) -> SystemInfo:
    """Tells on what machine the gateway runs, and what is free of its memory and of the disk with its state."""
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


def _memory(pages: str) -> int:
    """Tell how large a kind of memory is; zero where the system does not say."""
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if pages in os.sysconf_names else 0


METHODS: tuple[Method[Any], ...] = (
    Method(
        "system.info",
        SharedNoParams,
        TokenScope.READ,
        system_info,
        "`{machineName, hostname, platform, release, arch, osLabel, nodeVersion, pid, uptimeMs, cpuCount, loadAverage, "
        "memoryTotalBytes, memoryFreeBytes, diskTotalBytes, diskAvailableBytes, diskPath}`; `nodeVersion` names the "
        "versions of the gateway and of Python",
    ),
)
