"""The one line that a person gets whose message could not be answered."""

from __future__ import annotations

from backchannel.core.runs import Run, RunState
from backchannel.core.sessions import WEBCHAT, Address, read_address

_LONGEST_ID = 64  # clients choose ids, and a chat is no place for long ones


def notice_address(run: Run) -> Address | None:
    """Tell where the notice of a run that just ended goes; None when nobody is to be told.

    A person is told who was owed an answer: it was to go to a chat outside, and the run ended as error or timeout.
    Whoever stopped a run knows it; webchat has an event of its own; flows of the gateway post what became of them. One
    notice is enough, however often the run is tried again.
    """
    if run.state not in (RunState.ERROR, RunState.TIMEOUT) or run.failure_told:
        return None
    if not run.deliver or run.kind.is_internal or run.reply_to is None:
        return None
    address = read_address(run.reply_to)
    return None if address.channel == WEBCHAT.channel or address.to is None else address


def notice_text(run_id: str) -> str:
    """Word the notice: what a provider said stays with the operator, who finds it by the run's id."""
    shown = run_id if len(run_id) <= _LONGEST_ID else f"{run_id[: _LONGEST_ID - 1]}…"
    return f"Sorry, I could not answer this (run {shown}). The operator can see why."
