"""Echoes: what other gateways are told of a commit.

A word names a row: its kind and its id, never what is in it. Whoever hears it reads the row, so what came late,
twice or from somebody else does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from backchannel.core.facts import (
    AccountHeld,
    ApprovalChanged,
    DeliveryChanged,
    Fact,
    GrowthWanted,
    GrowthWritten,
    MessageAppended,
    RunChanged,
    SessionChanged,
    TimerSet,
    TokenEnded,
    TranscriptClosed,
)
from backchannel.core.stored import StoredForm

Word = tuple[str, str]
"""A kind of row, and its id."""


class EchoText(msgspec.Struct, frozen=True, array_like=True):
    """Words as they are sent: the number of the gateway that has made the commit, and which rows it changed."""

    sender: int
    words: list[Word]


_STORED: StoredForm[EchoText] = StoredForm(EchoText)
read_echo, write_echo = _STORED.read, _STORED.write

SESSION = "session-"
"""Words about sessions have the reason in their kind."""


def token_word(id: str, *, is_device: bool) -> Word:
    """Name a token, or the token of a device."""
    return "device" if is_device else "token", id


def words_of(facts: Iterable[Fact]) -> Iterator[Word]:
    """Name the rows that facts are about, as far as others need to hear of them."""
    for fact in facts:
        match fact:
            case RunChanged(run):
                yield "run", run.id
            case MessageAppended():
                yield "message", fact.message.id
            case SessionChanged(key, reason):
                yield SESSION + reason, key
            case DeliveryChanged(delivery):
                yield "delivery", delivery.id
            case ApprovalChanged(approval):
                yield "approval", approval.id
            case TokenEnded(id, is_device):
                yield token_word(id, is_device=is_device)
            case AccountHeld():
                yield "hold", ""
            case TimerSet():
                yield "timer", ""
            case GrowthWanted(run_id):
                yield "wanted", run_id
            case GrowthWritten(run_id):
                yield "grew", run_id
            case TranscriptClosed():
                yield "closed", fact.session_id
            case _:
                # A pairing and a shadowed policy are only logged, which the process does that wrote it; a draft is
                # removed by the process that had it removed, or by whoever finds its row when that has ended.
                pass
