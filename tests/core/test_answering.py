"""The people who may answer a question of the gateway."""

from __future__ import annotations

import pytest

from backchannel.core.policy.answering import Answerer, may_answer


@pytest.mark.parametrize(
    ("asked_on", "owns", "is_allowed"),
    [
        ("desk", "desk", True),
        ("desk", "fam", False),
        ("desk", "Desk", False),
        (None, "desk", False),
        ("desk", None, True),
        (None, None, True),
    ],
)
def test_an_owner_of_the_channel_that_was_asked_answers_or_an_operator(
    asked_on: str | None, owns: str | None, is_allowed: bool
) -> None:
    assert may_answer(asked_on, Answerer("somebody", owns)).allowed is is_allowed
