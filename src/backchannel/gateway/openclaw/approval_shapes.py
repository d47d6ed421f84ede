"""Approvals in OpenClaw's shapes: a waiting tool call is one of its plugin approvals.

Its clients know three kinds. Only some of them show approvals of commands (`exec.approval.*`), and those need a command
line. All of them show approvals of plugins, with a title, a text and a tool. So every waiting call is of that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from backchannel.core.keys import SessionKey
from backchannel.core.policy.answering import OPERATOR_WORD
from backchannel.core.policy.approvals import Approval, ApprovalState, shown_arguments
from backchannel.core.text import cut, made_visible
from backchannel.wire.shapes import Answer

KIND = "plugin"
ONCE, ALWAYS, DENY = "allow-once", "allow-always", "deny"
DECISIONS = (ONCE, ALWAYS, DENY)
NO_END_MS = 20 * 86_400_000
"""The shown life of an approval that never expires. Clients use a timer, and one of over 24 days ends at once."""
_TITLE, _DESCRIPTION, _DETAIL = 80, 512, 16_384

ShowKey = Callable[[str], str]


class CallAsked(Answer, frozen=True, kw_only=True):
    """The call that waits."""

    title: str
    description: str
    severity: str
    tool_name: str
    tool_call_id: str
    agent_id: str
    session_key: str
    allowed_decisions: tuple[str, ...]
    detail: str | None = None
    """More of the arguments, if the description does not have all."""


class ApprovalAsked(Answer, frozen=True, kw_only=True):
    """A tool call waits for approval, for OpenClaw's clients."""

    id: str
    request: CallAsked
    created_at_ms: int
    expires_at_ms: int
    """Of a call that never expires, a time that moves on."""


class ApprovalResolved(Answer, frozen=True, kw_only=True):
    """A tool call no longer waits, for OpenClaw's clients; without a decision it expired or its run ended."""

    id: str
    ts: int
    request: CallAsked
    decision: str | None = None
    resolved_by: str | None = None


class Presentation(Answer, frozen=True, kw_only=True):
    kind: str
    title: str
    description: str
    severity: str
    tool_name: str
    agent_id: str
    allowed_decisions: tuple[str, ...]
    detail: str | None = None


class Resolver(Answer, frozen=True, kw_only=True):
    """Who answered: a client, a person in a chat, or the gateway by an earlier `allow-always`."""

    kind: str
    """`device`, `channel` or `system`."""
    id: str | None = None


class ApprovalSnapshot(Answer, frozen=True, kw_only=True):
    """An approval in any state."""

    id: str
    url_path: str
    created_at_ms: int
    expires_at_ms: int
    presentation: Presentation
    status: str
    """`pending`, `allowed`, `denied` or `expired`."""
    resolved_at_ms: int | None = None
    decision: str | None = None
    reason: str | None = None
    resolver: Resolver | None = None


def asked(approval: Approval, show_key: ShowKey, now: int, lives_ms: int) -> ApprovalAsked:
    """Show a waiting call; `lives_ms` is its life, 0 for ever."""
    return ApprovalAsked(
        id=approval.id,
        request=_request(approval, show_key),
        created_at_ms=approval.created_at,
        expires_at_ms=_end(approval, now, lives_ms),
    )


def resolved(approval: Approval, show_key: ShowKey) -> ApprovalResolved:
    """Show a call that was answered or expired."""
    return ApprovalResolved(
        id=approval.id,
        ts=approval.answered_at or approval.created_at,
        request=_request(approval, show_key),
        decision=_decision(approval),
        resolved_by=approval.answered_by,
    )


def snapshot(approval: Approval, now: int, lives_ms: int) -> ApprovalSnapshot:
    """Show an approval as it is now. It does not show whether it was allow-once or allow-always."""
    request = msgspec.structs.asdict(_request(approval, str))
    shown = {name: request[name] for name in Presentation.__struct_fields__ if name != "kind"}
    return ApprovalSnapshot(
        id=approval.id,
        url_path="/",  # the page shows waiting calls everywhere
        created_at_ms=approval.created_at,
        expires_at_ms=_end(approval, now, lives_ms),
        presentation=Presentation(kind=KIND, **shown),
        **_outcome(approval),
    )


def _outcome(approval: Approval) -> dict[str, Any]:
    if approval.is_pending:
        return {"status": "pending"}
    status = {ApprovalState.APPROVED: "allowed", ApprovalState.DENIED: "denied"}.get(approval.state, "expired")
    return {
        "status": status,
        "resolved_at_ms": approval.answered_at,
        "decision": _decision(approval),
        "reason": "timeout" if status == "expired" else "user",
        "resolver": _resolver(approval.answered_by),
    }


def _resolver(answered_by: str | None) -> Resolver | None:
    match (answered_by or "").split(" ", 1):
        case ["operator", *token_id]:
            return Resolver(kind="device", id=token_id[0] if token_id else OPERATOR_WORD)
        case ["an", _]:  # a command in the chat of a client
            return Resolver(kind="device")
        case [_, _]:
            return Resolver(kind="channel", id=answered_by)
        case [""]:
            return None
    return Resolver(kind="system")


def _decision(approval: Approval) -> str | None:
    return {ApprovalState.APPROVED: ONCE, ApprovalState.DENIED: DENY}.get(approval.state)


def _end(approval: Approval, now: int, lives_ms: int) -> int:
    return approval.created_at + lives_ms if lives_ms else (approval.answered_at or now) + NO_END_MS


def _request(approval: Approval, show_key: ShowKey) -> CallAsked:
    agent = SessionKey.stored(approval.session_key).agent
    tool = made_visible(" ".join(approval.tool.split()))
    description, detail = shown_arguments(approval, _DESCRIPTION), shown_arguments(approval, _DETAIL)
    return CallAsked(
        title=cut(f"May {agent} call {tool}?", _TITLE),
        description=description,
        detail=None if detail == description else detail,
        severity="warning",
        tool_name=tool,
        tool_call_id=approval.call_id,
        agent_id=agent,
        session_key=show_key(approval.session_key),
        allowed_decisions=DECISIONS,
    )
