"""Matches: messages that a search has found, in order or by rank."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from backchannel.core.full_text.queries import SearchPlace
from backchannel.core.messages import Message


class Match(msgspec.Struct, frozen=True):
    """A message with all terms of a query, and the session that it belongs to."""

    position: int
    session_id: str
    seq: int
    key: str
    label: str | None
    display_name: str | None
    is_current: bool
    """Whether it is in the transcript that its session has now."""
    kind: str
    message: Message


class Matches(msgspec.Struct, frozen=True):
    """Matches below a place, newest first."""

    found: list[Match]
    next_below: int | None
    """Where to go on; None when there are no more."""
    is_complete: bool
    """False while older messages wait for the index."""


class RankedMatch(NamedTuple):
    rank: float
    match: Match


class RankedMatches(msgspec.Struct, frozen=True):
    """Matches, best first; `next` is where to go on, None when there are no more."""

    found: list[RankedMatch]
    next: SearchPlace | None
    is_complete: bool
