"""A reply as it grows, in the pieces that a client is sent: together they are what was said, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.runs import Run
from backchannel.gateway.openai.following import Pieces


def ended(reply: str, steps: int) -> Run:
    values: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
    return Run(**{**values, "reply": reply, "step": steps})


@pytest.mark.parametrize(
    ("grown", "reply", "steps", "sent"),
    [
        ([(0, "he"), (0, "hello")], "hello", 1, "hello"),
        ([], "hello", 1, "hello"),
        ([(0, "he")], "hello", 1, "hello"),
        ([(0, "let me look"), (1, "see")], "seen", 2, "let me look\n\nseen"),
        ([(0, "let me look")], "seen", 2, "let me look\n\nseen"),
        ([(1, "seen")], "seen", 2, "seen"),
        ([(0, "he"), (0, "hi"), (0, "hi th")], "hi there", 1, "he\n\nhi there"),
        ([(0, "looking")], "NO_REPLY", 2, "looking"),
        ([], "NO_REPLY", 1, ""),
    ],
)
def test_the_pieces_make_up_what_was_said(grown: list[tuple[int, str]], reply: str, steps: int, sent: str) -> None:
    pieces, told = Pieces(), ""
    for step, text in grown:
        pieces.grew(step, text)
        told += pieces.take()
    pieces.end(ended(reply, steps))
    assert told + pieces.take() == sent
