"""What happens inside a unit and has consequences in the same commit: `reactions.py` is the table of them.

A module that ends a run or settles a receipt calls `tx.happened`, and imports none of the modules that react.
"""

from __future__ import annotations

from typing import NamedTuple

from backchannel.core.delivery.delivery import Delivery
from backchannel.core.flows.exchange_values import WaitEnd
from backchannel.core.runs import Run
from backchannel.core.sessions import Session


class RunEntered(NamedTuple):
    """A run is about to start, on a session for which posts of sub-agents are held."""

    session: Session


class RunClosed(NamedTuple):
    """A run has ended, with whatever outcome, also before it ever started."""

    run: Run
    has_barrier: bool = False
    """Whether it may have spawned sub-agents that wake their requester."""


class RunUnanswered(NamedTuple):
    """A run has ended otherwise than by its last reply."""

    run: Run


class RunRetried(NamedTuple):
    """A run that had ended was queued once more by a person."""

    run: Run


class CallClosed(NamedTuple):
    """A tool call that may have been waiting has its result, or will never have it."""

    call_id: str
    how: WaitEnd


class ReceiptSettled(NamedTuple):
    """Nothing more is sent for a delivery."""

    delivery: Delivery


class NotesFlushed(NamedTuple):
    """The last of a session's many notes has entered the transcript: its lane need not wait any longer."""

    key: str


UnitEvent = RunEntered | RunClosed | RunUnanswered | RunRetried | CallClosed | ReceiptSettled | NotesFlushed
