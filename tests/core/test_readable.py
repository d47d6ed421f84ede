"""The readable text of a transcript, without the prompts for models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backchannel.core.commands.control_words import CONTROL_WORDS
from backchannel.core.flows.exchange import announce_run, failure_note, late_reply_note, primary_run, turn_run
from backchannel.core.flows.exchange_values import Exchange, ExchangeState
from backchannel.core.flows.spawn import from_gateway
from backchannel.core.flows.spawn_texts import WAKE_LINE, announce_prompt, wake_text
from backchannel.core.messages import FlowStep, Message, Provenance, ProvenanceKind, Role, text_content
from backchannel.core.readable import text_for_people
from backchannel.core.text import fenced, unfenced

from .exchanges import opened
from .flow_messages import one_of_each
from .flow_messages import written as message
from .spawns import spawned


@pytest.mark.parametrize("word", [*CONTROL_WORDS, " NO_REPLY\n"])
def test_a_control_word_says_nothing_to_people(word: str) -> None:
    assert text_for_people(message(Role.ASSISTANT, word)) == ""
    assert text_for_people(message(Role.ASSISTANT, f"I say {word}")) == f"I say {word}"
    assert text_for_people(message(Role.USER, word)) == word, "what a person writes is theirs"


def test_what_one_session_asks_another_is_read_without_its_context() -> None:
    run = primary_run(opened())
    asked = message(Role.USER, *run.texts, provenance=run.provenance)
    assert len(run.texts) == 2 and text_for_people(asked) == run.texts[0]


def test_a_turn_is_read_as_what_the_other_session_said() -> None:
    at = replace(opened(), state=ExchangeState.TURN, turn=1, reply="fine, `thanks`", latest="fine, `thanks`")
    run = turn_run(at)
    assert text_for_people(message(Role.USER, *run.texts, provenance=run.provenance)) == "fine, `thanks`"


def test_the_prompts_of_announces_are_not_for_people() -> None:
    run = announce_run(replace(opened(), state=ExchangeState.ANNOUNCE))
    assert text_for_people(message(Role.USER, *run.texts, provenance=run.provenance)) == ""
    assert (
        text_for_people(message(Role.USER, announce_prompt(spawned()), provenance=from_gateway(FlowStep.ANNOUNCE)))
        == ""
    )


def test_late_replies_and_failures_are_read_as_such() -> None:
    at: Exchange = replace(opened(), reply="here I am")
    (late,) = late_reply_note(at)
    assert text_for_people(message(Role.USER, late.text, provenance=late.provenance)) == "here I am"
    (failed,) = failure_note(at, "out of money")
    said = text_for_people(message(Role.USER, failed.text, provenance=failed.provenance))
    assert said == "(no reply: out of money)"


def test_a_wake_is_read_as_the_results_in_it() -> None:
    text = wake_text((("Sub-agent one", "Status: success"), ("Sub-agent two", None)), has_chat=True)
    assert text_for_people(message(Role.USER, text, provenance=from_gateway(FlowStep.WAKE))) == "Status: success"


@pytest.mark.parametrize(("name", "each"), one_of_each().items())
def test_a_message_that_was_stored_without_its_step_is_read_in_the_same_way(name: str, each: Message) -> None:
    assert each.provenance is not None
    before = replace(each, provenance=replace(each.provenance, step=None, turn=None, max_turns=None))
    assert text_for_people(before) == text_for_people(each)


def test_what_only_looks_like_a_prompt_stays_as_it_is() -> None:
    text = f"{WAKE_LINE}\n```\nhello\n```"
    person = Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel="webchat")
    assert text_for_people(message(Role.USER, text, provenance=person)) == text
    assert text_for_people(Message(id="m", role=Role.USER, content=text_content(text), timestamp=1)) == text


@given(st.lists(st.text(st.sampled_from("`a\n ")).filter(str.strip)))
def test_what_was_fenced_comes_back(texts: list[str]) -> None:
    assert unfenced("\n".join(["head", *map(fenced, texts)])) == texts
