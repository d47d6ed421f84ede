"""The parts of a running gateway that its doors use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backchannel.agents.gates import Gates
from backchannel.agents.sandbox.sandboxes import Sandboxes
from backchannel.agents.toolset import Tools
from backchannel.channels.inbound import Inbound
from backchannel.channels.registry import ChannelKeeper
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.secrets.known import KnownSecrets
from backchannel.gateway.cache_watch import CacheWatch
from backchannel.runtime.runtime import Runtime
from backchannel.runtime.supervisor import Supervisor
from backchannel.tools.base import Parts
from backchannel.tools.commands import ChatCommands
from backchannel.tools.rows import Rows
from backchannel.triggers.cron import CronJobs

if TYPE_CHECKING:
    from backchannel.agents.mcp.servers import McpServers


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts(Parts):
    """The parts of a gateway that is running; `gateway/app.py` puts them together."""

    runtime: Runtime
    toolset: Tools
    mcp_servers: McpServers | None
    """None if none is configured."""
    sandboxes: Sandboxes
    gates: Gates
    """The slots of each kind of work, and their users."""
    channels: Channels
    keeper: ChannelKeeper
    supervisor: Supervisor
    commands: ChatCommands
    inbound: Inbound
    cron: CronJobs
    rows: Rows
    """Sessions and runs as an operator sees them."""
    caches: CacheWatch
    """Long conversations that providers stopped reading from their cache."""
    secrets: KnownSecrets
    """The secrets of the configuration, which answers must not show."""
    last_model: str | None
    """The default model of an earlier start, if it was not the demo."""
