"""Trees of sessions: parents, children, their state and their usage."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from backchannel.core.forest import Relative, Relatives
from backchannel.core.keys import normalise_agent_id
from backchannel.core.messages import Usage
from backchannel.core.text import shown_name
from backchannel.errors import InvalidRequest
from backchannel.gateway.addressing import find_session
from backchannel.gateway.calls import Call, method
from backchannel.tools.rows import Rows, name_of
from backchannel.tools.status import show_spawn
from backchannel.wire.answers import Trees
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import TreeNode
from backchannel.wire.shapes import Params

_SHOWN, _MOST_SHOWN = 200, 1000


class TreeParams(Params, frozen=True, kw_only=True):
    key: str | None = None
    agent_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _SHOWN


@method("sessions.tree", TokenScope.READ)
async def sessions_tree(call: Call, params: TreeParams) -> Trees:
    """Shows which session spawned which: one session with all below it, or the newest sessions with their parents."""
    if params.key is not None and params.agent_id is not None:
        raise InvalidRequest("key, agentId: only one of them can be given", param="agentId")
    store, limit = call.parts.store, min(params.limit, _MOST_SHOWN)
    if params.key is not None:
        session = await find_session(call.parts, params.key, archived=True)
        found = await store.branch(session.key, limit)
    else:
        agent_id = None if params.agent_id is None else normalise_agent_id(params.agent_id)
        found = await store.newest_trees(agent_id, limit)
    return _show(call, found)


def _show(call: Call, found: Relatives) -> Trees:
    rows = call.parts.rows
    return Trees(
        ts=call.parts.clock.now_ms(),
        count=len(found.members),
        roots=[rows.key(key) for key in found.forest.roots],
        nodes=[_node(rows, member, found.forest.children[key]) for key, member in reversed(found.members.items())],
        truncated=found.is_cut,
    )


def _node(rows: Rows, member: Relative, children: list[str]) -> TreeNode:
    session, spawn = member.session, show_spawn(member.story)
    return TreeNode(
        key=rows.key(session.key),
        name=name_of(session),
        kind=session.kind,
        agent_id=session.agent_id,
        status=session.status.value,
        updated_at=session.updated_at,
        usage=Usage(input=session.tokens_in, output=session.tokens_out, cost=session.cost),
        tree_usage=member.tree_usage,
        children=[rows.key(child) for child in children],
        spawned=member.spawned,
        tokens=session.tokens_in + session.tokens_out,
        cost=session.cost,
        parent_key=session.spawned_by and rows.key(session.spawned_by),
        label=shown_name(session.label),
        display_name=shown_name(session.display_name),
        archived=session.archived_at is not None,
        archived_at=session.archived_at,
        spawn=spawn,
        task=spawn.task if spawn else None,
        run_status=spawn.run_status if spawn else None,
        started_at=spawn.started_at if spawn else None,
        ended_at=spawn.ended_at if spawn else None,
        receipt=spawn.receipt if spawn else None,
    )
