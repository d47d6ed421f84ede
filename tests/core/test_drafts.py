"""Drafts: what may be shown of a reply that grows, and whether the reply may take the draft's place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backchannel.core.delivery.attempts import MAX_ATTEMPTS, AttemptRules, account_hold_ms, after_attempt
from backchannel.core.delivery.channels import ChannelBusy, ChannelMoved, ChannelRefused, ChannelSilent, DraftGone, Sent
from backchannel.core.delivery.delivery import DeliveryState, Tries
from backchannel.core.delivery.drafts import DraftMove, DraftState, ShownDraft, may_take_over, next_move
from tests.core.test_delivery import delivery

S = DeliveryState
SHOWN = ShownDraft(
    run_id="r", channel="desk", account_id="default", target="C1", thread_id=None, place=4, message_id="m"
)


@pytest.mark.parametrize(
    ("known", "is_allowed", "is_line_busy", "turn"),
    [
        (None, True, False, DraftMove.POST),
        (None, True, True, DraftMove.WAIT),
        (None, False, False, DraftMove.STOP),
        (None, False, True, DraftMove.STOP),
        (SHOWN, True, True, DraftMove.EDIT),
        (replace(SHOWN, message_id=None), True, False, DraftMove.STOP),
        (replace(SHOWN, message_id=None, state=DraftState.LOST), True, False, DraftMove.STOP),
        (replace(SHOWN, state=DraftState.FINAL), True, False, DraftMove.STOP),
        (replace(SHOWN, state=DraftState.REMOVING), True, False, DraftMove.STOP),
    ],
)
def test_a_run_posts_one_draft_at_most_and_edits_only_what_is_known_to_be_there(
    known: ShownDraft | None, is_allowed: bool, is_line_busy: bool, turn: DraftMove
) -> None:
    assert next_move(known, is_allowed=is_allowed, is_line_busy=is_line_busy) is turn


@pytest.mark.parametrize(
    ("draft", "position", "target", "may"),
    [
        (SHOWN, 5, "C1", True),
        (SHOWN, 6, "C1", False),
        (SHOWN, 5, "C2", False),
        (replace(SHOWN, message_id=None), 5, "C1", False),
    ],
)
def test_a_reply_takes_the_place_of_its_draft_only_right_behind_it_in_the_same_chat(
    draft: ShownDraft, position: int, target: str, may: bool
) -> None:
    assert may_take_over(draft, delivery(position, target=target)) is may


def test_an_edit_whose_answer_is_lost_is_repeated_and_one_that_is_refused_is_posted() -> None:
    lost = after_attempt(ChannelSilent("no answer"), Tries(1), AttemptRules(edits=True))
    assert (lost.state, lost.drops_draft) == (S.PENDING, False) and lost.wait_ms
    for answer, is_left in ((ChannelRefused("no"), True), (DraftGone("gone"), False)):
        refused = after_attempt(answer, Tries(1), AttemptRules(edits=True))
        assert (refused.state, refused.wait_ms, refused.drops_draft) == (S.PENDING, None, True)
        assert refused.leaves_draft is is_left, "what is still there has to be removed"
    assert after_attempt(ChannelRefused("gone"), Tries(2), AttemptRules(takes_key=False)).state is S.FAILED


def test_a_part_for_a_chat_that_moved_is_tried_there_at_once_but_not_for_ever() -> None:
    moved = ChannelMoved("upgraded", "N")
    assert after_attempt(moved, Tries(1), AttemptRules(takes_key=False)).state is S.PENDING
    assert after_attempt(moved, Tries(1), AttemptRules(takes_key=False)).wait_ms is None
    assert after_attempt(moved, Tries(MAX_ATTEMPTS), AttemptRules(takes_key=False)).state is S.FAILED


def test_only_a_limit_of_the_account_holds_the_account() -> None:
    assert account_hold_ms(ChannelBusy("flood", 30, is_account_wide=True)) == 30_000
    assert account_hold_ms(ChannelBusy("flood", is_account_wide=True)) == 1_000
    assert account_hold_ms(ChannelBusy("flood", 30)) is None
    assert account_hold_ms(Sent()) is None and account_hold_ms(ChannelSilent("?")) is None
