"""Approvals: tool calls that wait for an owner's word, and giving it; also as OpenClaw's clients do both."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import Approval, ApprovalDecided, ApprovalState
from backchannel.core.text import quoted
from backchannel.errors import ApprovalNotFound, InvalidRequest
from backchannel.gateway.addressing import resolve
from backchannel.gateway.auth import APPROVALS
from backchannel.gateway.openclaw.approval_shapes import (
    ALWAYS,
    DENY,
    KIND,
    ApprovalAsked,
    ApprovalSnapshot,
    asked,
    snapshot,
)
from backchannel.gateway.ws.connections import Call, Method
from backchannel.tools.base import read_cursor, write_cursor
from backchannel.tools.rows import show_approval
from backchannel.wire.answers import ApprovalAnswered, ApprovalsListed
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.rows import ApprovalRow
from backchannel.wire.shapes import Answer, Params, SharedParams

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


class ApprovalIdParams(SharedParams, frozen=True, kw_only=True):
    id: str


class ResolveParams(ApprovalIdParams, frozen=True, kw_only=True):
    decision: Literal["allow-once", "allow-always", "deny"]


class ApprovalHistoryParams(SharedParams, frozen=True, kw_only=True):
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED
    kind: str | None = None


class ApprovalHistory(Answer, frozen=True, kw_only=True):
    items: list[ApprovalSnapshot]
    next_cursor: str | None = None


class ApprovalTaken(Answer, frozen=True, kw_only=True):
    ok: bool


class ApprovalShown(Answer, frozen=True, kw_only=True):
    approval: ApprovalSnapshot


class ApprovalSettled(ApprovalShown, frozen=True, kw_only=True):
    applied: bool


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


async def approvals_answer(call: Call, params: ApprovalAnswerParams) -> ApprovalAnswered:
    """Lets a call that waits go ahead, or not, once; with `always` its tool is not asked for in that session again."""
    by = Answerer.operator(call.holder.token_id)
    answered = await call.parts.store.answer_approval(params.id, params.decision, by, always=params.always)
    return ApprovalAnswered(approval=_show(call, answered))


def _show(call: Call, approval: Approval) -> ApprovalRow:
    return show_approval(approval, call.parts.rows.key)


async def plugin_approval_list(call: Call, params: SharedNoParams) -> list[ApprovalAsked]:
    """Lists the calls that wait, as OpenClaw's clients show them; `approvals.list` tells more."""
    parts, now = call.parts, call.parts.clock.now_ms()
    waiting = await parts.store.approvals(state=ApprovalState.PENDING, limit=_MOST_LISTED)
    return [asked(each, parts.rows.key, now, parts.config.tools.approval_lives_ms) for each in waiting]


async def plugin_approval_resolve(call: Call, params: ResolveParams) -> ApprovalTaken:
    """Lets a call that waits go ahead, or not, as `approvals.answer` does, in OpenClaw's words."""
    await _resolve(call, params)
    return ApprovalTaken(ok=True)


async def approval_get(call: Call, params: ApprovalIdParams) -> ApprovalShown:
    """Shows one approval, in whatever state, as OpenClaw's clients do."""
    return ApprovalShown(approval=_snapshot(call, await _find(call, params.id)))


async def approval_resolve(call: Call, params: ResolveParams) -> ApprovalSettled:
    """Lets a call that waits go ahead, or not; one that was answered before is shown as it is."""
    decision, by, always = _read_decision(call, params)
    try:
        found, is_first = await call.parts.store.answer_approval_first(params.id, decision, by, always=always)
    except ApprovalNotFound:
        raise _unknown(params.id) from None
    return ApprovalSettled(applied=is_first, approval=_snapshot(call, found))


async def approval_history(call: Call, params: ApprovalHistoryParams) -> ApprovalHistory:
    """Lists the approvals that wait no longer, newest first, as OpenClaw's clients show them."""
    if params.kind not in (None, KIND):
        return ApprovalHistory(items=[])
    query: list[Any] = ["approval.history"]
    before = None if params.cursor is None else read_cursor(params.cursor, query, int)
    limit = min(params.limit, _MOST_LISTED)
    found = await call.parts.store.approvals(limit=limit + 1, before=before)
    page, has_more = found[:limit], len(found) > limit
    return ApprovalHistory(
        items=[_snapshot(call, approval) for approval in page if not approval.is_pending],
        next_cursor=write_cursor(query, page[-1].number) if has_more else None,
    )


async def _resolve(call: Call, params: ResolveParams) -> Approval:
    """Answer an approval; errors carry the words by which OpenClaw's clients know that it waits no longer."""
    decision, by, always = _read_decision(call, params)
    try:
        return await call.parts.store.answer_approval(params.id, decision, by, always=always)
    except ApprovalNotFound:
        raise _unknown(params.id) from None
    except InvalidRequest as late:
        raise InvalidRequest(late.message, id=params.id, reason="APPROVAL_ALREADY_RESOLVED") from None


def _read_decision(call: Call, params: ResolveParams) -> tuple[ApprovalDecided, Answerer, bool]:
    """Read what was decided, by whom, and whether for good."""
    decision = ApprovalDecided.DENY if params.decision == DENY else ApprovalDecided.APPROVE
    return decision, Answerer.operator(call.holder.token_id), params.decision == ALWAYS


async def _find(call: Call, id: str) -> Approval:
    if (found := await call.parts.store.approval(id)) is None:
        raise _unknown(id)
    return found


def _unknown(id: str) -> ApprovalNotFound:
    return ApprovalNotFound(
        f"approval not found: {quoted(id, 64)} (plugin.approval.list shows those that wait)",
        id=id,
        reason="APPROVAL_NOT_FOUND",
    )


def _snapshot(call: Call, approval: Approval) -> ApprovalSnapshot:
    return snapshot(approval, call.parts.clock.now_ms(), call.parts.config.tools.approval_lives_ms)


_APPROVAL = (
    "{id, runId, sessionKey, tool, args, state: pending | approved | denied | expired, createdAt, answeredAt?, "
    "answeredBy?}"
)

_SNAPSHOT = (
    "{id, urlPath, createdAtMs, expiresAtMs, status: pending | allowed | denied | expired, resolvedAtMs?, decision?, "
    "reason?, resolver? {kind: device | channel | system, id?}, "
    "presentation {kind, title, description, detail, severity, toolName, agentId, allowedDecisions}}"
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
    Method(
        "plugin.approval.list",
        SharedNoParams,
        TokenScope.READ,
        plugin_approval_list,
        "`{id, request {title, description, detail?, severity, toolName, toolCallId, agentId, sessionKey, "
        "allowedDecisions}, createdAtMs, expiresAtMs}`, a list of them; the end of one that waits for ever moves on",
        part=APPROVALS,
    ),
    Method(
        "plugin.approval.resolve",
        ResolveParams,
        TokenScope.ADMIN,
        plugin_approval_resolve,
        "`{ok}`",
        part=APPROVALS,
    ),
    Method(
        "approval.get", ApprovalIdParams, TokenScope.READ, approval_get, f"`{{approval: {_SNAPSHOT}}}`", part=APPROVALS
    ),
    Method(
        "approval.history",
        ApprovalHistoryParams,
        TokenScope.READ,
        approval_history,
        f"`{{items: [{_SNAPSHOT}], nextCursor?}}`",
        part=APPROVALS,
    ),
    Method(
        "approval.resolve",
        ResolveParams,
        TokenScope.ADMIN,
        approval_resolve,
        f"`{{applied, approval: {_SNAPSHOT}}}`; `applied` is `false` where it had been answered before",
        part=APPROVALS,
    ),
)
