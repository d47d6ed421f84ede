"""Events inside a unit, with reactions in the same commit (`reactions.py`).

A module that ends a run or settles a receipt calls `tx.happened`. It imports none of the modules that react.
"""

from __future__ import annotations

from typing import NamedTuple

from backchannel.core.delivery.delivery import Delivery
from backchannel.core.flows.exchange_values import WaitEnd
from backchannel.core.money.budgets import BudgetSettings, LedgerRow
from backchannel.core.policy.approvals import Approval
from backchannel.core.runs import Run
from backchannel.core.sessions import Session


class RunEntered(NamedTuple):
    """A run is about to start, on a session with held posts of sub-agents."""

    session: Session


class RunClosed(NamedTuple):
    """A run has ended with any outcome, also before it started."""

    run: Run
    has_barrier: bool = False
    """Whether it may have spawned sub-agents that wake their requester."""


class RunUnanswered(NamedTuple):
    """A run has ended without a last reply."""

    run: Run


class RunWaits(NamedTuple):
    """A run waits for a model."""

    run: Run


class LaneMoved(NamedTuple):
    """A session has another model or another transcript: a run that waits for a model need not wait."""

    key: str


class RunRetried(NamedTuple):
    """A person has queued an ended run again."""

    run: Run


class CallClosed(NamedTuple):
    """A tool call that may have been waiting has its result, or will never have it."""

    call_id: str
    how: WaitEnd


class ReceiptSettled(NamedTuple):
    """Nothing more is sent for a delivery."""

    delivery: Delivery


class NotesFlushed(NamedTuple):
    """The last of many notes has entered the transcript, so the session's lane is free."""

    key: str


class QuestionSettled(NamedTuple):
    """A question has its answer, or is withdrawn."""

    approval: Approval


class BudgetNearlySpent(NamedTuple):
    """So much of a budget is spent that its owners are told, once in a window."""

    budget: BudgetSettings
    row: LedgerRow


UnitEvent = (
    RunEntered
    | RunClosed
    | RunUnanswered
    | RunWaits
    | LaneMoved
    | RunRetried
    | CallClosed
    | ReceiptSettled
    | NotesFlushed
    | QuestionSettled
    | BudgetNearlySpent
)
