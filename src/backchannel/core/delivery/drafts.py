"""Drafts: a reply that its chat sees while it grows.

A draft is `growing` from the commit before it is posted. The commit after the platform's answer adds the id of its
message; later edits use that id. If the answer is lost, the draft is `lost`: it is neither posted again nor edited.

The commit that ends the run ties the draft to the run's delivery and makes it `final`, unless it is lost. Without a
delivery the draft is `removing`. The first part of the delivery edits a final draft. If something else was queued for
the chat meanwhile, an edit would put the reply above it. Then the reply is posted at the end, and the draft is
`removing`. `removed` is reported for a draft whose row is gone.

A lost draft may stand in its chat. If the first part of the delivery has the same text, posting it could show the reply
twice, so the part is settled as uncertain. Otherwise the part is posted, with a note on its receipt. A part whose draft
stayed behind in a chat with an old id is posted the same way.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from backchannel.core.delivery.delivery import Delivery, DeliveryLane


class DraftState(StrEnum):
    GROWING = "growing"
    LOST = "lost"
    FINAL = "final"
    REMOVING = "removing"
    REMOVED = "removed"


class ShownDraft(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A draft as its row says; the field names are the columns."""

    run_id: str
    channel: str
    account_id: str
    target: str
    thread_id: str | None
    place: int
    """The last place that the line of its chat had given out when it was posted."""
    state: DraftState = DraftState.GROWING
    message_id: str | None = None
    delivery_id: str | None = None
    text: str = ""
    """What it said when it was posted."""

    @property
    def lane(self) -> DeliveryLane:
        return DeliveryLane(self.channel, self.account_id, self.target, self.thread_id)


class DraftMove(StrEnum):
    """What may be done to show a reply that grows."""

    POST = "post"
    EDIT = "edit"
    WAIT = "wait"
    """Other texts are on their way to the chat, which come first."""
    STOP = "stop"


class DraftOpening(msgspec.Struct, frozen=True):
    """What may be done for a run, and with which draft."""

    move: DraftMove
    draft: ShownDraft | None = None


def next_move(known: ShownDraft | None, *, is_allowed: bool, is_line_busy: bool) -> DraftMove:
    """Decide how a reply that grows may be shown, by the draft that its run has."""
    if known is not None:
        may_edit = known.state is DraftState.GROWING and known.message_id is not None
        return DraftMove.EDIT if may_edit else DraftMove.STOP
    if not is_allowed:
        return DraftMove.STOP
    return DraftMove.WAIT if is_line_busy else DraftMove.POST


LEFT_BEHIND = "its chat got another id while it was written: a beginning may stand in the old one"
"""The note of a part whose draft was left in a chat that has moved."""


class DraftBefore(msgspec.Struct, frozen=True):
    """What the first part of a delivery finds in its chat."""

    draft_id: str | None = None
    """The draft that it edits."""
    lost: ShownDraft | None = None
    """A draft that may be there."""
    is_left_behind: bool = False
    """Whether there was a draft in the chat before it got another id."""

    @property
    def note(self) -> str | None:
        """What the receipt says of it."""
        if self.is_left_behind:
            return LEFT_BEHIND
        return None if self.lost is None else "the answer to a draft of it was lost: a beginning may stand above it"

    def doubt(self, text: str) -> str | None:
        """Say why a part of this text must not be posted; None: it may."""
        if self.lost is None or self.lost.text.strip() != text.strip():
            return None
        shown = "the same text was posted as a draft, and it is not known whether that arrived"
        return f"{shown}; sending it again could post it twice"


def may_take_over(draft: ShownDraft, delivery: Delivery) -> bool:
    """Whether a delivery may take the place of a draft: in its chat, and with nothing in line between the two."""
    return draft.message_id is not None and draft.lane == delivery.lane and draft.place + 1 == delivery.position
