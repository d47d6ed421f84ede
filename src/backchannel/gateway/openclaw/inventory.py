"""What there is, as OpenClaw's clients ask for it: who is connected, the channels, and an agent with its tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from backchannel.agents.sandbox.sandboxes import workspace_of
from backchannel.core.contracts import Tool
from backchannel.core.delivery.channels import DEFAULT_ACCOUNT, Channel
from backchannel.core.text import quoted
from backchannel.errors import NotFound
from backchannel.gateway.addressing import address_for_message, known_agent
from backchannel.gateway.fields import read_content
from backchannel.gateway.methods.channels import OK, channel_states
from backchannel.gateway.ws.connections import Call, Method
from backchannel.triggers import hooks
from backchannel.version import __version__
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams


class OfAgentParams(SharedParams, frozen=True, kw_only=True):
    agent_id: str | None = None
    session_key: str | None = None


class WakeParams(SharedParams, frozen=True, kw_only=True):
    text: str
    agent_id: str | None = None
    session_key: str | None = None


class AgentWoken(Answer, frozen=True, kw_only=True):
    ok: bool
    message_id: str
    session_key: str


class Present(Answer, frozen=True, kw_only=True):
    ts: int
    mode: str
    version: str | None = None
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


class AgentIdentity(Answer, frozen=True, kw_only=True):
    agent_id: str
    name: str | None = None


class AgentFiles(Answer, frozen=True, kw_only=True):
    agent_id: str
    workspace: str
    files: tuple[()]


class CatalogTool(Answer, frozen=True, kw_only=True):
    id: str
    label: str
    description: str
    source: str
    default_profiles: tuple[()]


class CatalogGroup(Answer, frozen=True, kw_only=True):
    id: str
    label: str
    source: str
    tools: list[CatalogTool]


class ToolsCatalog(Answer, frozen=True, kw_only=True):
    agent_id: str
    profiles: tuple[()]
    groups: list[CatalogGroup]


class EffectiveTool(Answer, frozen=True, kw_only=True):
    id: str
    label: str
    description: str
    raw_description: str
    source: str


class EffectiveGroup(Answer, frozen=True, kw_only=True):
    id: str
    label: str
    source: str
    tools: list[EffectiveTool]


class ToolsEffective(Answer, frozen=True, kw_only=True):
    agent_id: str
    profile: str
    groups: list[EffectiveGroup]


class ChannelAccount(Answer, frozen=True, kw_only=True):
    account_id: str
    configured: bool
    connected: bool
    last_error: str | None = None


class ChannelsStatus(Answer, frozen=True, kw_only=True):
    ts: int
    channel_order: list[str]
    channel_labels: dict[str, str]
    channels: dict[str, ChannelAccount]
    channel_accounts: dict[str, list[ChannelAccount]]
    channel_default_account_id: dict[str, str]


class NodeShown(Answer, frozen=True, kw_only=True):
    node_id: str
    session_key: str
    connected: bool
    display_name: str | None = None
    platform: str | None = None
    version: str | None = None
    device_family: str | None = None
    caps: tuple[str, ...] = ()


class NodeDescribed(NodeShown, frozen=True, kw_only=True):
    ts: int


class NodeParams(SharedParams, frozen=True, kw_only=True):
    node_id: str


class NodesListed(Answer, frozen=True, kw_only=True):
    ts: int
    nodes: list[NodeShown]


async def system_presence(call: Call, params: SharedNoParams) -> list[Present]:
    """Lists who is connected: the gateway itself, and each client with what it may do."""
    now = call.parts.clock.now_ms()
    clients = [
        Present(ts=now, mode="client", roles=(holder.role,), scopes=tuple(holder.shown_scopes))
        for holder in call.connections.holders
    ]
    return [Present(ts=now, mode="gateway", version=__version__), *clients]


async def node_list(call: Call, params: SharedNoParams) -> NodesListed:
    """Lists the nodes that are connected now, with what each says of itself."""
    return NodesListed(ts=call.parts.clock.now_ms(), nodes=_nodes(call))


async def node_describe(call: Call, params: NodeParams) -> NodeDescribed:
    """Shows one node that is connected now, as `node.list` does."""
    for node in _nodes(call):
        if node.node_id == params.node_id:
            return NodeDescribed(ts=call.parts.clock.now_ms(), **msgspec.structs.asdict(node))
    raise NotFound(f"no node {quoted(params.node_id)} is connected (node.list shows those that are)")


def _nodes(call: Call) -> list[NodeShown]:
    said = {
        str(holder.node): holder.node_says
        for holder in call.connections.holders
        if holder.node is not None and holder.node_says is not None
    }
    return [
        NodeShown(
            node_id=key.rpartition(":node-")[2],
            session_key=call.parts.rows.key(key),
            connected=True,
            display_name=says.name,
            platform=says.platform,
            version=says.version,
            device_family=says.device_family,
            caps=says.caps,
        )
        for key, says in sorted(said.items())
    ]


def accounts_of(channel: Channel) -> list[str]:
    """List the accounts of a channel; one that knows of none has one."""
    return sorted(channel.own_names) or [DEFAULT_ACCOUNT]


async def channels_status(call: Call, params: SharedNoParams) -> ChannelsStatus:
    """Tells of each channel whether it works; `channels.list` tells more."""
    parts, states = call.parts, channel_states(call.parts)
    accounts = {name: accounts_of(parts.channels[name]) for name in parts.channels}
    shown = {
        state.name: [
            ChannelAccount(
                account_id=account, configured=True, connected=state.status == OK, last_error=state.last_error
            )
            for account in accounts[state.name]
        ]
        for state in states
    }
    return ChannelsStatus(
        ts=parts.clock.now_ms(),
        channel_order=list(shown),
        channel_labels={name: name for name in shown},
        channels={name: each[0] for name, each in shown.items()},
        channel_accounts=shown,
        channel_default_account_id={name: each[0].account_id for name, each in shown.items()},
    )


async def agent_identity_get(call: Call, params: OfAgentParams) -> AgentIdentity:
    """Tells what an agent is called."""
    agent_id = await _agent_of(call, params)
    return AgentIdentity(agent_id=agent_id, name=call.parts.agents.get(agent_id).name)


async def agents_files_list(call: Call, params: OfAgentParams) -> AgentFiles:
    """Tells where an agent's workspace is; no file in it is part of its instructions."""
    agent_id = await _agent_of(call, params)
    workspace = workspace_of(call.parts.agents.get(agent_id), call.parts.config.state_dir)
    return AgentFiles(agent_id=agent_id, workspace=str(workspace), files=())


async def tools_catalog(call: Call, params: OfAgentParams) -> ToolsCatalog:
    """Lists all tools there are, by their groups; `agents.list` says which an agent has, and why not the others."""
    return ToolsCatalog(
        agent_id=await _agent_of(call, params),
        profiles=(),
        groups=[
            CatalogGroup(
                id=group,
                label=group,
                source="core",
                tools=[
                    CatalogTool(
                        id=tool.name,
                        label=tool.name,
                        description=tool.description,
                        source="core",
                        default_profiles=(),
                    )
                    for tool in tools
                ],
            )
            for group, tools in _grouped(call.parts.toolset.all()).items()
        ],
    )


async def tools_effective(call: Call, params: OfAgentParams) -> ToolsEffective:
    """Lists the tools that an agent has in a session; without a key, in its main one."""
    parts = call.parts
    key = (await address_for_message(parts, params.session_key or "main", params.agent_id)).key
    tools = sorted(parts.toolset.of(key.agent, str(key)).values(), key=lambda tool: tool.name)
    shown = [
        EffectiveTool(
            id=tool.name,
            label=tool.name,
            description=tool.description,
            raw_description=tool.description,
            source="core",
        )
        for tool in tools
    ]
    return ToolsEffective(
        agent_id=key.agent,
        profile="backchannel",
        groups=[EffectiveGroup(id="core", label="Tools", source="core", tools=shown)] if shown else [],
    )


def _grouped(tools: Iterable[Tool]) -> dict[str, list[Tool]]:
    groups: dict[str, list[Tool]] = {}
    for tool in sorted(tools, key=lambda tool: tool.name):
        groups.setdefault(tool.group or "own", []).append(tool)
    return groups


async def _agent_of(call: Call, params: OfAgentParams) -> str:
    if params.session_key is not None:
        return (await address_for_message(call.parts, params.session_key, params.agent_id)).key.agent
    return call.parts.agents.default_id if params.agent_id is None else known_agent(call.parts, params.agent_id)


async def wake(call: Call, params: WakeParams) -> AgentWoken:
    """Leaves a note in a session, the main one if none is named; the agent reads it with the next message."""
    parts = call.parts
    read_content(params.text, "text")
    at = await address_for_message(parts, params.session_key or "main", params.agent_id)
    note = hooks.wake_note(params.text, parts.clock.now_ms())
    message_id = await parts.store.add_note(at.key, note, expected_session_id=at.session_id)
    return AgentWoken(ok=True, message_id=message_id, session_key=parts.rows.key(str(at.key)))


_NODE = "nodeId, sessionKey, connected, displayName?, platform?, version?, deviceFamily?, caps?"
_ACCOUNT = "{accountId, configured, connected, lastError?}"

METHODS: tuple[Method[Any], ...] = (
    Method(
        "system-presence",
        SharedNoParams,
        TokenScope.READ,
        system_presence,
        "`{ts, mode: gateway | client, version?, roles?, scopes?}`, a list of them",
    ),
    Method(
        "node.list",
        SharedNoParams,
        TokenScope.READ,
        node_list,
        f"`{{ts, nodes: [{{{_NODE}}}]}}`, with what each says of itself; no command of a node can be called here",
    ),
    Method("node.describe", NodeParams, TokenScope.READ, node_describe, f"`{{ts, {_NODE}}}`"),
    Method(
        "channels.status",
        SharedNoParams,
        TokenScope.READ,
        channels_status,
        f"`{{ts, channelOrder, channelLabels, channels: {{name: {_ACCOUNT}}}, channelAccounts: {{name: [{_ACCOUNT}]}}, "
        "channelDefaultAccountId}`",
    ),
    Method("agent.identity.get", OfAgentParams, TokenScope.READ, agent_identity_get, "`{agentId, name?}`"),
    Method("agents.files.list", OfAgentParams, TokenScope.READ, agents_files_list, "`{agentId, workspace, files}`"),
    Method(
        "tools.catalog",
        OfAgentParams,
        TokenScope.READ,
        tools_catalog,
        "`{agentId, profiles, groups: [{id, label, source, tools: [{id, label, description, source, "
        "defaultProfiles}]}]}`",
    ),
    Method(
        "tools.effective",
        OfAgentParams,
        TokenScope.READ,
        tools_effective,
        "`{agentId, profile, groups: [{id, label, source, tools: [{id, label, description, rawDescription, "
        "source}]}]}`",
    ),
    Method("wake", WakeParams, TokenScope.WRITE, wake, "`{ok, messageId, sessionKey}`"),
)
