"""What follows what: for each event of a unit, what is done in the same commit, in this order.

A reaction may cause further events. They are handled at once, before the next reaction: a run that an exchange queues
and that cannot start ends immediately, and the exchange goes on with that.
"""

from __future__ import annotations

from collections.abc import Mapping

from backchannel.storage.events import (
    CallClosed,
    NotesFlushed,
    ReceiptSettled,
    RunClosed,
    RunEntered,
    RunRetried,
    RunUnanswered,
)
from backchannel.storage.tx import Reaction
from backchannel.storage.units import archiving, deliveries, drafts, runs
from backchannel.storage.units.flows import barriers, exchanges, spawns

REACTIONS: Mapping[type, tuple[Reaction, ...]] = {
    RunEntered: (barriers.tell_held,),
    RunClosed: (deliveries.post_reply, drafts.run_closed, exchanges.run_ended, spawns.run_ended, barriers.run_ended),
    RunUnanswered: (deliveries.post_notice,),
    RunRetried: (exchanges.run_retried,),
    CallClosed: (exchanges.call_ended,),
    ReceiptSettled: (drafts.receipt_settled, archiving.receipt_settled),
    NotesFlushed: (runs.tell_of_next,),
}
