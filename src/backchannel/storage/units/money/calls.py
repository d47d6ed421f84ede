"""Calls that reserve by a unit of their own.

Their quote was too low, or there was none, or they belong to no step of a run.

Only here it is decided what follows from a call that does not fit: it waits for the calls of others, owners are asked,
or it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backchannel.core.messages import Usage
from backchannel.core.money.amounts import (
    Amount,
    Reservation,
    read_reservation,
    used_amount,
    write_reservation,
)
from backchannel.core.money.budgets import BudgetAnswer, BudgetDecision
from backchannel.core.money.texts import exceeded
from backchannel.core.policy.approvals import Approval
from backchannel.core.runs import Fence, Run
from backchannel.storage.tables import BUDGET_HOLDS, RUNS
from backchannel.storage.tx import Tx, marks, required
from backchannel.storage.units import runs
from backchannel.storage.units.money import ledger, questions, reserving


class CallReserved(msgspec.Struct, frozen=True):
    """What became of a reservation: the run as it is now, and what it waits for."""

    run: Run
    answer: BudgetAnswer
    approval: Approval | None = None
    """The question that owners are asked."""


def reserve(tx: Tx, fence: Fence, amount: Amount, *, is_sent: bool) -> CallReserved:
    """Reserve the next call of a run, in the place of what it has reserved.

    `is_sent`: a call was sent under that, and has no known outcome.

    Raises:
        BudgetExceeded: it does not fit, and nobody is asked. Nothing was changed.
        FenceLost, StopRequested
    """
    run = runs.unstopped(tx, fence)
    rules = tx.rules.budgets
    if rules is None:
        return CallReserved(run, BudgetAnswer.FITS)
    known = read_reservation(run.reserved)
    spender = reserving.spender_of(tx, rules, run)
    reserving.end(tx, run, is_billed=is_sent)
    made, decision = reserving.try_charge(tx, rules, spender, amount, run.step, known)
    if made is not None:
        return CallReserved(_keep(tx, run, made), BudgetAnswer.FITS)
    was_counted = known is not None and known.is_counted
    budget = None if decision.window is None else decision.window.budget.name
    left = Reservation(step=-1, sender=spender.sender, is_counted=was_counted, budget=budget)
    if decision.answer is BudgetAnswer.WAIT:
        return CallReserved(_keep(tx, run, left), BudgetAnswer.WAIT)
    approval = _asked(tx, run, decision, amount)
    waiting = msgspec.structs.replace(left, asks=approval.id)
    return CallReserved(_keep(tx, run, waiting), BudgetAnswer.ASK, approval)


def _asked(tx: Tx, run: Run, decision: BudgetDecision, amount: Amount) -> Approval:
    window, row = decision.window, decision.row
    if window is None or row is None:
        raise ValueError("a call that does not fit has a budget that says so")
    if decision.answer is BudgetAnswer.STOP:
        raise exceeded(window, row, amount, tx.now)
    return questions.ask(tx, run, window, row)


def _keep(tx: Tx, run: Run, made: Reservation) -> Run:
    row = tx.one(f"UPDATE runs SET reserved = ? WHERE id = ? {RUNS.returning}", write_reservation(made), run.id)
    return RUNS.read(required(row))


# Calls that belong to no run's step, such as those for summaries


def hold(tx: Tx, hold_id: str, amount: Amount, key: str, run_id: str | None) -> None:
    """Reserve a call of a session, or of one of its runs, under an id.

    Raises:
        BudgetExceeded: it does not fit now. Nobody is asked.
    """
    rules = tx.rules.budgets
    if rules is None:
        return
    run = None if run_id is None else runs.find(tx, run_id)
    spender = reserving.spender_beside(tx, rules, key) if run is None else reserving.spender_of(tx, rules, run)
    made, decision = reserving.try_charge(tx, rules, spender, amount, 0, Reservation(step=-1))
    if made is None:
        if decision.window is None or decision.row is None:
            raise ValueError("a call that does not fit has a budget that says so")
        raise exceeded(decision.window, decision.row, amount, tx.now)
    tx.insert(BUDGET_HOLDS, id=hold_id, process=tx.number, body=write_reservation(made))


def release(tx: Tx, hold_id: str, used: Usage | None, *, is_billed: bool = True) -> None:
    """Count what the call of a hold used; None if that is not known. Nothing happens if there is no such hold."""
    row = tx.one("DELETE FROM budget_holds WHERE id = ? RETURNING body", hold_id)
    made = None if row is None else read_reservation(row[0])
    if made is None:
        return
    if is_billed:
        ledger.settle(tx, made, None if used is None else used_amount(used, made.amount))
    else:
        ledger.give_back(tx, made)


def lose_holds(tx: Tx, dead: Sequence[int]) -> None:
    """Count the calls of dead processes whole."""
    for (body,) in tx.all(f"DELETE FROM budget_holds WHERE process IN ({marks(dead)}) RETURNING body", *dead):
        made = read_reservation(body)
        if made is not None:
            ledger.settle(tx, made, None)
