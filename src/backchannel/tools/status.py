"""`session_status`: the state of one session, and the usage of it and its children."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from backchannel.core.flows.spawn_values import ChildSession, SpawnRecord
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Usage
from backchannel.core.policy.visibility import sees
from backchannel.core.secrets.redaction import redact_opening
from backchannel.core.sessions import Session
from backchannel.core.text import cut
from backchannel.tools.base import Caller, SessionTool
from backchannel.tools.rows import Rows, show_awaited
from backchannel.tools.targets import REFUSALS, RefusedAnswer, Target, find_target
from backchannel.wire.answers import StatusAnswer
from backchannel.wire.rows import Child, Flow, SpawnShown
from backchannel.wire.shapes import Params

RECEIPTS_FOR_MS = 24 * 3600 * 1000
CHILDREN_SHOWN = 100
TASK_SHOWN = 200


class StatusParams(Params, frozen=True, kw_only=True):
    session_key: Annotated[
        str | None, Meta(description="Which session: a `key` or `sessionId` from sessions_list. Default: your own.")
    ] = None


class SessionStatusTool(SessionTool):
    """Tells how a session is doing."""

    name = "session_status"
    description = (
        "See how a session is doing: its row, its current run, the number of waiting messages, its sub-agents, "
        "open exchanges and recent deliveries. Tokens and cost are shown for the session alone and with its sub-agents."
    )
    params = StatusParams
    scope = "read"
    outcomes = (
        (
            "found",
            "the session's row, and `{queueLength, children: [{key, status, usage, label?, archivedAt?, spawn?}], "
            "childrenLeftOut?, spawn?: {state, task, runId, runStatus, receipt, outcome?, resumeAt?, startedAt?, "
            "endedAt?, runtimeMs?, model?}, exchanges: [{id, state, updatedAt}], "
            "receipts: [{id, state, updatedAt, error?}], usage, treeUsage, activeRun?, resumeAt?, compaction?, "
            "cachedShare?}`; "
            "`resumeAt` says when a run that is set aside after crashes is tried again; "
            "`compaction` is the summary that stands for older messages; `cachedShare` is the part of the last request "
            "that was read from the provider's cache; usage is "
            "`{input?, output?, cost?}`, in tokens and dollars",
        ),
        *REFUSALS,
    )
    examples = (("your own", {}), ("that of a sub-agent", {"sessionKey": "agent:main:subagent:6f0d"}))

    async def run(self, caller: Caller, params: StatusParams) -> StatusAnswer | RefusedAnswer:
        own = "main" if caller.key is None else "current"
        target = await find_target(self._parts, caller, own if params.session_key is None else params.session_key)
        return target if isinstance(target, RefusedAnswer) else await self._status(caller, target)

    async def _status(self, caller: Caller, target: Target) -> StatusAnswer:
        store, rows = self._parts.store, Rows(self._parts, caller.key)
        session = target.session
        family = await store.family(session.key, CHILDREN_SHOWN)
        viewer = self._parts.viewer(caller)
        seen = [
            member
            for member in family.children
            if sees(viewer, SessionKey.stored(member.session.key), member.session.spawned_by).allowed
        ]
        story = await store.spawn_story(session.key) if session.spawned_by is not None else None
        since = self._parts.clock.now_ms() - RECEIPTS_FOR_MS
        run = await store.run(session.running_run) if session.running_run else None
        tried = await store.next_tried(session.key) if session.queued or session.set_aside else None
        return StatusAnswer(
            **msgspec.structs.asdict(rows.row(session)),
            queue_length=session.queued + session.set_aside,
            resume_at=None if tried is None else tried.resume_at,
            waits_for=None if tried is None else show_awaited(tried),
            active_run=None if run is None else rows.run(run, await store.asking_runs()),
            children=[_child(rows, member) for member in seen],
            children_left_out=(family.total - len(family.children)) or None,
            spawn=show_spawn(story),
            exchanges=[
                Flow(id=id_, state=state, updated_at=at) for id_, state, at in await store.exchanges_of(session.key)
            ],
            receipts=[
                Flow(id=id_, state=state, updated_at=at, error=error)
                for id_, state, at, error in await store.receipts_of(session.key, since)
            ],
            usage=_usage(session),
            tree_usage=family.usage,
            compaction=await store.compaction(session.session_id),
            cached_share=await store.cached_share(session.session_id),
        )


def _usage(session: Session) -> Usage:
    return Usage(input=session.tokens_in, output=session.tokens_out, cost=session.cost)


def _child(rows: Rows, member: ChildSession) -> Child:
    child = member.session
    return Child(
        key=rows.key(child.key),
        status=child.status.value,
        usage=_usage(child),
        label=child.label,
        archived_at=child.archived_at,
        spawn=show_spawn(member.story),
    )


def show_spawn(story: SpawnRecord | None) -> SpawnShown | None:
    """Show what started a sub-agent, and what became of it."""
    if story is None:
        return None
    spawn, run = story.spawn, story.run
    ended_at = spawn.ended_at or run.ended_at
    return SpawnShown(
        state=spawn.state.value,
        task=_cut(redact_opening(spawn.task, TASK_SHOWN + 1)[0]),
        run_id=spawn.child_run,
        run_status=run.state.value,
        receipt=Flow(id=story.delivery_id, state=story.delivery_state.value, updated_at=story.delivery_changed_at),
        outcome=spawn.outcome,
        resume_at=run.tried_at,
        waits_for=show_awaited(run),
        started_at=run.started_at,
        at_work_since=run.at_work_since,
        ended_at=ended_at,
        runtime_ms=run.ran_ms if run.is_finished and run.started_at else None,
        model=run.answered_by,
    )


def _cut(task: str) -> str:
    return cut(task, TASK_SHOWN)
