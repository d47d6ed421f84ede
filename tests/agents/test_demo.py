"""The demo model understands a few plain requests, and is honest about the rest."""

from __future__ import annotations

import asyncio

import pytest

from backchannel.agents.demo import MOST_PIECES, SKILLS, DemoModel, decide, pieces_of
from backchannel.core.contracts import ModelReply, ModelRequest, TextDelta, ToolSpec
from backchannel.core.messages import Message, Role, ToolCallBlock, text_content, text_of


def asked(*texts: str, tools: tuple[str, ...] = ()) -> ModelRequest:
    """A conversation of these texts, user and assistant in turns."""
    roles = [Role.USER if index % 2 == 0 else Role.ASSISTANT for index in range(len(texts))]
    messages = tuple(
        Message(id=str(index), role=role, content=text_content(text), timestamp=index)
        for index, (role, text) in enumerate(zip(roles, texts, strict=True))
    )
    specs = tuple(ToolSpec(name, "", {}) for name in tools)
    return ModelRequest(system="", messages=messages, tools=specs)


def said(request: ModelRequest) -> str:
    return text_of(decide(request))


def test_help_tells_what_it_is_and_every_request_it_understands() -> None:
    text = said(asked("help"))
    assert "demo model" in text
    assert all(skill.example in text for skill in SKILLS)


def test_what_up_suggests_to_ask_is_understood() -> None:
    assert said(asked("What can you do?")) == said(asked("help"))


def test_help_marks_what_this_session_has_no_tool_for() -> None:
    text = said(asked("help", tools=("sessions_list",)))
    assert "`list sessions`\n" in text
    assert "`spawn <task>` (not in this session)" in text


def test_it_remembers_what_was_said_in_order() -> None:
    text = said(asked("the sky is blue", "ok", "grass is green", "ok", "What did I say?"))
    assert text.endswith("1. the sky is blue\n2. grass is green")


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("List sessions", "sessions_list", {}),
        ("show my sessions.", "sessions_list", {}),
        ("read cron:nightly", "sessions_history", {"sessionKey": "cron:nightly", "limit": 10}),
        (
            "ask agent:writer:main: how are you?",
            "sessions_send",
            {"sessionKey": "agent:writer:main", "message": "how are you?"},
        ),
        ("spawn count to ten", "sessions_spawn", {"task": "count to ten"}),
        ("spawn 1 count to ten", "sessions_spawn", {"task": "count to ten"}),
        ("spawn quietly count to ten", "sessions_spawn", {"task": "quietly count to ten"}),
        ("spawn researcher count to 5", "sessions_spawn", {"task": "count to 5", "agentId": "researcher"}),
        ("spawn 1 writer quietly count to 5", "sessions_spawn", {"task": "quietly count to 5", "agentId": "writer"}),
        ("spawn writer: write it down", "sessions_spawn", {"task": "write it down", "agentId": "writer"}),
        ("spawn write it down", "sessions_spawn", {"task": "write it down"}),
        ("who can I spawn?", "agents_list", {}),
    ],
)
def test_a_plain_request_calls_the_real_tool(text: str, tool: str, arguments: dict[str, object]) -> None:
    (block,) = decide(asked(text, tools=(tool,)))
    assert isinstance(block, ToolCallBlock)
    assert (block.name, block.arguments) == (tool, arguments)


def test_several_sub_agents_are_spawned_at_once() -> None:
    blocks = decide(asked("Spawn 3 count to ten", tools=("sessions_spawn",)))
    calls = [(block.name, block.arguments) for block in blocks if isinstance(block, ToolCallBlock)]
    assert calls == [("sessions_spawn", {"task": "count to ten"})] * 3
    assert len(decide(asked("spawn 20 researcher count to ten", tools=("sessions_spawn",)))) == 20


@pytest.mark.parametrize(("number", "told"), [("0", "from 1 to 20"), ("21", "at most 20"), ("000000030", "at most 20")])
def test_a_number_of_sub_agents_that_cannot_be_is_answered_with_what_can(number: str, told: str) -> None:
    assert told in said(asked(f"spawn {number} count to ten", tools=("sessions_spawn",)))


def test_a_request_whose_tool_is_missing_is_answered_honestly() -> None:
    assert "sessions_list, which this session does not have" in said(asked("list sessions"))


def test_anything_else_is_said_back() -> None:
    assert "You said: what is the meaning of it all" in said(asked("what is the meaning of it all"))


@pytest.mark.anyio
async def test_text_is_streamed_in_pieces_that_make_up_the_reply() -> None:
    events = [event async for event in DemoModel().stream(asked("one two  three\nfour"))]
    pieces = [event.text for event in events if isinstance(event, TextDelta)]
    assert len(pieces) > 3
    assert isinstance(events[-1], ModelReply)
    assert "".join(pieces) == text_of(events[-1].content)


def test_a_very_long_text_comes_in_larger_pieces() -> None:
    text = " ".join(map(str, range(100_000)))
    pieces = list(pieces_of(text))

    assert len(pieces) <= MOST_PIECES
    assert "".join(pieces) == text


@pytest.mark.anyio
async def test_its_first_word_does_not_come_at_once() -> None:
    first = asyncio.ensure_future(anext(aiter(DemoModel().stream(asked("hello")))))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not first.done()
    assert isinstance(await first, TextDelta)
