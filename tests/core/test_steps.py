"""A message of a flow says in its provenance which step it is; one stored before that is named when it is read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backchannel.core.flows.steps import line_with_step, with_step
from backchannel.core.messages import (
    FlowStep,
    Message,
    Provenance,
    ProvenanceKind,
    Role,
    decode_message,
    encode_message,
)

from .flow_messages import one_of_each, written

MESSAGES = one_of_each()


def stored_before(message: Message) -> Message:
    """The same message as versions without steps have stored it."""
    assert message.provenance is not None
    return replace(message, provenance=replace(message.provenance, step=None, turn=None, max_turns=None))


def test_every_step_is_named_by_some_message() -> None:
    assert {message.provenance.step for message in MESSAGES.values() if message.provenance} == set(FlowStep)
    named = {name: source.step for name in FlowStep if (source := MESSAGES[name].provenance)}
    assert named == {step.value: step for step in FlowStep}


def test_a_turn_says_which_of_how_many_it_is() -> None:
    source = MESSAGES["turn"].provenance
    assert source is not None and (source.turn, source.max_turns) == (1, 2)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_that_was_stored_without_its_step_is_read_with_it(name: str) -> None:
    message = MESSAGES[name]
    assert with_step(stored_before(message)) == message
    line = encode_message(message)
    assert line_with_step(encode_message(stored_before(message))) == line
    assert line_with_step(line) is line


@pytest.mark.parametrize("name", MESSAGES)
def test_a_text_that_looks_like_a_step_makes_none(name: str) -> None:
    person = replace(MESSAGES[name], provenance=Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel="webchat"))
    assert with_step(person) is person
    unsourced = replace(person, provenance=None)
    assert with_step(unsourced) is unsourced
    assert b'"step"' not in line_with_step(encode_message(person))


def test_a_send_without_an_exchange_has_no_step() -> None:
    """OpenClaw's own messages between sessions are such, when they are imported."""
    theirs = Provenance(kind=ProvenanceKind.INTER_SESSION, source_tool="sessions_send")
    message = written(Role.USER, "hello", provenance=theirs)
    assert with_step(message) is message


def test_a_line_of_a_later_version_keeps_its_step_and_its_unknown_fields() -> None:
    line = encode_message(MESSAGES["turn"])[:-1] + b',"later":1}'
    assert line_with_step(line) is line
    assert decode_message(line) == MESSAGES["turn"]
