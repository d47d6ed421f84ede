"""Queue limit: how many messages may wait in one session.

The limit holds for what comes from outside: people, programs, hooks, nodes, cron jobs and `sessions_send`. Steps of
what was accepted before, such as turns, announces and wakes, always find room: refusing them would lose a reply.
"""

from __future__ import annotations

from backchannel.core.money.budgets import BudgetRules
from backchannel.core.policy.decisions import Decision
from backchannel.core.policy.resets import NO_RESETS, ResetSchedule
from backchannel.core.sessions import Session

MAX_QUEUED = "session.maxQueued"
MOST_QUEUED = 1000


class SessionRules:
    """The rules that units apply to sessions.

    `resets` says when they begin anew, and `max_queued` how many messages may wait in one. With `tells_failures`, a
    person is told that a message could not be answered. `budgets` limit what runs may spend.
    """

    __slots__ = ("budgets", "max_queued", "resets", "tells_failures")

    def __init__(
        self,
        resets: ResetSchedule = NO_RESETS,
        max_queued: int = MOST_QUEUED,
        *,
        tells_failures: bool = True,
        budgets: BudgetRules | None = None,
    ) -> None:
        self.budgets = budgets
        self.resets = resets
        self.max_queued = max_queued
        self.tells_failures = tells_failures


DEFAULT_RULES = SessionRules()


def may_queue(session: Session, max_queued: int) -> Decision:
    """Decide whether one more message may wait in a session."""
    waiting = session.queued + session.set_aside
    if waiting < max_queued:
        return Decision(True, f"{waiting} of {max_queued} wait")
    reason = (
        f"{waiting} messages wait in this session, and {MAX_QUEUED} is {max_queued}: try again when some are done, "
        "stop its run if that hangs (/stop, `backchannel runs`), or raise the setting"
    )
    return Decision(False, reason, MAX_QUEUED)


def is_relieved(session: Session, max_queued: int) -> bool:
    """Whether so much of a full queue is done that its chat may be told again when it is full."""
    return (session.queued + session.set_aside) * 2 < max_queued


def full_text(max_queued: int) -> str:
    """Write what a chat is told, once, when its session takes no more messages."""
    waiting = "a message waits" if max_queued == 1 else f"{max_queued} messages wait"
    return (
        f"{waiting.capitalize()} here already, so this one was not taken, nor are others until some are done. "
        "Please send it again later."
    )
