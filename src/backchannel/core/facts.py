"""Facts: the changes of a commit, handed to listeners once they are durable.

Every unit of work records facts as it writes. The driver hands them on, in order, after COMMIT and never before.
Lanes, waiters, event streams and transcript files all live on them. A fact is a hint: rows are the truth, and
a listener that missed one reads again.
"""

from __future__ import annotations

import msgspec

from backchannel.core.commands.commands import CommandChat
from backchannel.core.delivery.delivery import Delivery
from backchannel.core.delivery.drafts import ShownDraft
from backchannel.core.messages import Message
from backchannel.core.policy.approvals import Approval
from backchannel.core.policy.pairing import PairingRecord
from backchannel.core.runs import Run


class MessageAppended(msgspec.Struct, frozen=True):
    """A message entered a transcript as number `seq`."""

    key: str
    session_id: str
    seq: int
    message: Message
    line: bytes


class RunChanged(msgspec.Struct, frozen=True):
    """A run was accepted, started, committed a step, was asked to stop, or ended."""

    run: Run


class LaneFree(msgspec.Struct, frozen=True):
    """A session's lane became free while a run waits in its queue."""

    key: str


class SessionChanged(msgspec.Struct, frozen=True):
    """A session's row changed; `reason` is one word: created, run, patch, reset, delete, note, job, exchange."""

    key: str
    reason: str


class TranscriptClosed(msgspec.Struct, frozen=True):
    """A session was archived: nothing is written to this transcript again."""

    key: str
    session_id: str
    at: int
    is_named: bool = False
    """Whether a post has named the path of its file, which then stays readable: that of a sub-agent that was kept."""


class CompactionAsked(msgspec.Struct, frozen=True):
    """A person asked for a summary of a session's older part, or for taking one back when its run has ended."""

    key: str
    session_id: str
    wish: str | None
    """What the summary should keep."""
    undoes: bool = False
    chat: CommandChat | None = None
    """Where to say that it failed; None if it was not asked for in a chat."""


class DeliveryChanged(msgspec.Struct, frozen=True):
    """A receipt was made, or came into another state, or its next part did."""

    delivery: Delivery


class DraftChanged(msgspec.Struct, frozen=True):
    """A draft was posted or lost, has to be removed from its chat, or needs nothing more."""

    draft: ShownDraft


class AccountHeld(msgspec.Struct, frozen=True):
    """A platform asked that nothing goes out by an account for a while."""

    channel: str
    account_id: str
    wait_ms: int


class ApprovalChanged(msgspec.Struct, frozen=True):
    """A call has to be allowed, or was allowed or denied."""

    approval: Approval


class PairingChanged(msgspec.Struct, frozen=True):
    """A stranger was sent a code, or an owner let somebody speak or denied it."""

    pairing: PairingRecord


class TokenEnded(msgspec.Struct, frozen=True):
    """A token no longer lets anyone in; those who came in by it have to go."""

    id: str
    is_device: bool = False


class TimerSet(msgspec.Struct, frozen=True):
    """Something is due at this time."""

    due_at: int


class GrowthWanted(msgspec.Struct, frozen=True):
    """Somebody on one gateway reads what a run streams that another may work on."""

    run_id: str


class GrowthWritten(msgspec.Struct, frozen=True):
    """What a run has streamed was written for readers on other gateways; `step` is the one that the run is in."""

    run_id: str
    step: int
    body: str


class SessionBegunAnew(msgspec.Struct, frozen=True):
    """A message reset a session that was not used since its mark; `reason` is `daily` or `idle`."""

    key: str
    reason: str
    ended_id: str
    session_id: str


class QueueFilled(msgspec.Struct, frozen=True):
    """A chat was told that its session takes no more messages for now."""

    key: str
    waiting: int


class CheckDue(msgspec.Struct, frozen=True):
    """The command of a cron job has to be run, and no living process runs it."""

    job_id: str


class JobSkipped(msgspec.Struct, frozen=True):
    """A time of a cron job became no run; `reason` is a `JobSkip`."""

    job_id: str
    reason: str
    why: str | None = None
    is_fault: bool = False


class PolicyShadowed(msgspec.Struct, frozen=True):
    """The send policy would deny what was accepted: only `shadow` let it through."""

    key: str
    reason: str


Fact = (
    MessageAppended
    | RunChanged
    | LaneFree
    | SessionChanged
    | TranscriptClosed
    | CompactionAsked
    | DeliveryChanged
    | DraftChanged
    | AccountHeld
    | ApprovalChanged
    | PairingChanged
    | TokenEnded
    | TimerSet
    | GrowthWanted
    | GrowthWritten
    | PolicyShadowed
    | SessionBegunAnew
    | QueueFilled
    | CheckDue
    | JobSkipped
)
