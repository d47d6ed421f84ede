"""The prompts of each step of an exchange. They are complete, and nobody else can forge them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backchannel.core.commands.control_words import is_control_word
from backchannel.core.flows.exchange_texts import announce_text, failure_text, late_reply_text, primary_texts, turn_text
from backchannel.core.flows.exchange_values import Exchange, WaitEnd, WaitEnded
from tests.support.fences import outside_fences

from .exchanges import A, B, after, opened

A_SHOWN = 'session "agent:main:main" (channel "telegram")'
B_SHOWN = 'session "agent:ops:discord:group:42" (channel "discord")'
LATE = after(opened(max_turns=3), "It is full.")
GIVEN = after(opened(max_turns=3, is_waiting=True), "It is full.", WaitEnded(WaitEnd.ANSWERED))
HAVE = "you already have this reply as its result"
NOT_WAITING = "this is the reply you were no longer waiting for"


def test_the_primary_message_stands_first_and_as_it_was_sent() -> None:
    message, context = primary_texts(opened())
    assert message == "Is the disk full?"
    assert f"Asked by {A_SHOWN}" in context
    assert f"You are the one asked: {B_SHOWN}" in context


def test_an_operator_is_named_as_such() -> None:
    exchange = opened(requester=None, call_id=None, origin=None)
    assert "Asked by the operator" in primary_texts(exchange)[1]
    assert "Asked by the operator" in announce_text(after(exchange, "It is full."))


def test_each_turn_tells_role_number_both_sessions_and_the_word_that_stops() -> None:
    first, second = turn_text(LATE), turn_text(after(LATE, "Which disk?"))
    assert "turn 1 of 3" in first
    assert f"You are the requester, which asked first: {A_SHOWN}. The other is {B_SHOWN}." in first
    assert "```\nIt is full.\n```" in first
    assert "turn 2 of 3" in second
    assert f"You are the target, which was asked: {B_SHOWN}. The other is {A_SHOWN}." in second
    assert "```\nWhich disk?\n```" in second
    assert "It is full." not in second
    for text in (first, second):
        assert "exactly REPLY_SKIP" in text


@pytest.mark.parametrize(("exchange", "said", "unsaid"), [(GIVEN, HAVE, NOT_WAITING), (LATE, NOT_WAITING, HAVE)])
def test_turn_1_names_its_call_and_whether_the_reply_is_known(exchange: Exchange, said: str, unsaid: str) -> None:
    text = turn_text(exchange)
    assert f'your sessions_send call "r9/0/1", in which you wrote "Is the disk full?": {said}.' in text
    assert unsaid not in text
    later = turn_text(after(exchange, "Which?", "All."))
    assert said not in later
    assert "r9/0/1" not in later


def test_turn_1_names_no_call_that_the_session_never_made() -> None:
    text = turn_text(after(opened(call_id=None, origin=None), "It is full."))
    assert 'a message that a program sent in this session\'s name, "Is the disk full?"' in text
    assert HAVE not in text
    assert NOT_WAITING not in text


def test_the_announce_shows_request_first_reply_and_latest_reply() -> None:
    text = announce_text(after(LATE, "Which disk?", "Both.", "REPLY_SKIP"))
    assert re.search(
        r"original request:\n```\nIs the disk full\?\n```\n"
        r"Your first reply:\n```\nIt is full\.\n```\n"
        r"The latest reply of the exchange:\n```\nBoth\.\n```",
        text,
    )
    assert "exactly ANNOUNCE_SKIP" in text
    assert 'this session\'s chat on "discord"' in text
    assert "no tools" in text
    assert B_SHOWN in text
    assert A_SHOWN in text


def test_the_announce_does_not_repeat_the_only_reply() -> None:
    text = announce_text(after(LATE, "REPLY_SKIP"))
    assert text.count("It is full.") == 1
    assert "The latest reply is the same" in text


def test_an_empty_reply_is_called_empty() -> None:
    assert "Your first reply:\n(empty)" in announce_text(after(opened(), " \n"))


def test_a_note_names_the_call_and_brings_the_reply_or_the_reason() -> None:
    late, failed = late_reply_text(LATE), failure_text(opened(), "the primary run ended as timeout")
    for text in (late, failed):
        assert B_SHOWN in text
        assert '"r9/0/1"' in text
    assert NOT_WAITING in late
    assert "```\nIt is full.\n```" in late
    assert "ended as timeout" in failed


TRICKY = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(["`", "```", "````", "\n", " ", "You are", "REPLY_SKIP", '"']), max_size=12).map("".join),
)


@given(TRICKY, TRICKY, TRICKY)
def test_no_foreign_text_gets_out_of_its_fence(request: str, reply: str, latest: str) -> None:
    marked = {name: f"«{text}»" for name, text in (("request", request), ("reply", reply), ("latest", latest))}
    exchange = replace(LATE, **marked, call_id=None)
    texts = [turn_text(exchange), late_reply_text(exchange), announce_text(exchange), failure_text(exchange, latest)]
    for text in texts:
        assert "«" not in outside_fences(text)
        assert "»" not in outside_fences(text)


@given(st.text(min_size=1, max_size=200))
def test_names_that_others_chose_stay_on_one_line_and_in_quotes(name: str) -> None:
    exchange = replace(LATE, target=replace(B, channel=name), requester=replace(A, channel=name), request=name)
    plain = turn_text(replace(LATE, target=replace(B, channel="x"), requester=replace(A, channel="x"), request="x"))
    assert len(turn_text(exchange).splitlines()) == len(plain.splitlines())


@given(TRICKY)
def test_no_prompt_is_itself_a_control_word(text: str) -> None:
    exchange = replace(LATE, request=text, reply=text, latest=text)
    assert not is_control_word(turn_text(exchange))
    assert not is_control_word(announce_text(exchange))
