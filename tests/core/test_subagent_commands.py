"""The answers of `/subagents`: a numbered list, one child in full, its last words."""

from __future__ import annotations

import pytest

from backchannel.core.commands.texts import (
    ChildView,
    find_child,
    info_text,
    list_text,
    log_text,
    stopped_all_text,
    stopped_text,
    unknown_text,
)
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, TextBlock, ThinkingBlock, ToolCallBlock, text_content


def child(id_: str = "6f0dcafe-0000", doing: str = "running", *, number: int = 1, **more: object) -> ChildView:
    key = SessionKey.subagent("main", id_)
    return ChildView(number=number, key=key, doing=doing, **more)  # type: ignore[arg-type]  # test values


LINKS = child(number=2, label="links", task="Check every link.", runtime_ms=312_000)
OTHER = child("abcd0000-1111", "ok", receipt="sent", is_archived=True)
SCOUT = child("1234aaaa-2222", number=7, label="The Scout")
ALL = (LINKS, OTHER, SCOUT)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2", LINKS),
        ("1", OTHER),
        ("7", SCOUT),
        ("links", LINKS),
        ("Links", LINKS),
        ('"the scout"', SCOUT),
        ("1234", SCOUT),
        ("agent:main:subagent:abcd0000-1111", OTHER),
        ("abcd0000-1111", OTHER),
        ("ABCD", OTHER),
        ("0", None),
        ("3", None),
        ("abc", None),
        ("²", None),
        ("9" * 5000, None),
        ("nobody", None),
    ],
)
def test_a_child_is_named_by_number_label_key_or_the_beginning_of_its_id(written: str, meant: ChildView | None) -> None:
    assert find_child(ALL, written) == meant


def test_what_could_be_several_children_is_none_of_them() -> None:
    assert find_child((child("aaaa-1"), child("aaaa-2", number=2)), "aaaa") is None
    assert find_child((child(label="Twin"), child("b", number=2, label="twin")), "TWIN") is None


def test_the_list_shows_each_child_with_its_number_and_what_became_of_it() -> None:
    assert list_text((LINKS, OTHER), 3) == (
        '2. "links", running, 5m12s: "Check every link."\n1. abcd0000, ok, sent, archived\n(3 older ones are not shown)'
    )


def test_a_child_without_a_label_is_listed_and_found_by_the_first_words_of_its_task() -> None:
    nameless = child(number=3, task="Read all the news of the week.")
    listed = list_text([nameless], 0)

    assert listed.startswith('3. "Read all the news of the week."') and nameless.id[:8] not in listed
    assert find_child([LINKS, nameless], '"Read all the news of the week."') == nameless


def test_a_session_without_children_says_so() -> None:
    assert list_text((), 0) == "This session has started no sub-agents."
    assert unknown_text("1", ()) == "This session has started no sub-agents."


def test_one_child_is_told_in_full_without_what_looks_like_a_credential() -> None:
    told = info_text(
        child(
            label="seek",
            task="use sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD",
            model="demo/demo",
            runtime_ms=1000,
            tokens_in=1200,
            tokens_out=400,
            cost=0.02,
            receipt="sent",
        )
    )
    assert "abcdefghijklmnop" not in told
    assert told.splitlines()[0] == 'Sub-agent "seek": running'
    assert "Tokens: 1.6k (in 1.2k / out 0.4k)" in told
    assert "Cost: $0.02" in told
    assert told.splitlines()[-1] == "Session: agent:main:subagent:6f0dcafe-0000"


def test_the_log_is_short_lines_without_what_looks_like_a_credential() -> None:
    said = [
        Message(id="1", role=Role.USER, content=text_content("do\nit"), timestamp=0),
        Message(id="2", role=Role.ASSISTANT, content=text_content("x" * 1000), timestamp=0),
        Message(id="3", role=Role.TOOL_RESULT, content=text_content("password=hunter2hunter2"), timestamp=0),
    ]
    lines = log_text(LINKS, said).splitlines()
    assert lines[0] == "user: do it"
    assert len(lines[1]) <= 320
    assert "hunter2" not in lines[2]
    assert log_text(LINKS, []) == 'Sub-agent "links" has written nothing yet.'


def test_the_log_tells_what_a_child_said_and_called_not_what_it_thought() -> None:
    content = (
        ThinkingBlock(thinking="hm"),
        TextBlock(text="I look."),
        ToolCallBlock(id="c", name="look", arguments={"token": "ghp_" + "a1B2" * 10}),
    )
    said = [
        Message(id="1", role=Role.ASSISTANT, content=content, timestamp=0),
        Message(id="2", role=Role.ASSISTANT, content=content[:1], timestamp=0),
    ]
    (line,) = log_text(LINKS, said).splitlines()
    assert line.startswith("assistant: I look. look {") and "a1B2" not in line


def test_stopping_says_what_was_stopped() -> None:
    assert stopped_text(LINKS, 1) == 'Stopped sub-agent "links".'
    assert stopped_text(LINKS, 0) == 'Sub-agent "links" is not running.'
    assert stopped_all_text(0) == "No sub-agent is running here."
    assert stopped_all_text(1) == "Stopped 1 sub-agent."
    assert stopped_all_text(2) == "Stopped 2 sub-agents."
