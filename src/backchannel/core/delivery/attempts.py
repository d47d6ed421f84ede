"""Attempts to send a part: retries, doubts, crashes, and the state that follows from each.

A doubt begins with a lost answer or a crash. Its time is that of the first such attempt, and stays with the part.

- While the platform remembers keys, the part is sent again with the same key.
- After that, and where there are no keys, the platform is asked (`Channel.find`), if it can be.
- Otherwise the part is `uncertain`, and a person decides.

At any time a later event of the platform may prove what happened. A proof settles a part once: it ends a doubt, and
never changes a part that is `sent`, `failed` or `dropped`.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import msgspec

from backchannel.core.delivery.channels import (
    ChannelBusy,
    ChannelError,
    ChannelMoved,
    ChannelRefused,
    DraftGone,
    Sent,
)
from backchannel.core.delivery.delivery import DeliveryState, Part, PartAttempted, Tries
from backchannel.core.delivery.outgoing import PartProof
from backchannel.core.supervision import Backoff
from backchannel.core.text import cut

MAX_ATTEMPTS = 10
MAX_RETRY_TIME_MS = 3_600_000
"""A part is not tried again when its retries have waited this long: waits are counted, not the clock, so that neither
a machine that slept nor a clock that was set ends them early."""
CRASHES_BEFORE_WAITING = 3
"""A part is sent again at once after a crash. From this crash on it waits, as a run is then set aside."""
_MAY_HAVE_ARRIVED = "; it may have arrived all the same, and a retry does not post it twice"
_BACKOFF = Backoff(1.0, 60.0)
_ERROR_LIMIT = 500
_IN_DOUBT = "it is not known whether the message arrived, and sending it again could post it twice"


def retry_wait(tries: Tries, retry_after_s: float | None = None) -> int | None:
    """Return the back-off in milliseconds: from 1 s, doubled up to 60 s, or the channel's own wish; None gives up.

    A wait beyond the time limit is cut to the limit: one last attempt is better than none.
    """
    left = MAX_RETRY_TIME_MS - tries.waited_ms
    if tries.attempts >= MAX_ATTEMPTS or left <= 0:
        return None
    delay = round(_BACKOFF.pause_s(tries.attempts) * 1000)
    return min(max(delay, _asked_delay_ms(retry_after_s)), left)


class AttemptRules(NamedTuple):
    """What may be done after an attempt without an answer."""

    takes_key: bool = False
    """Whether the platform still knows the part's key."""
    ask_after_ms: int | None = None
    """When the platform can be asked for the part; None: it cannot."""
    edits: bool = False
    """Whether the part takes the place of a draft."""
    has_file: bool = False
    """Whether the part sends a file. If the platform refuses that, a line of text tells of it."""
    is_in_doubt: bool = False
    """Whether an earlier attempt had no answer."""

    @property
    def may_repeat(self) -> bool:
        return self.takes_key or self.edits


def after_attempt(answer: Sent | ChannelError, tries: Tries, rules: AttemptRules) -> PartAttempted:
    """Decide the next state of a part, from the channel's answer or error.

    A part that `edits` a draft may be repeated, as on a channel that takes keys. If the platform refuses the edit, the
    part is posted instead. The draft is then removed, unless it is gone.
    """
    if isinstance(answer, Sent):
        return PartAttempted(state=DeliveryState.SENT, message_id=answer.message_id)
    reason = cut(answer.reason, _ERROR_LIMIT)
    if isinstance(answer, ChannelRefused) and rules.edits:
        is_left = not isinstance(answer, DraftGone)
        return PartAttempted(state=DeliveryState.PENDING, error=reason, drops_draft=True, leaves_draft=is_left)
    if isinstance(answer, ChannelRefused) and rules.has_file:
        return PartAttempted(state=DeliveryState.PENDING, error=reason, drops_file=True)
    if isinstance(answer, ChannelRefused):
        return PartAttempted(state=DeliveryState.FAILED, error=reason)
    if isinstance(answer, ChannelMoved) and tries.attempts < MAX_ATTEMPTS:
        return PartAttempted(state=DeliveryState.PENDING, error=reason)
    if isinstance(answer, ChannelBusy | ChannelMoved):
        return _after_busy(answer, reason, tries, rules)
    return _after_silence(reason, tries, rules)


def _after_busy(answer: ChannelError, reason: str, tries: Tries, rules: AttemptRules) -> PartAttempted:
    wait_ms = retry_wait(tries, answer.retry_after_s if isinstance(answer, ChannelBusy) else None)
    if wait_ms is not None:
        return PartAttempted(state=DeliveryState.PENDING, wait_ms=wait_ms, error=reason)
    given_up = f"given up after {_count(tries.attempts)}: {reason}"
    if rules.is_in_doubt and not rules.may_repeat:
        return PartAttempted(state=DeliveryState.UNCERTAIN, error=f"{given_up}; {_IN_DOUBT}")
    return PartAttempted(state=DeliveryState.FAILED, error=given_up)


def _after_silence(reason: str, tries: Tries, rules: AttemptRules) -> PartAttempted:
    if not rules.may_repeat and rules.ask_after_ms is None:
        return PartAttempted(state=DeliveryState.UNCERTAIN, error=f"{reason}; {_IN_DOUBT}", doubts=True)
    wait_ms = retry_wait(tries)
    if wait_ms is not None:
        wait_ms = wait_ms if rules.may_repeat else max(wait_ms, rules.ask_after_ms or 0)
        return PartAttempted(state=DeliveryState.PENDING, wait_ms=wait_ms, error=reason, doubts=True)
    given_up = f"given up after {_count(tries.attempts)}: {reason}"
    if not rules.may_repeat:
        return PartAttempted(state=DeliveryState.UNCERTAIN, error=f"{given_up}; {_IN_DOUBT}", doubts=True)
    return PartAttempted(state=DeliveryState.FAILED, error=f"{given_up}{_MAY_HAVE_ARRIVED}", doubts=True)


def after_question(reason: str, tries: Tries, *, is_final: bool, retry_after_s: float | None) -> PartAttempted:
    """Decide the next state of a part for which the platform was asked in vain; it is not sent meanwhile."""
    wait_ms = None if is_final else retry_wait(tries, retry_after_s)
    reason = cut(reason, _ERROR_LIMIT)
    if wait_ms is None:
        return PartAttempted(state=DeliveryState.UNCERTAIN, error=f"{reason}; {_IN_DOUBT}")
    return PartAttempted(state=DeliveryState.PENDING, wait_ms=wait_ms, error=reason)


def account_hold_ms(answer: Sent | ChannelError) -> int | None:
    """Return how long all messages of an account must wait after this answer; None if they need not."""
    if not isinstance(answer, ChannelBusy) or not answer.is_account_wide:
        return None
    return max(round(_BACKOFF.first_s * 1000), _asked_delay_ms(answer.retry_after_s))


def after_crash(part: Part, rules: AttemptRules) -> PartAttempted | None:
    """Decide the next state of a part whose process died; None leaves it unchanged.

    The platform refused nothing, so the attempt does not count. But the part may be the cause of the crashes. After
    some of them it waits, longer each time. It is given up when its waits have taken the time of all retries.
    """
    if part.state is not DeliveryState.SENDING:
        return None
    stopped = "the gateway stopped while the message was being sent"
    if not rules.may_repeat and rules.ask_after_ms is None:
        return _crashed(DeliveryState.UNCERTAIN, f"{stopped}; {_IN_DOUBT}")
    crashes, left_ms = part.crashes + 1, MAX_RETRY_TIME_MS - part.waited_ms
    least_ms = 0 if rules.may_repeat else rules.ask_after_ms or 0
    if crashes < CRASHES_BEFORE_WAITING:
        return _crashed(DeliveryState.PENDING, stopped, least_ms or None)
    if left_ms <= 0:
        given_up = f"given up after {_count(part.attempts)}: {stopped}"
        if rules.may_repeat:
            return _crashed(DeliveryState.FAILED, f"{given_up}{_MAY_HAVE_ARRIVED}")
        return _crashed(DeliveryState.UNCERTAIN, f"{given_up}; {_IN_DOUBT}")
    pause_s = _BACKOFF.pause_s(crashes - CRASHES_BEFORE_WAITING + 1)
    return _crashed(DeliveryState.PENDING, stopped, min(max(round(pause_s * 1000), least_ms), left_ms))


def _crashed(state: DeliveryState, error: str, wait_ms: int | None = None) -> PartAttempted:
    return PartAttempted(state=state, error=error, wait_ms=wait_ms, is_crash=True, doubts=True)


def _asked_delay_ms(retry_after_s: float | None) -> int:
    if retry_after_s is None or not retry_after_s > 0:  # NaN asks for nothing
        return 0
    return math.ceil(min(retry_after_s * 1000, MAX_RETRY_TIME_MS))


def _count(attempts: int) -> str:
    return f"{attempts} attempt{'' if attempts == 1 else 's'}"


# Doubts


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
    error = f"the platform reported: {cut(proof.failed, _ERROR_LIMIT)}"
    return PartAttempted(state=DeliveryState.FAILED, message_id=message_id, error=error)


def late_failure(part: Part, proof: PartProof) -> str | None:
    """Write the note of a sent part that the platform says later did not arrive; None: there is nothing to note."""
    if part.state is not DeliveryState.SENT or proof.failed is None or part.note is not None:
        return None
    return f"the platform reported later: {cut(proof.failed, _ERROR_LIMIT)}"
