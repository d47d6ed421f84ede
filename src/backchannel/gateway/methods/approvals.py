"""Approvals: tool calls that wait for an owner's word, and giving it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.answers import Answered, ApprovalsListed
from backchannel.core.approvals import Approval, ApprovalState, Decided
from backchannel.core.rows import ApprovalRow
from backchannel.core.shapes import Params
from backchannel.gateway.addressing import resolve
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.protocol import TokenScope
from backchannel.tools.base import read_cursor, write_cursor
from backchannel.tools.rows import show_approval

_LISTED, _MOST_LISTED = 50, 500


class ApprovalsListParams(Params, frozen=True, kw_only=True):
    state: ApprovalState | None = None
    session_key: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED
    cursor: str | None = None


class ApprovalAnswerParams(Params, frozen=True, kw_only=True):
    id: str
    decision: Decided
    always: bool = False


async def approvals_list(call: Call, params: ApprovalsListParams) -> ApprovalsListed:
    """Lists calls that had to be allowed, newest first, of one session or of all, in the state given or in any."""
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


async def approvals_answer(call: Call, params: ApprovalAnswerParams) -> Answered:
    """Lets a call that waits go ahead, or not, once; with `always` its tool is not asked for in that session again."""
    by = f"operator {call.holder.token_id}"
    answered = await call.parts.store.answer_approval(params.id, params.decision, by, always=params.always)
    return Answered(approval=_show(call, answered))


def _show(call: Call, approval: Approval) -> ApprovalRow:
    return show_approval(approval, call.parts.rows.key)


_APPROVAL = (
    "{id, runId, sessionKey, tool, args, state: pending | approved | denied | expired, createdAt, answeredAt?, "
    "answeredBy?}"
)

METHODS: tuple[Method[Any], ...] = (
    Method(
        "approvals.list",
        ApprovalsListParams,
        TokenScope.READ,
        approvals_list,
        f"`{{count, hasMore, nextCursor?, approvals: [{_APPROVAL}]}}`",
    ),
    Method(
        "approvals.answer", ApprovalAnswerParams, TokenScope.ADMIN, approvals_answer, f"`{{approval: {_APPROVAL}}}`"
    ),
)
