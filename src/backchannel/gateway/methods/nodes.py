"""Nodes: a client that connected as a node sees only its own sessions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from backchannel.core.keys import SessionKey
from backchannel.core.runs import RunKind, RunRequest
from backchannel.errors import Forbidden
from backchannel.gateway.calls import Call, method
from backchannel.gateway.fields import TriggersKey, digest_of, read_content
from backchannel.gateway.methods.chat import shown_state
from backchannel.gateway.methods.history import ChatHistory, read_history
from backchannel.triggers import nodes
from backchannel.wire.answers import ChatStarted
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Params


class NodeMessageParams(Params, frozen=True, kw_only=True):
    text: str
    session_key: str | None = None
    idempotency_key: TriggersKey | None = None


class NodeHistoryParams(Params, frozen=True, kw_only=True):
    session_key: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    before: str | None = None
    after: str | None = None


@method("node.message", TokenScope.WRITE, for_nodes=True)
async def node_message(call: Call, params: NodeMessageParams) -> ChatStarted:
    """Sends a node's message to its session; the reply comes as `chat` events.

    With an `idempotencyKey` the run's id is `<the node's session key>/<key>`.
    """
    node, key = node_of(call), _own(call, params.session_key)
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


@method("node.history", TokenScope.READ, for_nodes=True)
async def node_history(call: Call, params: NodeHistoryParams) -> ChatHistory:
    """Reads a node's own session, as `chat.history` does; a new session is empty."""
    key = _own(call, params.session_key)
    call.subscriptions.watch_chat(call.subscriber, str(key))
    session = await call.parts.store.session(str(key))
    if session is not None and session.archived_at is not None:
        session = None  # it was deleted; the next message starts it anew
    history, _ = await read_history(call, key, session, limit=params.limit, before=params.before, after=params.after)
    return history


def node_of(call: Call) -> SessionKey:
    """Give the session key of the node that calls.

    Raises:
        Forbidden: it is no node.
    """
    if call.holder.node is None:
        raise Forbidden("only a node has sessions of its own")
    return call.holder.node


def _own(call: Call, text: str | None) -> SessionKey:
    return nodes.own_key(node_of(call), call.parts.scheme, text)
