"""The cut: the place where a model's view of a transcript begins.

A cut is kept with the transcript and moves rarely, because a provider's cache holds only for a beginning that stays
the same. It moves when a request would pass the mark `at` of the model's window:

1. Old tool results are cleared, if that saves much (`clear`).

2. Above the mark `hard` the older part is left out, down to about half of the window (`leave_out`). The model is told.

Too many pictures move it too: then only the newest half of them is shown.

A provider that says "too long" narrows the window of its model here (`narrower`, `narrowed`). Providers are wrong at
times, so that holds for a day, until a summary is taken back, or until a reset (`widened`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from backchannel.core.budget import LINE_TOKENS, MIN_BUDGET
from backchannel.core.requests import MOST_PICTURES_SHOWN, Conversation, View, ViewStart
from backchannel.core.stored import StoredForm

MOST_PICTURE_BYTES = 4 * 1024 * 1024
"""Of all pictures of a message, and of a request, unless the newest alone has more."""
_WORTH_CLEARING = 0.1
"""How much of the window the clearing of old results must save: less is not worth a new beginning."""
_REST = 0.5
"""How much of the window a new cut leaves in use."""
_TOO_LONG = 0.9
"""The share of a too long request that is taken for the window, if the provider names no number."""
_MISCOUNTED = 4
"""How many times more tokens a request may have than we count. A larger limit cannot be what it passed."""
_WINDOW_HOLDS_MS = 24 * 3_600_000
"""For how long a provider's word about a window counts."""


MOST_UNDONE = 3
"""How many summaries can be taken back, one after the other."""


class EarlierCut(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The beginning that a summary replaced; `undo` brings it back."""

    from_seq: int = 0
    covered: int = 0
    summary_id: str | None = None
    question_seq: int | None = None
    is_short: bool = False


class Cut(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The beginning of a model's view, as the transcript's row keeps it."""

    from_seq: int = 0
    """The place of the first message that is shown."""
    covered: int = 0
    """The place after the last message that the summary covers."""
    summary_id: str | None = None
    """The message with the summary of what came before."""
    question_seq: int | None = None
    """The place of a message before the cut that a run was still answering."""
    is_short: bool = False
    """Whether something before the cut is in no summary."""
    results_before: int = 0
    pictures_before: int = 0
    window: int | None = None
    """The size of the window as the provider told it, if that is less than what we know of the model."""
    window_of: str | None = None
    """The model that has this window, as `provider/model`."""
    window_at: int | None = None
    """When the provider said so."""
    earlier: tuple[EarlierCut, ...] = ()
    """What summaries replaced, the last one last."""
    is_undone: bool = False
    """Whether a person took a summary back. The next one is made only when a run cannot go on without."""
    reason: str | None = None
    """Why the cut moved here."""
    moved_at: int | None = None

    @property
    def has_gap(self) -> bool:
        """True if messages before the cut are in no summary."""
        return self.from_seq > self.covered

    def window_for(self, model: str, window: int) -> int:
        """Give the window of a model, by what its provider said."""
        is_told = self.window is not None and self.window_of in (None, model)
        return min(self.window or window, window) if is_told else window

    def view(self, mark: str, budget: int, *, is_shared: bool, shows_pictures: bool) -> View:
        """Describe the view of a conversation that begins here."""
        return View(
            mark=mark,
            budget=budget,
            is_shared=is_shared,
            is_short=self.is_short,
            results_before=self.results_before,
            pictures_before=self.pictures_before,
            shows_pictures=shows_pictures,
        )


NO_CUT = Cut()
_STORED: StoredForm[Cut] = StoredForm(Cut)


def read_cut(stored: str | None) -> Cut:
    return NO_CUT if stored is None else _STORED.read(stored)


def write_cut(cut: Cut) -> str | None:
    return None if cut == NO_CUT else _STORED.write(cut)


class ContextMarks(NamedTuple):
    """Numbers of tokens, of a whole request, at which something is done."""

    at: int
    hard: int
    rest: int
    """What a request has after the cut has moved, about."""

    @classmethod
    def of(cls, window: int, at: float, hard: float) -> ContextMarks:
        return cls(int(window * at), int(window * hard), int(window * min(_REST, at * 0.7)))


def clear(conversation: Conversation, cut: Cut, window: int) -> Cut | None:
    """Clear old tool results; None if that would save little."""
    place, saved = conversation.clearable()
    if place <= cut.results_before or saved < window * _WORTH_CLEARING:
        return None
    return replace(cut, results_before=place, reason="old tool results were cleared")


def leave_out(conversation: Conversation, cut: Cut, room: int) -> Cut | None:
    """Leave out the oldest messages without a summary of them; None if that would change nothing."""
    place = beginning(conversation, room - 2 * LINE_TOKENS)
    if place is None or place.seq <= cut.from_seq:
        return None
    return replace(
        cut,
        from_seq=place.seq,
        question_seq=place.question,
        is_short=True,
        reason="the oldest messages were left out",
    )


def summarised(cut: Cut, place: ViewStart, summary_id: str, *, is_short: bool) -> Cut:
    """Begin at a place, with a summary of all that came before it."""
    replaced = EarlierCut(
        from_seq=cut.from_seq,
        covered=cut.covered,
        summary_id=cut.summary_id,
        question_seq=cut.question_seq,
        is_short=cut.is_short,
    )
    return replace(
        cut,
        from_seq=place.seq,
        covered=place.seq,
        summary_id=summary_id,
        question_seq=place.question,
        is_short=is_short,
        earlier=(*cut.earlier, replaced)[-MOST_UNDONE:],
        is_undone=False,
        reason="the older part was summarised",
    )


def taken_back(cut: Cut) -> Cut | None:
    """Take the last summary back; None if there is none to take back."""
    if not cut.earlier:
        return None
    before = cut.earlier[-1]
    return replace(
        cut,
        from_seq=before.from_seq,
        covered=before.covered,
        summary_id=before.summary_id,
        question_seq=before.question_seq,
        is_short=before.is_short,
        earlier=cut.earlier[:-1],
        window=None,
        window_of=None,
        window_at=None,
        is_undone=True,
        reason="a summary was taken back",
    )


def narrower(tokens: int, limit: int | None) -> int | None:
    """Decide the size of a window after its model found a request of so many tokens too long.

    `limit` is the number that the provider named. None if it cannot be true: no model has so small a window, or the
    limit is far from passed.
    """
    window = min(limit or tokens, int(tokens * _TOO_LONG))
    return None if window < MIN_BUDGET or (limit or 0) > tokens * _MISCOUNTED else window


def narrowed(cut: Cut, window: int, model: str, now: int) -> Cut:
    """Take note that a model's window is smaller than what is known of it."""
    reason = "the provider said that the request is too long"
    return replace(cut, window=window, window_of=model, window_at=now, reason=reason)


def widened(cut: Cut, model: str, now: int) -> Cut | None:
    """Try the whole window of a model again, after a day; None if that is not due."""
    if cut.window is None or cut.window_of not in (None, model) or now - (cut.window_at or 0) < _WINDOW_HOLDS_MS:
        return None
    reason = "the model's whole window is tried again"
    return replace(cut, window=None, window_of=None, window_at=None, reason=reason)


def hide_pictures(cut: Cut, shown: Sequence[tuple[int, int]]) -> Cut | None:
    """Show fewer pictures if there are too many; `shown` are their places and sizes, in order.

    About half of what a request may have is left, so that the next picture does not move the cut again.
    """
    if len(shown) <= MOST_PICTURES_SHOWN and sum(size for _, size in shown) <= MOST_PICTURE_BYTES:
        return None
    before, room = shown[-1][0], MOST_PICTURE_BYTES // 2 - shown[-1][1]
    for place, size in reversed(shown[-MOST_PICTURES_SHOWN // 2 : -1]):
        room -= size
        if room < 0:
            break
        before = place
    if before <= cut.pictures_before:
        return None
    return replace(cut, pictures_before=before, reason="earlier pictures are not shown again")


def beginning(conversation: Conversation, room: int) -> ViewStart | None:
    """Find where a conversation must begin so that its messages fit; at a person's message, if one is near.

    The newest place is the last resort. None if all fits, or if there is no place to begin.
    """
    total = conversation.tokens()
    if total <= room:
        return None
    fitting = [place for place in conversation.places if total - place.tokens_before <= room]
    if not fitting:
        return conversation.places[-1] if conversation.places else None
    at_a_message = next((place for place in fitting if place.question is None), None)
    if at_a_message is None or total - at_a_message.tokens_before < room // 2:
        return fitting[0]
    return at_a_message
