"""Nodes, as OpenClaw's clients list them and as its nodes report.

Its nodes publish their tools and skills. This gateway asks nodes to run nothing, so it stores none of that and answers
that nothing is in use.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backchannel.core.text import quoted
from backchannel.errors import NotFound
from backchannel.gateway.calls import Call, method
from backchannel.gateway.methods.nodes import node_of
from backchannel.triggers import nodes
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams


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


@method("node.list", TokenScope.READ)
async def node_list(call: Call, params: SharedNoParams) -> NodesListed:
    """Lists the connected nodes, with what each reports about itself; none can be asked to run a command."""
    return NodesListed(ts=call.parts.clock.now_ms(), nodes=_nodes(call))


@method("node.describe", TokenScope.READ)
async def node_describe(call: Call, params: NodeParams) -> NodeDescribed:
    """Shows one connected node, as `node.list` does."""
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


class NodeEventParams(SharedParams, frozen=True, kw_only=True):
    event: Annotated[str, Meta(min_length=1, max_length=256)]


class NodeEventTaken(Answer, frozen=True, kw_only=True):
    ok: bool
    event: str
    handled: bool
    reason: str


class NodeReportTaken(Answer, frozen=True, kw_only=True):
    node_id: str
    tools: tuple[()] | UnsetType = UNSET
    skills: tuple[()] | UnsetType = UNSET


@method("node.event", TokenScope.WRITE, for_nodes=True)
async def node_event(call: Call, params: NodeEventParams) -> NodeEventTaken:
    """Accepts an event of a node, such as its load, and ignores it."""
    return NodeEventTaken(ok=True, event=params.event, handled=False, reason="this gateway uses no events of nodes")


@method("node.pluginTools.update", TokenScope.WRITE, for_nodes=True)
async def node_plugin_tools_update(call: Call, params: SharedNoParams) -> NodeReportTaken:
    """Accepts a node's list of tools; none is used here."""
    return NodeReportTaken(node_id=nodes.id_of(node_of(call)), tools=())


@method("node.skills.update", TokenScope.WRITE, for_nodes=True)
async def node_skills_update(call: Call, params: SharedNoParams) -> NodeReportTaken:
    """Accepts a node's list of skills; none is used here."""
    return NodeReportTaken(node_id=nodes.id_of(node_of(call)), skills=())


@method("node.runnerInventory.update", TokenScope.WRITE, for_nodes=True)
async def node_runner_inventory_update(call: Call, params: SharedNoParams) -> NodeReportTaken:
    """Accepts a node's list of programs; none is used here."""
    return NodeReportTaken(node_id=nodes.id_of(node_of(call)))
