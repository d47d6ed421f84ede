"""Nodes: the methods that a client has which connected as one. It sees its own sessions and nothing else.

OpenClaw's nodes also publish what they have and can do. That is taken and not kept: this gateway asks nodes to run
nothing, and so says that no event was handled, and that no tool and no skill is in use.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.keys import SessionKey
from backchannel.core.runs import RunKind, RunRequest
from backchannel.errors import Forbidden
from backchannel.gateway.fields import TriggersKey, digest_of, read_content
from backchannel.gateway.methods.chat import shown_state
from backchannel.gateway.methods.history import ChatHistory, read_history
from backchannel.gateway.ws.connections import Call, Method
from backchannel.triggers import nodes
from backchannel.wire.answers import ChatStarted
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, Params, SharedParams


class NodeMessageParams(Params, frozen=True, kw_only=True):
    text: str
    session_key: str | None = None
    idempotency_key: TriggersKey | None = None


class NodeHistoryParams(Params, frozen=True, kw_only=True):
    session_key: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    before: str | None = None
    after: str | None = None


async def node_message(call: Call, params: NodeMessageParams) -> ChatStarted:
    """Sends what a node says to its session; the reply comes as `chat` events."""
    node, key = _node(call), _own(call, params.session_key)
    request = RunRequest(
        key=key,
        content=read_content(params.text, "text"),
        provenance=nodes.SAID,
        kind=RunKind.NODE,
        id=nodes.run_id(node, params.idempotency_key),
        digest=digest_of(call.holder.token_id, "node.message", key, params),
    )
    call.subscriptions.watch_chat(call.subscriber, str(key))  # before it is accepted, so that no event is missed
    with call.subscriptions.answering(call.subscriber, str(key)):
        accepted = await call.parts.runtime.submit(request)
    return ChatStarted(run_id=accepted.run.id, status=shown_state(accepted))


async def node_history(call: Call, params: NodeHistoryParams) -> ChatHistory:
    """Reads a node's own session, as `chat.history` does; one that nothing was said in yet is empty."""
    key = _own(call, params.session_key)
    call.subscriptions.watch_chat(call.subscriber, str(key))
    session = await call.parts.store.session(str(key))
    if session is not None and session.archived_at is not None:
        session = None  # it was deleted, and starts afresh with the next message
    history, _ = await read_history(call, key, session, limit=params.limit, before=params.before, after=params.after)
    return history


class NodeEventParams(SharedParams, frozen=True, kw_only=True):
    event: Annotated[str, Meta(min_length=1, max_length=256)]


class NodeEventTaken(Answer, frozen=True, kw_only=True):
    ok: bool
    event: str
    handled: bool
    reason: str


class NodeToolsTaken(Answer, frozen=True, kw_only=True):
    node_id: str
    tools: tuple[()]


class NodeSkillsTaken(Answer, frozen=True, kw_only=True):
    node_id: str
    skills: tuple[()]


class NodeInventoryTaken(Answer, frozen=True, kw_only=True):
    node_id: str


async def node_event(call: Call, params: NodeEventParams) -> NodeEventTaken:
    """Takes what a node tells of itself, such as its load; nothing is done with it."""
    return NodeEventTaken(ok=True, event=params.event, handled=False, reason="this gateway uses no events of nodes")


async def node_plugin_tools_update(call: Call, params: SharedNoParams) -> NodeToolsTaken:
    """Takes a node's list of tools, of which none is used here."""
    return NodeToolsTaken(node_id=nodes.id_of(_node(call)), tools=())


async def node_skills_update(call: Call, params: SharedNoParams) -> NodeSkillsTaken:
    """Takes a node's list of skills, of which none is used here."""
    return NodeSkillsTaken(node_id=nodes.id_of(_node(call)), skills=())


async def node_runner_inventory_update(call: Call, params: SharedNoParams) -> NodeInventoryTaken:
    """Takes a node's list of what it could run; it is asked to run nothing."""
    return NodeInventoryTaken(node_id=nodes.id_of(_node(call)))


def _node(call: Call) -> SessionKey:
    if call.holder.node is None:
        raise Forbidden("only a node has sessions of its own")
    return call.holder.node


def _own(call: Call, text: str | None) -> SessionKey:
    return nodes.own_key(_node(call), call.parts.scheme, text)


METHODS: tuple[Method[Any], ...] = (
    Method(
        "node.message",
        NodeMessageParams,
        TokenScope.WRITE,
        node_message,
        "`{runId, status: started | queued}`; a repeated request hears the state of the first. With an "
        "`idempotencyKey` the run's id is `<the node's session key>/<key>`",
        for_nodes=True,
    ),
    Method(
        "node.history",
        NodeHistoryParams,
        TokenScope.READ,
        node_history,
        "`{sessionKey, sessionId?, messages, pending, pendingLeftOut?, hasMore, thinkingLevel?}`",
        for_nodes=True,
    ),
    Method(
        "node.event",
        NodeEventParams,
        TokenScope.WRITE,
        node_event,
        "`{ok, event, handled, reason}`; nothing is ever handled",
        for_nodes=True,
    ),
    Method(
        "node.pluginTools.update",
        SharedNoParams,
        TokenScope.WRITE,
        node_plugin_tools_update,
        "`{nodeId, tools}`, always without tools",
        for_nodes=True,
    ),
    Method(
        "node.skills.update",
        SharedNoParams,
        TokenScope.WRITE,
        node_skills_update,
        "`{nodeId, skills}`, always without skills",
        for_nodes=True,
    ),
    Method(
        "node.runnerInventory.update",
        SharedNoParams,
        TokenScope.WRITE,
        node_runner_inventory_update,
        "`{nodeId}`",
        for_nodes=True,
    ),
)
