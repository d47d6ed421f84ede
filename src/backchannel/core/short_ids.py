"""Short ids: a unique beginning is enough where a person types an id.

Only what a person types is read this way. A program's id is whole: with `order-1` it never means `order-10`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from backchannel.core.text import quoted
from backchannel.errors import (
    AmbiguousId,
    ApprovalNotFound,
    DeliveryNotFound,
    ExchangeNotFound,
    JobNotFound,
    NotFound,
    RunNotFound,
    SessionNotFound,
    SlotNotFound,
    TokenNotFound,
)

_LEAST = 4
"""How many characters of an id are needed; fewer would mean another one tomorrow."""
MOST_SHOWN = 5
GAP = "…"
"""Stands for what a table leaves out in the middle of an id, and is read back as such."""


class IdKind(StrEnum):
    """What an id can be of."""

    RUN = "run"
    DELIVERY = "delivery"
    EXCHANGE = "exchange"
    SESSION = "session"
    JOB = "job"
    TOKEN = "token"
    APPROVAL = "approval"
    SLOT = "slot"


_NOT_FOUND: dict[IdKind, type[NotFound]] = {
    IdKind.RUN: RunNotFound,
    IdKind.DELIVERY: DeliveryNotFound,
    IdKind.EXCHANGE: ExchangeNotFound,
    IdKind.SESSION: SessionNotFound,
    IdKind.JOB: JobNotFound,
    IdKind.TOKEN: TokenNotFound,
    IdKind.APPROVAL: ApprovalNotFound,
    IdKind.SLOT: SlotNotFound,
}
_NOUNS = {IdKind.JOB: "cron job"}


@dataclass(frozen=True, slots=True)
class WrittenId:
    """An id as a person wrote it: whole, its beginning, or its beginning and its end."""

    text: str
    head: str
    tail: str

    @property
    def is_long_enough(self) -> bool:
        return len(self.head) >= _LEAST

    def fits(self, whole: str) -> bool:
        return whole.startswith(self.head) and whole.endswith(self.tail)


def parse_written_id(text: str) -> WrittenId:
    """Read an id as a person wrote it."""
    text = text.strip()
    head, _, tail = text.partition(GAP)
    return WrittenId(text, head, tail)


def choose_id(kind: IdKind, written: WrittenId, found: Sequence[str]) -> str:
    """Decide which of the ids that fit was meant: the same one, the only one, or the one that all others belong to.

    Raises:
        AmbiguousId: it could be several; the message lists some.
        NotFound: none fits, as the error of its kind.
    """
    if written.text in found:
        return written.text
    if not (found and written.is_long_enough):
        least = f"; of a longer id, at least {_LEAST} characters are needed"
        why = " (and none has an id that begins with it)" if written.is_long_enough else least
        raise _NOT_FOUND[kind](f"no {_NOUNS.get(kind, kind)} {quoted(written.text)}{why}")
    first = min(found, key=len)
    if all(
        each == first or each.startswith(f"{first}/") for each in found
    ):  # the runs of an exchange are named after it
        return first
    shown = list(found[:MOST_SHOWN])
    more = ", …" if len(found) > MOST_SHOWN else ""
    message = f"several {kind} ids begin with {quoted(written.text)} (write more of one: {', '.join(shown)}{more})"
    raise AmbiguousId(message, ids=shown)
