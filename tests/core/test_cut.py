"""The cut: where a model's view begins, and why it moves."""

from __future__ import annotations

from backchannel.core.cut import (
    MOST_PICTURE_BYTES,
    NO_CUT,
    ContextMarks,
    Cut,
    EarlierCut,
    beginning,
    clear,
    hide_pictures,
    leave_out,
    narrowed,
    narrower,
    read_cut,
    taken_back,
    widened,
    write_cut,
)
from backchannel.core.messages import Message, Role, ToolCallBlock, text_content
from backchannel.core.requests import MOST_PICTURES_SHOWN, ROUNDS_SHOWN, Conversation

WINDOW = 10_000


def conversation(*messages: Message, cut: Cut = NO_CUT) -> Conversation:
    found = Conversation(cut.view("MARK", WINDOW, is_shared=False, shows_pictures=True))
    for seq, message in enumerate(messages):
        found.add(seq, message)
    return found


def said(run: str, text: str) -> Message:
    return Message(id=f"u{run}", role=Role.USER, content=text_content(text), timestamp=1, run_id=run)


def reply(run: str, text: str) -> Message:
    return Message(id=f"a{run}", role=Role.ASSISTANT, content=text_content(text), timestamp=1, run_id=run)


def tool_round(run: str, call: str, size: int) -> list[Message]:
    asked = ToolCallBlock(id=call, name="look", arguments={})
    return [
        Message(id=f"a{call}", role=Role.ASSISTANT, content=(asked,), timestamp=1, run_id=run),
        Message(
            id=f"r{call}",
            role=Role.TOOL_RESULT,
            content=text_content("x" * size),
            timestamp=1,
            run_id=run,
            tool_call_id=call,
        ),
    ]


def test_a_cut_is_stored_as_text_and_none_stands_for_the_beginning() -> None:
    cut = Cut(from_seq=7, summary_id="s", question_seq=3, is_short=True, results_before=9, reason="so")
    assert read_cut(write_cut(cut)) == cut
    assert write_cut(NO_CUT) is None and read_cut(None) == NO_CUT
    assert read_cut('{"fromSeq": 3, "ofTheNextVersion": 1}') == Cut(from_seq=3)


def test_the_marks_are_parts_of_the_window_and_the_rest_is_well_below_the_first() -> None:
    assert ContextMarks.of(200_000, 0.75, 0.9) == (150_000, 180_000, 100_000)
    assert ContextMarks.of(1_000, 0.5, 0.9).rest == 350


def test_old_results_are_cleared_but_those_of_the_last_rounds() -> None:
    rounds = [tool_round("1", f"c{n}", 7_000) for n in range(ROUNDS_SHOWN + 2)]
    talk = conversation(said("1", "go"), *[message for each in rounds for message in each])
    cleared = clear(talk, NO_CUT, WINDOW)
    assert cleared is not None
    assert cleared.results_before == 5  # the reply of the first round that stays
    assert cleared.reason == "old tool results were cleared"


def test_nothing_is_cleared_for_little_or_for_short_results() -> None:
    rounds = [tool_round("1", f"c{n}", 1_999) for n in range(9)]
    talk = conversation(said("1", "go"), *[message for each in rounds for message in each])
    assert clear(talk, NO_CUT, WINDOW) is None
    few = conversation(said("1", "go"), *tool_round("1", "c", 9_000))
    assert clear(few, NO_CUT, WINDOW) is None


def test_what_was_cleared_is_not_cleared_again() -> None:
    rounds = [tool_round("1", f"c{n}", 7_000) for n in range(ROUNDS_SHOWN + 2)]
    messages = [said("1", "go"), *[message for each in rounds for message in each]]
    cut = clear(conversation(*messages), NO_CUT, WINDOW)
    assert cut is not None
    assert clear(conversation(*messages, cut=cut), cut, WINDOW) is None


def test_a_conversation_begins_at_a_message_of_a_person_if_one_is_near() -> None:
    turns = [m for n in range(10) for m in (said(f"{n}", f"q{n} " + "x" * 350), reply(f"{n}", "y" * 350))]
    place = beginning(conversation(*turns), 1_000)
    assert place is not None and place.seq % 2 == 0 and place.question is None
    assert place.seq in (12, 14)


def test_within_a_long_run_a_conversation_begins_at_a_step_and_keeps_the_question() -> None:
    rounds = [tool_round("1", f"c{n}", 350) for n in range(20)]
    talk = conversation(said("1", "the question"), *[message for each in rounds for message in each])
    cut = leave_out(talk, NO_CUT, 1_000)
    assert cut is not None
    assert (cut.question_seq, cut.is_short, cut.from_seq % 2) == (0, True, 1)
    assert cut.from_seq > 10


def test_a_conversation_that_fits_is_not_cut() -> None:
    assert leave_out(conversation(said("1", "hi")), NO_CUT, 1_000) is None
    assert leave_out(conversation(), NO_CUT, -5) is None


def test_of_too_many_pictures_the_newest_half_is_shown() -> None:
    shown = [(place, 10) for place in range(MOST_PICTURES_SHOWN + 1)]
    cut = hide_pictures(NO_CUT, shown)
    assert cut is not None and cut.pictures_before == MOST_PICTURES_SHOWN + 1 - MOST_PICTURES_SHOWN // 2
    assert hide_pictures(NO_CUT, shown[1:]) is None


def test_of_too_large_pictures_half_of_the_room_is_filled_and_the_newest_is_always_shown() -> None:
    quarter = MOST_PICTURE_BYTES // 4
    cut = hide_pictures(NO_CUT, [(place, quarter) for place in range(5)])
    assert cut is not None and cut.pictures_before == 3
    assert hide_pictures(NO_CUT, [(3, 10), (4, MOST_PICTURE_BYTES + 1)]) == Cut(
        pictures_before=4, reason="earlier pictures are not shown again"
    )
    assert hide_pictures(Cut(pictures_before=4), [(4, MOST_PICTURE_BYTES + 1)]) is None


def test_what_a_provider_says_of_its_window_counts_if_it_can_be_true() -> None:
    assert narrower(9_000, 8_192) == 8_100, "less than what was refused, whatever it says"
    assert narrower(20_000, 8_192) == 8_192
    assert narrower(20_000, None) == 18_000
    assert narrower(5_000, 16_000) == 4_500, "we may count less than there is"
    assert narrower(5_000, 128_000) is None
    assert narrower(700, None) is None
    assert narrower(20_000, 512) is None


def test_a_narrow_window_holds_for_its_model_for_a_day_or_until_a_summary_is_taken_back() -> None:
    day = 24 * 3_600_000
    narrow = narrowed(Cut(from_seq=5, summary_id="s", earlier=(EarlierCut(),)), 4_000, "a/b", 1_000)
    assert (narrow.window_for("a/b", 9_000), narrow.window_for("a/c", 9_000)) == (4_000, 9_000)
    assert widened(narrow, "a/b", day) is None and widened(narrow, "a/c", 2 * day) is None
    wide = widened(narrow, "a/b", day + 1_000)
    assert wide is not None and wide.window_for("a/b", 9_000) == 9_000 and wide.from_seq == 5
    back = taken_back(narrow)
    assert back is not None and back.window_for("a/b", 9_000) == 9_000
