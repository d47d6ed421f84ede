"""Approvals: tool calls that wait for an owner, and answering them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import Approval, ApprovalDecided, ApprovalState
from backchannel.gateway.addressing import resolve
from backchannel.gateway.calls import Call, method
from backchannel.tools.base import read_cursor, write_cursor
from backchannel.tools.rows import show_approval
from backchannel.wire.answers import ApprovalAnswered, ApprovalsListed
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import ApprovalRow
from backchannel.wire.shapes import Params

_LISTED, _MOST_LISTED = 50, 500


class ApprovalsListParams(Params, frozen=True, kw_only=True):
    state: ApprovalState | None = None
    session_key: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED
    cursor: str | None = None


class ApprovalAnswerParams(Params, frozen=True, kw_only=True):
    id: str
    decision: ApprovalDecided
    always: bool = False


@method("approvals.list", TokenScope.READ)
async def approvals_list(call: Call, params: ApprovalsListParams) -> ApprovalsListed:
    """Lists tool calls that needed an approval, newest first, of one session or all, in one state or any."""
    key = None if params.session_key is None else str((await resolve(call.parts, params.session_key)).key)
    query: list[Any] = ["approvals.list", key, params.state]
    before = None if params.cursor is None else read_cursor(params.cursor, query, int)
    limit = min(params.limit, _MOST_LISTED)
    found = await call.parts.store.approvals(state=params.state, session_key=key, limit=limit + 1, before=before)
    page, has_more = found[:limit], len(found) > limit
    return ApprovalsListed(
        count=len(page),
        has_more=has_more,
        next_cursor=write_cursor(query, page[-1].number) if has_more else None,
        approvals=[_show(call, approval) for approval in page],
    )


@method("approvals.answer", TokenScope.ADMIN)
async def approvals_answer(call: Call, params: ApprovalAnswerParams) -> ApprovalAnswered:
    """Approves or denies a waiting call; with `always` the tool needs no approval in that session again."""
    by = Answerer.operator(call.holder.token_id)
    answered = await call.parts.store.answer_approval(params.id, params.decision, by, always=params.always)
    return ApprovalAnswered(approval=_show(call, answered))


def _show(call: Call, approval: Approval) -> ApprovalRow:
    return show_approval(approval, call.parts.rows.key)
