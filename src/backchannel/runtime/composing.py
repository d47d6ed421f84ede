"""Composing: a run whose reply goes to a chat, as the chat sees it meanwhile."""

from __future__ import annotations

import asyncio
from typing import Self

from backchannel.core.delivery.channel_list import Channels
from backchannel.core.delivery.channels import Channel
from backchannel.core.delivery.delivery import DeliveryLane
from backchannel.core.delivery.drafts import ShownDraft
from backchannel.core.policy.approvals import Approval
from backchannel.core.runs import Fence, Run
from backchannel.core.sessions import read_address


class ComposingRun:
    """A run at work whose reply goes to a chat."""

    def __init__(self, run: Run, channel: Channel, lane: DeliveryLane) -> None:
        self.fence = Fence.of(run, run.fence)
        self.quotes = run.quotes
        self.channel = channel
        self.lane = lane
        self.over = asyncio.Event()
        self.text = ""
        """The reply as far as it is written."""
        self.grew = asyncio.Event()
        self.draft: ShownDraft | None = None
        """Its draft, once that has an id."""
        self.shown_in = lane
        """Where its draft is: the chat may have got another id."""
        self.shown = ""
        """What was shown of it last."""
        self.next_at = 0.0
        """When it may be shown again, on the monotonic clock."""
        self.calling = asyncio.Lock()
        """Held while something is asked of the platform."""
        self.questions: set[str] = set()
        """Calls of the run that wait for a person's word: nobody is typing."""
        self.is_drawn = False
        """Whether a task shows its drafts."""

    @classmethod
    def of(cls, run: Run, channels: Channels) -> Self | None:
        """Follow a run; None if its reply goes to no chat, or to one that shows nothing before the reply is there."""
        if run.kind.is_internal or run.reply_to is None:
            return None
        address = read_address(run.reply_to)
        channel = channels.get(address.channel)
        if channel is None or address.to is None:
            return None
        lane = DeliveryLane.of(address.channel, address.to, address.account_id, address.thread_id)
        composing = cls(run, channel, lane)
        return composing if composing.types or channel.streams else None

    @property
    def types(self) -> bool:
        """Whether its channel shows signs of typing."""
        return type(self.channel).show_typing is not Channel.show_typing

    def note_question(self, approval: Approval) -> None:
        if approval.is_pending:
            self.questions.add(approval.id)
        else:
            self.questions.discard(approval.id)

    def is_for(self, lane: DeliveryLane) -> bool:
        return lane in (self.lane, self.shown_in)
