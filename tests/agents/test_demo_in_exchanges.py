"""The demo model in exchanges: as the one asked, in turns, in announces, and as the one who tells of it."""

from __future__ import annotations

import msgspec
import pytest

from backchannel.agents.demo import decide, describe_tool_result
from backchannel.agents.demo_talk import FOLLOW_UPS
from backchannel.agents.prompts import system_prompt
from backchannel.core.contracts import ModelRequest, ToolSpec
from backchannel.core.flows.exchange import announce_run, primary_run, turn_run
from backchannel.core.flows.flow import QueueRun
from backchannel.core.messages import (
    Block,
    Message,
    Provenance,
    ProvenanceKind,
    Role,
    TextBlock,
    ToolCallBlock,
    text_content,
    text_of,
)
from tests.core.exchanges import A, after, opened
from tests.support.conversations import shown_to_model

MARK = "K7QXW3ZP5RT2MVBA"
SYSTEM = system_prompt(agent_id="ops", session_key_shown="main", kind="main", mark=MARK)
USER = Provenance(kind=ProvenanceKind.EXTERNAL_USER)


def heard(*messages: QueueRun | str, tools: tuple[str, ...] = ()) -> ModelRequest:
    """What a model is sent after these messages, each but the last answered with "ok"; a text is the user's own."""
    transcript: list[Message] = []
    for message in messages:
        if transcript:
            transcript.append(_message(len(transcript), Role.ASSISTANT, text_content("ok")))
        texts = (message,) if isinstance(message, str) else message.texts
        provenance = USER if isinstance(message, str) else message.provenance
        content = tuple(TextBlock(text=text) for text in texts)
        transcript.append(msgspec.structs.replace(_message(len(transcript), Role.USER, content), provenance=provenance))
    sent = shown_to_model(transcript, MARK)
    return ModelRequest(system=SYSTEM, messages=sent, tools=tuple(ToolSpec(name, "", {}) for name in tools))


def _message(number: int, role: Role, content: tuple[Block, ...]) -> Message:
    return Message(id=str(number), role=role, content=content, timestamp=number)


def said(request: ModelRequest) -> str:
    return text_of(decide(request))


def test_another_sessions_question_is_answered_to_that_session() -> None:
    text = said(heard(primary_run(opened(message="how are you?"))))

    assert text.startswith(f"Hello, {A.name}. You asked: “how are you?”")
    assert MARK not in text and "[Agent-to-agent" not in text


def test_an_operators_question_is_answered_without_a_name() -> None:
    primary = primary_run(opened(message="how are you?", requester=None, call_id=None, origin=None))
    assert said(heard(primary)).startswith("Hello. You asked: “how are you?”")


def test_what_a_session_asks_for_is_looked_up_with_the_real_tool() -> None:
    (block,) = decide(heard(primary_run(opened(message="list sessions")), tools=("sessions_list",)))
    assert isinstance(block, ToolCallBlock)
    assert block.name == "sessions_list"


def test_a_sessions_greeting_is_answered_with_a_greeting() -> None:
    assert "You can say:" not in said(heard(primary_run(opened(message="hello"))))


def test_it_says_something_in_the_first_two_turns_and_then_stops() -> None:
    exchange = opened(max_turns=5)
    replies = []
    for _ in range(5):
        exchange = after(exchange, "It is full.")
        replies.append(said(heard(turn_run(exchange))))

    assert replies == [FOLLOW_UPS[1], FOLLOW_UPS[2], "REPLY_SKIP", "REPLY_SKIP", "REPLY_SKIP"]


def test_it_tells_the_chat_in_one_line_what_was_asked() -> None:
    announce = announce_run(after(opened(message="how\nare you?", max_turns=0), "Fine."))
    assert said(heard(announce)) == "I was asked: “how are you?”, and have answered."


def test_what_was_asked_quietly_is_not_announced() -> None:
    announce = announce_run(after(opened(message="Quietly: how are you?", max_turns=0), "Fine."))
    assert said(heard(announce)) == "ANNOUNCE_SKIP"


@pytest.mark.parametrize("kind", ["turn", "announce"])
def test_a_step_that_somebody_makes_up_is_answered_as_what_it_is(kind: str) -> None:
    exchange = after(opened(max_turns=2 if kind == "turn" else 0), "It is full.")
    made_up = (turn_run if kind == "turn" else announce_run)(exchange).texts[0]

    assert said(heard(made_up)).startswith("You said: [Agent-to-agent exchange")
    assert said(heard(primary_run(opened(message=made_up)))).startswith(f"Hello, {A.name}. You asked:")


def test_it_remembers_what_its_user_said_and_not_what_sessions_did() -> None:
    primary = primary_run(opened(message="how are you?"))
    turn = turn_run(after(opened(), "It is full."))
    text = said(heard("the sky is blue", primary, turn, "what did I say?"))

    assert text == "You said, in order:\n1. the sky is blue"


def test_a_note_before_the_question_is_not_the_question() -> None:
    request = heard("the sky is blue", "list sessions", tools=("sessions_list",))
    note = Message(id="n", role=Role.SYSTEM, content=text_content("It rains."), timestamp=0)
    joined = shown_to_model((note, request.messages[-1]), MARK)
    (block,) = decide(msgspec.structs.replace(request, messages=joined))

    assert isinstance(block, ToolCallBlock)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("researcher", "agent:researcher:main"),
        ("main", "main"),
        ("current", "current"),
        ("node-phone", "node-phone"),
        ("cron:nightly", "cron:nightly"),
        ("agent:writer:main", "agent:writer:main"),
        ("cf4f6fd3-e380-4e49-86d7-9e5c789e7028", "cf4f6fd3-e380-4e49-86d7-9e5c789e7028"),
    ],
)
def test_an_agents_name_is_short_for_its_main_session(word: str, key: str) -> None:
    (block,) = decide(heard(f"ask {word} how are you?", tools=("sessions_send",)))
    assert isinstance(block, ToolCallBlock)
    assert block.arguments == {"sessionKey": key, "message": "how are you?"}


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"status": "ok", "reply": "Fine.\n\nAnd you?"}, "`x` answered:\n\n> Fine.\n>\n> And you?"),
        ({"status": "ok", "reply": ""}, "`x` had nothing to say."),
        ({"status": "timeout", "error": "it goes on"}, "`x` has not answered yet: it goes on"),
        ({"status": "accepted"}, "`x` has the message; I did not wait for the answer."),
        ({"status": "error", "error": "the run ended as error"}, "That did not work: the run ended as error"),
        ({"status": "forbidden", "error": "see the setting"}, "That did not work: see the setting"),
    ],
)
def test_what_came_of_a_question_is_told_in_words(result: dict[str, str], told: str) -> None:
    text = msgspec.json.encode({"runId": "r", "sessionKey": "x", **result}).decode()
    assert describe_tool_result("sessions_send", text) == told
