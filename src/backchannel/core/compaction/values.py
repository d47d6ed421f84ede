"""Values of a compaction: a summary to be written, and what became of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from backchannel.core.cut import Cut
from backchannel.core.messages import CompactionEntry, Message, Usage
from backchannel.core.requests import ViewStart


class CompactionState(StrEnum):
    """What became of a compaction."""

    DONE = "done"
    BUSY = "busy"
    """A run is active: try again when it has ended."""
    GONE = "gone"
    """The transcript was replaced, or its cut moved, meanwhile: the summary is of no use."""


class MadeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary, ready to be written."""

    key: str
    session_id: str
    expected: Cut
    """The cut that it was made from."""
    place: ViewStart
    """Where the view begins then."""
    is_short: bool
    message: Message
    usage: Usage


class SummaryUndone(msgspec.Struct, frozen=True):
    """What taking a summary back gave."""

    state: CompactionState
    entry: CompactionEntry | None = None
    """The entry that was taken back; None if there was none."""
