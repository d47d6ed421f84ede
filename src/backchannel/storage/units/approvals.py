"""Approvals of tool calls: a row before anyone is asked, one commit for the answer.

The run of a pending call waits as long as it takes, also over restarts. A call begins only after its row says
`approved`. After a crash a pending call waits again, and nobody is asked twice.
"""

from __future__ import annotations

import secrets

from backchannel.core.delivery.delivery import Post
from backchannel.core.facts import ApprovalChanged
from backchannel.core.flows.spawn_values import read_spawn
from backchannel.core.keys import SessionKey
from backchannel.core.policy.answering import Answerer, may_answer
from backchannel.core.policy.approvals import (
    Approval,
    ApprovalDecided,
    ApprovalState,
    ask_buttons,
    ask_text,
    decided_line,
    decided_text,
    question_name,
)
from backchannel.core.runs import Fence, Run, ToolCall
from backchannel.core.sessions import WEBCHAT, Address, read_address
from backchannel.core.short_ids import IdKind, choose_id, parse_written_id
from backchannel.core.text import quoted
from backchannel.errors import ApprovalNotFound, InvalidRequest
from backchannel.storage.events import QuestionSettled
from backchannel.storage.tables import APPROVAL_GRANTS, APPROVALS
from backchannel.storage.tx import Tx, filters, required
from backchannel.storage.units import deliveries, runs, timers
from backchannel.storage.units.contact import questions
from backchannel.storage.views import lookups

APPROVAL_TIMER = "approval"
"""Ends the time in which an approval may be answered."""
_MOST_FITTING = 1000
"""How many ids with the same beginning are compared. Ids are random, so there are never so many."""


def find(tx: Tx, approval_id: str) -> Approval | None:
    row = tx.one(f"{APPROVALS.select} WHERE id = ?", approval_id)
    return None if row is None else APPROVALS.read(row)


def of_calls(tx: Tx, after: str, until: str, limit: int) -> list[Approval]:
    """List the approvals of calls with ids in a range."""
    found = f"{APPROVALS.select} WHERE call_id > ? AND call_id < ? ORDER BY call_id LIMIT ?"
    return [APPROVALS.read(row) for row in tx.all(found, after, until, limit)]


def _need_for(tx: Tx, approval_id: str, by: Answerer) -> Approval:
    """Load a question for its answerer. A question for others is refused like a missing one."""
    approval = find(tx, approval_id)
    if approval is None or not _is_for(approval, by):
        raise ApprovalNotFound(f"no approval {approval_id!r} (`approvals` shows those there are)", id=approval_id)
    return approval


def choose(tx: Tx, text: str, by: Answerer) -> str:
    """Find an approval by its id or the beginning of it, among those that `by` may answer.

    Raises:
        AmbiguousId: it could be several.
        ApprovalNotFound: none fits, or only ones that they may not answer.
    """
    written = parse_written_id(text)
    found = [find(tx, id) for id in lookups.matching(tx, IdKind.APPROVAL, written, _MOST_FITTING)]
    return choose_id(IdKind.APPROVAL, written, [each.id for each in found if each and _is_for(each, by)])


def _is_for(approval: Approval, by: Answerer) -> bool:
    return may_answer(approval.channel, by).allowed


def ask(tx: Tx, fence: Fence, call: ToolCall, lives_ms: int) -> Approval:
    """Ask for a call, once. A tool that is always allowed in this session is not asked for.

    The owner of the run's chat is told in the same commit. The question stands for `lives_ms`; 0 is for ever.
    """
    run = runs.unstopped(tx, fence)
    known = tx.one(f"UPDATE approvals SET fence = ? WHERE call_id = ? {APPROVALS.returning}", run.fence, call.id)
    if known is not None:
        return APPROVALS.read(known)
    if _is_granted(tx, run.session_key, call.name):
        return put_question(tx, run, call.id, call.name, call.arguments, None, is_granted=True)
    address = address_of(tx, run)
    channel = None if address is None else address.channel
    approval = put_question(tx, run, call.id, call.name, call.arguments, channel)
    if lives_ms:
        timers.set_timer(tx, APPROVAL_TIMER, approval.id, tx.now + lives_ms)
    if address is not None:
        question = Post(
            session_key=run.session_key,
            address=address,
            text=ask_text(approval),
            run_id=run.id,
            buttons=ask_buttons(approval),
            question=question_name(approval),
        )
        deliveries.post(tx, question)
    return approval


def put_question(
    tx: Tx, run: Run, call_id: str, tool: str, arguments: str, channel: str | None, *, is_granted: bool = False
) -> Approval:
    """Write a question that is asked on a channel, or the record of a call that is always allowed."""
    row = tx.insert_one(
        APPROVALS,
        APPROVALS.returning,
        id=_free_id(tx),
        call_id=call_id,
        run_id=run.id,
        session_key=run.session_key,
        tool=tool,
        arguments=arguments,
        state=ApprovalState.APPROVED.value if is_granted else ApprovalState.PENDING.value,
        created_at=tx.now,
        answered_at=tx.now if is_granted else None,
        answered_by="always" if is_granted else None,
        fence=run.fence,
        channel=channel,
    )
    approval = APPROVALS.read(required(row))
    tx.tell(ApprovalChanged(approval))
    return approval


def _free_id(tx: Tx) -> str:
    """Make a short id: people type it on a phone."""
    while find(tx, made := secrets.token_hex(4)) is not None:
        pass
    return made


def address_of(tx: Tx, run: Run) -> Address | None:
    """Find the chat to ask in: where the run answers, or where a sub-agent's result is posted.

    Webchat has an event of its own.
    """
    address = None if run.reply_to is None else read_address(run.reply_to)
    if address is None and SessionKey.stored(run.session_key).is_subagent:
        spawn = tx.one("SELECT body FROM spawns WHERE child_key = ?", run.session_key)
        address = None if spawn is None else read_spawn(spawn[0]).address
    return None if address is None or address.channel == WEBCHAT.channel or address.to is None else address


def answer(tx: Tx, approval_id: str, decision: ApprovalDecided, by: Answerer, *, always: bool = False) -> Approval:
    """Answer a question, once. The same answer again changes nothing. With `always` the tool is not asked for again.

    Raises:
        ApprovalNotFound: there is none of this id that `by` may answer.
        InvalidRequest: it was answered otherwise, if only once where it shall be always, or its time is over.
    """
    approval = _need_for(tx, approval_id, by)
    if always and decision is ApprovalDecided.DENY:
        raise InvalidRequest(
            "a tool can be allowed for good, but not denied: take it away by tools.deny", param="always"
        )
    if always and approval.is_about_budget:
        raise InvalidRequest("a budget can be granted once more, but not for good: raise its limit", param="always")
    if not approval.is_pending:
        if approval.state is not decision.state:
            raise InvalidRequest(f"the approval {approval_id!r} is {approval.state} already", id=approval_id)
        if always and not _is_granted(tx, approval.session_key, approval.tool):
            once = f"the approval {approval_id!r} is {approval.state} already, once: {quoted(approval.tool, 64)}"
            raise InvalidRequest(f"{once} is asked for again, and can be allowed for good then", id=approval_id)
        return approval
    if always:
        key, tool = approval.session_key, approval.tool
        tx.insert(APPROVAL_GRANTS, APPROVAL_GRANTS.or_skip, session_key=key, tool=tool, granted_at=tx.now)
    return _settle(tx, approval, decision.state, by.name)


def answer_first(
    tx: Tx, approval_id: str, decision: ApprovalDecided, by: Answerer, *, always: bool = False
) -> tuple[Approval, bool]:
    """Answer a question if nobody has; returns it, and whether this answer counts.

    Raises:
        ApprovalNotFound: there is none of this id that `by` may answer.
    """
    approval = _need_for(tx, approval_id, by)
    if not approval.is_pending:
        return approval, False
    return answer(tx, approval_id, decision, by, always=always), True


def _is_granted(tx: Tx, session_key: str, tool: str) -> bool:
    """Whether a tool is always allowed in a session."""
    granted = "SELECT 1 FROM approval_grants WHERE session_key = ? AND tool = ?"
    return tx.one(granted, session_key, tool) is not None


def _settle(tx: Tx, approval: Approval, state: ApprovalState, by: str | None) -> Approval:
    row = tx.one(
        f"UPDATE approvals SET state = ?, answered_at = ?, answered_by = ? WHERE id = ? {APPROVALS.returning}",
        state.value,
        tx.now,
        by,
        approval.id,
    )
    timers.clear_timer(tx, APPROVAL_TIMER, approval.id)
    settled = APPROVALS.read(required(row))
    tx.happened(QuestionSettled(settled))
    questions.decided(tx, question_name(settled), decided_text(settled), decided_line(settled))
    tx.tell(ApprovalChanged(settled))
    return settled


def due(tx: Tx, approval_id: str) -> None:
    """Expire a question."""
    approval = find(tx, approval_id)
    if approval is not None and approval.is_pending:
        _settle(tx, approval, ApprovalState.EXPIRED, None)


def close(tx: Tx, call_id: str) -> None:
    """Withdraw the question of a call whose run has ended."""
    row = tx.one(f"{APPROVALS.select} WHERE call_id = ? AND state = 'pending'", call_id)
    if row is not None:
        _settle(tx, APPROVALS.read(row), ApprovalState.EXPIRED, None)


def withdraw(tx: Tx, beginning: str) -> None:
    """Withdraw the questions whose call ids begin so."""
    pending = f"{APPROVALS.select} WHERE call_id >= ? AND call_id < ? AND state = 'pending'"
    for row in tx.all(pending, beginning, beginning[:-1] + chr(ord(beginning[-1]) + 1)):
        _settle(tx, APPROVALS.read(row), ApprovalState.EXPIRED, None)


def page(
    tx: Tx, *, state: ApprovalState | None = None, session_key: str | None = None, limit: int, before: int | None = None
) -> list[Approval]:
    """List approvals, newest first; `before` is the number of the last one seen."""
    where, values = filters(("session_key = ?", session_key), ("state = ?", state), ("number < ?", before))
    rows = tx.all(f"{APPROVALS.select} WHERE {where} ORDER BY number DESC LIMIT ?", *values, limit)
    return [APPROVALS.read(row) for row in rows]


def asking_runs(tx: Tx) -> frozenset[str]:
    """List the runs that wait for an approval."""
    return frozenset(run_id for (run_id,) in tx.all("SELECT run_id FROM approvals WHERE state = 'pending'"))


def count_pending(tx: Tx) -> int:
    (count,) = required(tx.one("SELECT count(*) FROM approvals WHERE state = 'pending'"))
    return int(count)
