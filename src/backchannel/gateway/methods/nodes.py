"""Nodes: the two methods that a client has which connected as one. It sees its own sessions and nothing else."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.answers import ChatStarted
from backchannel.core.keys import SessionKey
from backchannel.core.runs import RunKind, RunRequest
from backchannel.core.shapes import Params
from backchannel.errors import Forbidden
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.fields import TriggersKey, digest_of, read_content
from backchannel.gateway.methods.chat import shown_state
from backchannel.gateway.methods.history import ChatHistory, read_history
from backchannel.gateway.protocol import TokenScope
from backchannel.triggers import nodes


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
)
