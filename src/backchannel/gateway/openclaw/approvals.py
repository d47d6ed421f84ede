"""Approvals as OpenClaw's clients answer them, and its policy for commands."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import Approval, ApprovalDecided, ApprovalState, asks
from backchannel.core.text import matches, quoted
from backchannel.errors import ApprovalNotFound, InvalidRequest
from backchannel.gateway.calls import Call, method
from backchannel.gateway.openclaw.approval_shapes import (
    ALWAYS,
    DENY,
    KIND,
    ApprovalAsked,
    ApprovalSnapshot,
    asked,
    snapshot,
)
from backchannel.gateway.parts import GatewayParts
from backchannel.openclaw.words import APPROVALS_SCOPE
from backchannel.tools.base import read_cursor, write_cursor
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams

_LISTED, _MOST_LISTED = 50, 500
_EXEC = "exec"


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
    """False if it had been answered before."""


@method("plugin.approval.list", TokenScope.READ, part=APPROVALS_SCOPE)
async def plugin_approval_list(call: Call, params: SharedNoParams) -> list[ApprovalAsked]:
    """Lists the waiting calls; `approvals.list` has more."""
    parts, now = call.parts, call.parts.clock.now_ms()
    waiting = await parts.store.approvals(state=ApprovalState.PENDING, limit=_MOST_LISTED)
    return [asked(each, parts.rows.key, now, parts.config.tools.approval_lives_ms) for each in waiting]


@method("plugin.approval.resolve", TokenScope.ADMIN, part=APPROVALS_SCOPE)
async def plugin_approval_resolve(call: Call, params: ResolveParams) -> ApprovalTaken:
    """Approves or denies a waiting call, as `approvals.answer` does."""
    await _resolve(call, params)
    return ApprovalTaken(ok=True)


@method("approval.get", TokenScope.READ, part=APPROVALS_SCOPE)
async def approval_get(call: Call, params: ApprovalIdParams) -> ApprovalShown:
    """Shows one approval in any state."""
    return ApprovalShown(approval=_snapshot(call, await _find(call, params.id)))


@method("approval.resolve", TokenScope.ADMIN, part=APPROVALS_SCOPE)
async def approval_resolve(call: Call, params: ResolveParams) -> ApprovalSettled:
    """Approves or denies a waiting call; one that was answered before is shown as it is."""
    decision, by, always = _read_decision(call, params)
    try:
        found, is_first = await call.parts.store.answer_approval_first(params.id, decision, by, always=always)
    except ApprovalNotFound:
        raise _unknown(params.id) from None
    return ApprovalSettled(applied=is_first, approval=_snapshot(call, found))


@method("approval.history", TokenScope.READ, part=APPROVALS_SCOPE)
async def approval_history(call: Call, params: ApprovalHistoryParams) -> ApprovalHistory:
    """Lists the approvals that no longer wait, newest first."""
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
    """Answer an approval; errors have the codes by which OpenClaw's clients drop it."""
    decision, by, always = _read_decision(call, params)
    try:
        return await call.parts.store.answer_approval(params.id, decision, by, always=always)
    except ApprovalNotFound:
        raise _unknown(params.id) from None
    except InvalidRequest as late:
        raise InvalidRequest(late.message, id=params.id, reason="APPROVAL_ALREADY_RESOLVED") from None


def _read_decision(call: Call, params: ResolveParams) -> tuple[ApprovalDecided, Answerer, bool]:
    """Read the decision, its author, and whether it is `allow-always`."""
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


class CommandPolicy(Answer, frozen=True, kw_only=True, omit_defaults=False):
    security: Literal["deny", "full"] = "deny"
    ask: Literal["off", "on-miss", "always"] = "off"
    """`on-miss`: some commands need approval."""
    ask_fallback: Literal["deny"] = "deny"
    auto_allow_skills: bool = False


class CommandPolicies(Answer, frozen=True, kw_only=True, omit_defaults=False):
    version: int = 1
    defaults: CommandPolicy = CommandPolicy()
    agents: dict[str, CommandPolicy]


class CommandPolicyFile(Answer, frozen=True, kw_only=True, omit_defaults=False):
    path: str
    exists: bool
    hash: str
    file: CommandPolicies


@method("exec.approvals.get", TokenScope.READ)
async def exec_approvals_get(call: Call, params: SharedNoParams) -> CommandPolicyFile:
    """Shows which agents have the tool `exec` and whether it needs approval, as configured."""
    settings = call.parts.config
    file = CommandPolicies(agents={id_: _policy(call.parts, id_) for id_ in call.parts.agents.ids()})
    return CommandPolicyFile(
        path=str(settings.file or settings.state_dir / "backchannel.json5"),
        exists=settings.file is not None,
        hash=hashlib.sha256(msgspec.json.encode(file)).hexdigest(),
        file=file,
    )


def _policy(parts: GatewayParts, agent_id: str) -> CommandPolicy:
    if _EXEC not in parts.toolset.of(agent_id, str(parts.scheme.main(agent_id))):
        return CommandPolicy()
    rules = parts.config.tools.approval
    if asks(rules, _EXEC, {}):
        return CommandPolicy(security="full", ask="always")
    is_asked = any(rule.ask == "always" and matches(rule.tool, _EXEC) for rule in rules)
    return CommandPolicy(security="full", ask="on-miss" if is_asked else "off")
