"""Shapes of requests: whether one extends the last, and why not."""

from __future__ import annotations

from msgspec.structs import replace

from backchannel.core.cut import NO_CUT, Cut
from backchannel.core.shape import RequestShape, difference, digest, write_shape

SHAPE = RequestShape(model="a/b", system=digest("You are"), tools=digest(b"[]"))


def test_the_same_shape_is_no_reason_and_neither_is_the_first() -> None:
    assert difference(write_shape(SHAPE), SHAPE, NO_CUT) is None
    assert difference(None, SHAPE, NO_CUT) is None


def test_everything_that_changed_is_named() -> None:
    stored = write_shape(SHAPE)
    assert difference(stored, replace(SHAPE, model="c/d"), NO_CUT) == "the model changed from a/b to c/d"
    assert difference(stored, replace(SHAPE, system="x", tools="y"), NO_CUT) == (
        "the system prompt changed; the tools changed"
    )
    moved = Cut(from_seq=3, reason="the oldest messages were left out")
    assert difference(stored, replace(SHAPE, cut="z"), moved) == "the oldest messages were left out"
    assert difference(write_shape(replace(SHAPE, cut="z")), SHAPE, NO_CUT) == (
        "the view begins at the first message again"
    )
    assert difference(stored, replace(SHAPE, is_shared=True), NO_CUT) == "several people write to this session now"
