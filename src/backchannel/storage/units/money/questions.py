"""Questions and warnings about budgets: owners are told once.

A question is an approval that all runs share that wait for the same window and grant. Its call id is
`budget/<window>/<grant>`. It stands until it is answered or its window ends.
"""

from __future__ import annotations

import itertools
from functools import partial

import msgspec

from backchannel.core.delivery.delivery import Post
from backchannel.core.money.budgets import BUDGET_TOOL, BudgetWindow, LedgerRow
from backchannel.core.money.texts import question_text, warning_text
from backchannel.core.policy.approvals import Approval, ApprovalState, ask_buttons, question_name
from backchannel.core.runs import Run
from backchannel.core.sessions import Address
from backchannel.errors import InvalidRequest
from backchannel.storage.events import BudgetNearlySpent, QuestionSettled
from backchannel.storage.tables import APPROVALS
from backchannel.storage.tx import Tx
from backchannel.storage.units import approvals, deliveries, sessions, timers


def ask(tx: Tx, run: Run, window: BudgetWindow, row: LedgerRow) -> Approval:
    """Ask the owners for more, once for each window and grant: where the run answers, else in their own chats."""
    call_id, pending = _place(tx, f"{window.question}/{row.granted}")
    if pending is not None:
        return pending
    address = approvals.address_of(tx, run)
    addresses = owners(tx) if address is None else [address]
    channel = addresses[0].channel if addresses else None
    asked = approvals.put_question(tx, run, call_id, BUDGET_TOOL, _arguments(window, row), channel)
    if window.end is not None:
        timers.set_timer(tx, approvals.APPROVAL_TIMER, asked.id, window.end)
    post = partial(
        Post,
        session_key=run.session_key,
        text=question_text(asked.id, window.budget, window.subject, row),
        always=True,
        buttons=ask_buttons(asked),
        question=question_name(asked),
    )
    for address in addresses:
        if address.channel == channel:
            deliveries.post(tx, post(address=address), at_once=True)
    return asked


def _place(tx: Tx, wanted: str) -> tuple[str, Approval | None]:
    """Find the question that is open, or an id for another: one that nobody answered is not asked again."""
    for call_id in itertools.chain([wanted], (f"{wanted}.{n}" for n in itertools.count(1))):
        row = tx.one(f"{APPROVALS.select} WHERE call_id = ?", call_id)
        known = None if row is None else APPROVALS.read(row)
        if known is None or known.is_pending:
            return call_id, known
    raise AssertionError("unreachable: one of all numbers is free")


def _arguments(window: BudgetWindow, row: LedgerRow) -> str:
    budget = window.budget
    shown = {
        "budget": budget.name,
        "scope": budget.scope.value,
        "subject": window.subject,
        "per": budget.per.value,
        "unit": budget.unit,
        "limit": budget.limit,
        "granted": row.granted,
        "spent": row.used(budget.unit) - row.open(budget.unit),
    }
    return msgspec.json.encode(shown).decode()


def answered(tx: Tx, event: QuestionSettled) -> None:
    """Grant the amount again, or note the denial, in the commit of the answer."""
    approval = event.approval
    if not approval.is_about_budget:
        return
    window_id, _, _ = approval.call_id.removeprefix(f"{BUDGET_TOOL}/").rpartition("/")
    changed = {ApprovalState.APPROVED: "granted = granted + 1", ApprovalState.DENIED: "denied = 1"}.get(approval.state)
    if changed is not None:
        tx.lock_ledger()
        tx.run(f"UPDATE budget_windows SET {changed}, touched_at = ? WHERE id = ?", tx.now, window_id)


def reset(tx: Tx, name: str) -> None:
    """Begin the current windows of a budget anew. Calls under way still count at their highest.

    Open questions are withdrawn: what waits for them tries again.
    """
    rules = tx.rules.budgets
    budget = None if rules is None else rules.named(name)
    if rules is None or budget is None:
        known = ", ".join(each.name for each in rules.budgets) if rules else "none"
        raise InvalidRequest(f"no budget is called {name!r} (there are: {known})", param="name")
    tx.lock_ledger()
    rows = tx.all(
        "UPDATE budget_windows SET usd = open_usd, tokens = open_tokens, runs = 0, granted = 0, denied = 0, "
        "warned = 0, touched_at = ? WHERE budget = ? AND start_at = ? RETURNING id",
        tx.now,
        name,
        rules.period(budget.per, tx.now).start,
    )
    for (window_id,) in rows:
        approvals.withdraw(tx, f"{BUDGET_TOOL}/{window_id}/")


def warn(tx: Tx, event: BudgetNearlySpent) -> None:
    """Tell the owners how much of a budget is spent, in their own chats."""
    addresses, text = owners(tx), warning_text(event.budget, event.row)
    if not addresses:
        return
    session = sessions.ensure(tx, tx.scheme.main(tx.scheme.default_agent))
    for address in addresses:
        deliveries.post(tx, Post(session_key=session.key, address=address, text=text, always=True), at_once=True)


def owners(tx: Tx) -> list[Address]:
    """List the owners' own chats: where they wrote, else the chat that has their id."""
    found = "SELECT account_id, chat_id FROM owner_chats WHERE channel = ? AND owner_id = ? LIMIT 1"
    addresses: list[Address] = []
    for channel, owner in tx.outlets.owners:
        account_id, chat_id = tx.one(found, channel, owner) or (None, owner)
        addresses.append(Address(channel=channel, to=chat_id, account_id=account_id))
    return addresses
