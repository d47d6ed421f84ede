"""What the doors work with: what the tools have, and what stands above the tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backchannel.agents.gates import Gates
from backchannel.agents.sandbox.sandboxes import Sandboxes
from backchannel.agents.toolset import Tools
from backchannel.channels.inbound import Inbound
from backchannel.channels.registry import ChannelKeeper
from backchannel.core.delivery.channels import Channels
from backchannel.core.secrets.known import KnownSecrets
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
    """The slots of every kind of work, and who has them."""
    channels: Channels
    keeper: ChannelKeeper
    supervisor: Supervisor
    commands: ChatCommands
    inbound: Inbound
    cron: CronJobs
    rows: Rows
    """Sessions and runs as an operator sees them."""
    secrets: KnownSecrets
    """Those of the configuration, for what is shown to whoever may read."""
    last_model: str | None
    """The model that agents without one had at an earlier start, if it was not the demo."""
