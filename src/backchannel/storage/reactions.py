"""Reactions: for each event of a unit, what runs in the same commit, in order.

A reaction may cause further events, which are handled before the next reaction. For example, an exchange queues a run
that cannot start: the run ends at once, and the exchange continues.
"""

from __future__ import annotations

from collections.abc import Mapping

from backchannel.storage.events import (
    BudgetNearlySpent,
    CallClosed,
    LaneMoved,
    NotesFlushed,
    QuestionSettled,
    ReceiptSettled,
    RunClosed,
    RunEntered,
    RunRetried,
    RunUnanswered,
    RunWaits,
)
from backchannel.storage.tx import Reaction
from backchannel.storage.units import archiving, deliveries, drafts, model_waits, runs
from backchannel.storage.units.flows import barriers, exchanges, spawns
from backchannel.storage.units.money import questions

REACTIONS: Mapping[type, tuple[Reaction, ...]] = {
    RunEntered: (barriers.tell_held,),
    RunClosed: (deliveries.post_reply, drafts.run_closed, exchanges.run_ended, spawns.run_ended, barriers.run_ended),
    RunUnanswered: (deliveries.post_notice,),
    RunWaits: (deliveries.post_wait_notice, drafts.run_waits),
    LaneMoved: (model_waits.lane_moved,),
    RunRetried: (exchanges.run_retried,),
    CallClosed: (exchanges.call_ended,),
    ReceiptSettled: (drafts.receipt_settled, archiving.receipt_settled),
    NotesFlushed: (runs.tell_of_next,),
    QuestionSettled: (questions.answered,),
    BudgetNearlySpent: (questions.warn,),
}
