"""Doubts: what is done about a part when nobody knows whether its platform took it.

A doubt begins with a lost answer or a crash. Its time is that of the first such attempt, and stays with the part.

- While the platform remembers keys, the part is sent again with the same key.
- After that, and where there are no keys, the platform is asked (`Channel.find`), if it can be.
- Otherwise the part is `uncertain`, and a person decides.

At any time a later event of the platform may prove what happened. A proof settles a part once: it ends a doubt, and
never changes a part that is `sent`, `failed` or `dropped`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from backchannel.core.delivery.channels import ChannelBusy, ChannelError, ChannelRefused
from backchannel.core.delivery.delivery import DeliveryState, Part, PartAttempted
from backchannel.core.delivery.outgoing import PartProof
from backchannel.core.text import cut

_REASON_LIMIT = 500


class DoubtMove(StrEnum):
    """What may be done with a part in doubt."""

    SEND = "send"
    ASK = "ask"
    STOP = "stop"


class Recourse(msgspec.Struct, frozen=True, kw_only=True):
    """What a channel can do about a doubt."""

    takes_key: bool = False
    key_lives_ms: int | None = None
    """How long a key counts; None: for ever."""
    can_find: bool = False
    find_after_ms: int = 0
    """How long after a send the platform can be asked."""

    def holds_key(self, doubt_ms: int) -> bool:
        """Whether the platform still knows the key of a part that was first sent so long ago."""
        return self.takes_key and (self.key_lives_ms is None or 0 <= doubt_ms < self.key_lives_ms)

    def move(self, doubt_ms: int) -> DoubtMove:
        """Decide what is done with a part whose doubt is so old."""
        if self.holds_key(doubt_ms):
            return DoubtMove.SEND
        return DoubtMove.ASK if self.can_find else DoubtMove.STOP


NO_RECOURSE = Recourse()


class DoubtStays(ChannelError):
    """The platform was asked for a part, and did not tell."""

    def __init__(self, error: ChannelError) -> None:
        super().__init__(f"it could not be asked whether the message is there: {error.reason}")
        self.is_final = isinstance(error, ChannelRefused)
        self.retry_after_s = error.retry_after_s if isinstance(error, ChannelBusy) else None


def after_proof(part: Part, proof: PartProof) -> PartAttempted | None:
    """Decide the next state of a part by a proof; None leaves it unchanged."""
    is_open = part.state in (DeliveryState.SENDING, DeliveryState.UNCERTAIN)
    was_tried = part.state is DeliveryState.PENDING and part.attempts > 0
    if not (is_open or was_tried):
        return None
    message_id = part.message_id or proof.message_id
    if proof.failed is None:
        return PartAttempted(state=DeliveryState.SENT, message_id=message_id)
    error = f"the platform reported: {cut(proof.failed, _REASON_LIMIT)}"
    return PartAttempted(state=DeliveryState.FAILED, message_id=message_id, error=error)


def late_failure(part: Part, proof: PartProof) -> str | None:
    """Write the note of a sent part that the platform says later did not arrive; None: there is nothing to note."""
    if part.state is not DeliveryState.SENT or proof.failed is None or part.note is not None:
        return None
    return f"the platform reported later: {cut(proof.failed, _REASON_LIMIT)}"
