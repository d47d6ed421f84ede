"""`sessions_history`: pages that go on exactly, answers that stay small, messages that can be read to their end."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.messages import ImageBlock, Message, Role, TextBlock, ThinkingBlock, ToolCallBlock
from backchannel.errors import InvalidRequest
from backchannel.tools.registry import SessionTools
from tests.tools.shelf import Shelf, agents, encoded, message, nulls, result

pytestmark = pytest.mark.anyio

MOST_BYTES = 80 * 1024
MAIN = "agent:main:main"
AGENT = agents("main", "ops", tools={"sessions": {"visibility": "agent"}})
KEY = "ghp_" + "aB3dE5gH7j" * 4


def texts(answer: dict[str, Any]) -> list[str]:
    return ["".join(block.get("text", "") for block in said["content"]) for said in answer["messages"]]


async def refused(tools: SessionTools, **arguments: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await tools.call("sessions_history", **arguments)
    return caught.value


async def all_pages(tools: SessionTools, key: str = MAIN, **arguments: Any) -> list[dict[str, Any]]:
    """Page backwards to the beginning; returns the messages, oldest first."""
    found: list[dict[str, Any]] = []
    before: dict[str, str] = {}
    while True:
        answer = await tools.sessions_history(key, **arguments, **before)
        assert len(encoded(answer)) < MOST_BYTES
        assert answer["messages"], "a page with more behind it is never empty"
        found[:0] = answer["messages"]
        if not answer["hasMore"]:
            assert "truncated" not in answer
            return found
        before = {"before": answer["messages"][0]["id"]}


async def whole(tools: SessionTools, message_id: str, key: str = MAIN) -> str:
    """Read one message to its end, piece by piece."""
    text, offset = "", 0
    while True:
        answer = await tools.sessions_history(key, messageId=message_id, offset=offset)
        (said,) = answer["messages"]
        text += "".join(block["text"] for block in said["content"])
        assert said["id"] == message_id and "truncated" not in answer
        if not answer["hasMore"]:
            assert "nextOffset" not in answer
            return text
        offset = answer["nextOffset"]


class TestPages:
    async def test_two_hundred_messages_by_default_and_a_thousand_at_most(self, shelf: Shelf) -> None:
        shelf.session(MAIN, *(str(n) for n in range(1200)))
        async with shelf.opened(AGENT) as gateway:
            for arguments, count in (
                ({}, 200),
                ({"limit": 1}, 1),
                ({"limit": 101}, 101),
                ({"limit": 300}, 300),
            ):
                answer = await gateway.tools().sessions_history(MAIN, **arguments)
                assert texts(answer) == [str(n) for n in range(1200 - count, 1200)]
                assert answer["hasMore"] is True and "truncated" not in answer

    async def test_the_limit_is_clamped(self, shelf: Shelf) -> None:
        said = [Message(id=f"m{n}", role=Role.USER, content=(), timestamp=1) for n in range(1010)]
        shelf.session(MAIN, *said)
        async with shelf.opened(AGENT) as gateway:
            for limit in (1000, 1001, 10**15):
                answer = await gateway.tools().sessions_history(MAIN, limit=limit)
                assert len(answer["messages"]) == 1000 and answer["hasMore"] is True and "truncated" not in answer

    async def test_the_answer_is_the_session_its_messages_and_whether_there_are_more(self, shelf: Shelf) -> None:
        session_id = shelf.session(MAIN, said := message("hello", run_id="r1"))
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools(MAIN).sessions_history("current")
            assert answer == {
                "sessionKey": "main",
                "sessionId": session_id,
                "messages": [
                    {
                        "id": said.id,
                        "role": "user",
                        "content": [{"type": "text", "text": "hello"}],
                        "timestamp": said.timestamp,
                        "runId": "r1",
                    }
                ],
                "hasMore": False,
            }
            assert list(nulls(answer)) == []
            assert (await gateway.tools().sessions_history(MAIN))["sessionKey"] == MAIN

    async def test_a_session_without_messages_has_none(self, shelf: Shelf) -> None:
        shelf.session(MAIN)
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history("main")
            assert answer["messages"] == [] and answer["hasMore"] is False

    async def test_tool_results_are_left_out_unless_asked_for_and_do_not_count(self, shelf: Shelf) -> None:
        asked = message("looking", Role.ASSISTANT, ToolCallBlock(id="r/0/0", name="look", arguments={}))
        shelf.session(MAIN, "go", asked, result("seen 1"), result("seen 2"), message("done", Role.ASSISTANT))
        async with shelf.opened(AGENT) as gateway:
            tools = gateway.tools()
            plain = await tools.sessions_history(MAIN, limit=3)
            assert texts(plain) == ["go", "looking", "done"] and plain["hasMore"] is False
            assert [block["type"] for block in plain["messages"][1]["content"]] == ["text", "toolCall"]
            with_tools = await tools.sessions_history(MAIN, limit=3, includeTools=True)
            assert texts(with_tools) == ["seen 1", "seen 2", "done"] and with_tools["hasMore"] is True
            assert with_tools["messages"][0] | {"id": ""} == {
                "id": "",
                "role": "toolResult",
                "content": [{"type": "text", "text": "seen 1"}],
                "timestamp": with_tools["messages"][0]["timestamp"],
                "toolCallId": "r/0/0",
                "toolName": "look",
                "isError": False,
            }

    async def test_more_is_told_only_when_there_is_more(self, shelf: Shelf) -> None:
        shelf.session(MAIN, *(result("old") for _ in range(3)), *(str(n) for n in range(200)))
        async with shelf.opened(AGENT) as gateway:
            tools = gateway.tools()
            assert (await tools.sessions_history(MAIN))["hasMore"] is False
            assert (await tools.sessions_history(MAIN, limit=199))["hasMore"] is True
            assert (await tools.sessions_history(MAIN, includeTools=True))["hasMore"] is True
            assert (await tools.sessions_history(MAIN, includeTools=True, limit=203))["hasMore"] is False

    @pytest.mark.parametrize("limit", [1, 7, 100, 101, 1000])
    @pytest.mark.parametrize("include_tools", [False, True])
    async def test_paging_backwards_goes_on_exactly(self, shelf: Shelf, limit: int, include_tools: bool) -> None:
        said = [result(str(n)) if n % 3 == 0 else message(str(n)) for n in range(250)]
        shelf.session(MAIN, *said)
        wanted = [each.id for each in said if include_tools or each.role is not Role.TOOL_RESULT]
        async with shelf.opened(AGENT) as gateway:
            found = await all_pages(gateway.tools("main"), limit=limit, includeTools=include_tools)
            assert [each["id"] for each in found] == wanted

    async def test_before_a_tool_result_that_is_not_shown_goes_on_there_too(self, shelf: Shelf) -> None:
        hidden = result("hidden")
        shelf.session(MAIN, "first", "second", hidden, "third")
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN, before=hidden.id)
            assert texts(answer) == ["first", "second"] and answer["hasMore"] is False

    async def test_before_the_first_message_there_is_nothing(self, shelf: Shelf) -> None:
        shelf.session(MAIN, first := message("first"), "second")
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN, before=first.id)
            assert answer["messages"] == [] and answer["hasMore"] is False


# What fills an answer most, each in its own way: wide letters, letters that JSON writes long, many small values.
FILLERS = {
    "plain": "x" * 3999,
    "just too long": "x" * 4001,
    "very long": "y" * 300_000,
    "wide": "🦊" * 4000,
    "escaped": "\x01" * 4000,
    "quotes": '"\\' * 2000,
    "half and half": "ß" * 2000 + "x" * 2000,
}


class TestSize:
    @pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS)
    async def test_no_answer_is_over_80_kib_and_paging_still_reaches_everything(
        self, shelf: Shelf, filler: str
    ) -> None:
        said = [message(filler) for _ in range(40)]
        shelf.session(MAIN, *said)
        async with shelf.opened(AGENT) as gateway:
            first = await gateway.tools("main").sessions_history("main", limit=1000)
            assert first["truncated"] is True and first["hasMore"] is True
            assert len(encoded(first)) < MOST_BYTES
            assert first["messages"][-1]["id"] == said[-1].id
            found = await all_pages(gateway.tools("main"), "main", limit=1000)
            assert [each["id"] for each in found] == [each.id for each in said]

    async def test_a_key_of_wide_letters_counts_too(self, shelf: Shelf) -> None:
        key = "agent:main:" + "🦊" * 500
        shelf.session(key, *(message("x" * 1890) for _ in range(60)))
        async with shelf.opened(AGENT) as gateway:
            for caller in (None, MAIN):
                answer = await gateway.tools(caller).sessions_history(key)
                assert answer["sessionKey"] == key and len(encoded(answer)) < MOST_BYTES

    @pytest.mark.parametrize(
        "huge",
        [
            message("x" * 2_000_000),
            message("\x01" * 100_000),
            message("", Role.ASSISTANT, ThinkingBlock(thinking="🦊" * 100_000)),
            message("", Role.ASSISTANT, *(TextBlock(text="x" * 3000) for _ in range(100))),
            message("", Role.ASSISTANT, ToolCallBlock(id="r/0/0", name="look", arguments={"n": list(range(50_000))})),
            message(
                "", Role.ASSISTANT, ToolCallBlock(id="r/0/0", name="look", arguments={f"k{n}": 1 for n in range(9000)})
            ),
            message("", Role.ASSISTANT, ToolCallBlock(id="r/0/0", name="n" * 200_000, arguments={})),
            message("", Role.ASSISTANT, *(ImageBlock(mime_type="image/png", data="QUJD") for _ in range(5000))),
            message("", Role.ASSISTANT, ImageBlock(mime_type="m" * 200_000, url="https://x/" + "u" * 200_000)),
            message("x", label="l" * 200_000),
        ],
        ids=["text", "escaped", "thinking", "blocks", "list", "keys", "name", "images", "image", "label"],
    )
    async def test_the_newest_message_is_returned_however_large_it_is(self, shelf: Shelf, huge: Message) -> None:
        shelf.session(MAIN, "before", huge)
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN)
            assert len(encoded(answer)) < MOST_BYTES
            assert [said["id"] for said in answer["messages"]][-1] == huge.id
            assert "truncated" not in answer and answer["hasMore"] is False

    async def test_a_huge_result_of_a_tool_with_a_huge_name_is_small_too(self, shelf: Shelf) -> None:
        shelf.session(MAIN, result("x" * 500_000, name="n" * 200_000))
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN, includeTools=True)
            assert len(encoded(answer)) < MOST_BYTES and len(answer["messages"]) == 1

    async def test_a_cut_text_alone_is_not_truncation(self, shelf: Shelf) -> None:
        shelf.session(MAIN, "x" * 10_000, "short")
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN)
            assert answer.keys() == {"sessionKey", "sessionId", "messages", "hasMore"}
            assert answer["hasMore"] is False and len(answer["messages"]) == 2
            assert texts(answer)[0].startswith("x" * 4000 + "…") and len(texts(answer)[0]) < 4300

    async def test_a_text_of_just_the_limit_is_whole(self, shelf: Shelf) -> None:
        shelf.session(MAIN, "x" * 4000)
        async with shelf.opened(AGENT) as gateway:
            assert texts(await gateway.tools().sessions_history(MAIN)) == ["x" * 4000]


class TestPieces:
    @pytest.mark.parametrize("length", [1, 3999, 4000, 4001, 8000, 8001, 123_456])
    async def test_a_long_message_can_be_read_to_its_end(self, shelf: Shelf, length: int) -> None:
        text = "".join(chr(97 + n % 26) for n in range(length))
        shelf.session(MAIN, said := message(text))
        async with shelf.opened(AGENT) as gateway:
            assert await whole(gateway.tools(), said.id) == text

    async def test_the_marker_says_how_to_read_on_and_reading_on_continues_there(self, shelf: Shelf) -> None:
        text = "".join(chr(97 + n % 26) for n in range(9000))
        shelf.session(MAIN, said := message(text))
        async with shelf.opened(AGENT) as gateway:
            (shown,) = texts(await gateway.tools().sessions_history(MAIN))
            assert f"messageId '{said.id}' and offset 4000" in shown and "5,000 more characters" in shown
            answer = await gateway.tools().sessions_history(MAIN, messageId=said.id, offset=4000)
            assert texts(answer) == [text[4000:8000]]
            assert (answer["hasMore"], answer["nextOffset"]) == (True, 8000)

    async def test_all_blocks_are_read_one_after_the_other(self, shelf: Shelf) -> None:
        said = message(
            "t" * 5000,
            Role.ASSISTANT,
            ThinkingBlock(thinking="h" * 5000, signature="opaque"),
            ToolCallBlock(id="r/0/0", name="look", arguments={"text": "a" * 5000}),
            ImageBlock(mime_type="image/png", data="QUJD"),
        )
        shelf.session(MAIN, said)
        async with shelf.opened(AGENT) as gateway:
            text = await whole(gateway.tools(), said.id)
        assert text == "\n".join(["t" * 5000, "h" * 5000, 'look {"text":"' + "a" * 5000 + '"}', "[image image/png]"])

    async def test_pieces_show_no_more_of_a_secret_than_pages(self, shelf: Shelf) -> None:
        shelf.session(MAIN, said := message("x" * 3989 + f" {KEY} " + "y" * 5000))
        async with shelf.opened(AGENT) as gateway:
            for offset in range(3980, 4040):
                answer = await gateway.tools().sessions_history(MAIN, messageId=said.id, offset=offset)
                assert answer["redacted"] is True
                assert not any(KEY[n : n + 8] in texts(answer)[0] for n in range(len(KEY) - 8))
            assert "[redacted]" in await whole(gateway.tools(), said.id)

    @pytest.mark.parametrize("offset", [5, 6, 10**15])
    async def test_past_the_end_there_is_nothing(self, shelf: Shelf, offset: int) -> None:
        shelf.session(MAIN, said := message("hello"))
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN, messageId=said.id, offset=offset)
            assert texts(answer) == [""] and answer["hasMore"] is False

    async def test_a_message_of_another_session_is_not_found_and_not_shown(self, shelf: Shelf) -> None:
        shelf.session(MAIN, "mine")
        shelf.session("agent:ops:main", theirs := message("secret words"))
        async with shelf.opened(AGENT) as gateway:
            for arguments in ({"messageId": theirs.id}, {"before": theirs.id}):
                answer = await gateway.tools("main").sessions_history("main", **arguments)
                unknown = await gateway.tools("main").sessions_history("main", **dict.fromkeys(arguments, "nothing"))
                assert answer["status"] == unknown["status"] == "error"
                assert answer["error"].replace(theirs.id, "nothing") == unknown["error"]

    async def test_an_offset_needs_a_message(self, shelf: Shelf) -> None:
        shelf.session(MAIN, "mine")
        async with shelf.opened(AGENT) as gateway:
            assert (await refused(gateway.tools(), sessionKey=MAIN, offset=0)).details["param"] == "offset"


class TestRedaction:
    async def test_credentials_are_hidden_and_said_to_be(self, shelf: Shelf) -> None:
        said = [
            message(f"use {KEY}"),
            message("", Role.ASSISTANT, ToolCallBlock(id="r/0/0", name="look", arguments={"api_key": "abc123xyz"})),
            result(f"password=hunter2secret and {KEY}"),
            message("harmless"),
        ]
        shelf.session(MAIN, *said)
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN, includeTools=True)
            assert answer["redacted"] is True
            for secret in (KEY, "abc123xyz", "hunter2secret"):
                assert secret.encode() not in encoded(answer)
            assert "redacted" not in await gateway.tools().sessions_history(MAIN, limit=1)
            stored = (await gateway.store.history(answer["sessionId"], limit=10)).messages
        assert stored == said

    async def test_only_messages_that_are_returned_set_the_flag(self, shelf: Shelf) -> None:
        shelf.session(MAIN, message(KEY), *(message("🦊" * 4000) for _ in range(8)))
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN)
            assert answer["truncated"] is True and "redacted" not in answer

    async def test_the_newest_is_redacted_also_where_it_is_reduced_to_a_text(self, shelf: Shelf) -> None:
        arguments = {"token": KEY, "n": [*range(50_000)]}
        shelf.session(MAIN, message("", Role.ASSISTANT, ToolCallBlock(id="r/0/0", name="look", arguments=arguments)))
        async with shelf.opened(AGENT) as gateway:
            answer = await gateway.tools().sessions_history(MAIN)
            assert answer["redacted"] is True and KEY.encode() not in encoded(answer)


class TestTargets:
    async def test_a_session_is_found_by_all_its_names(self, shelf: Shelf) -> None:
        ids = {
            key: shelf.session(key, key)
            for key in (MAIN, "agent:main:cron:Nightly", "agent:main:slack:channel:c1", "agent:main:node-phone")
        }
        names = {
            MAIN: ["main", "MAIN", " main ", "agent:main:main", "Agent:Main:main"],
            "agent:main:cron:Nightly": ["cron:Nightly", "CRON:Nightly", "agent:main:cron:Nightly"],
            "agent:main:slack:channel:c1": ["slack:channel:C1", "agent:main:Slack:CHANNEL:c1"],
            "agent:main:node-phone": ["node-phone", "node:phone"],
        }
        async with shelf.opened(AGENT) as gateway:
            for caller in (None, MAIN):
                for key, written in names.items():
                    for name in (*written, ids[key], ids[key].upper()):
                        answer = await gateway.tools(caller).sessions_history(name)
                        assert (answer["sessionId"], texts(answer)) == (ids[key], [key]), name

    async def test_main_is_the_calling_agents_and_the_operators_is_the_default_agents(self, shelf: Shelf) -> None:
        shelf.session(MAIN, "of main")
        shelf.session("agent:ops:main", "of ops")
        async with shelf.opened(AGENT) as gateway:
            assert texts(await gateway.tools().sessions_history("main")) == ["of main"]
            assert texts(await gateway.tools("agent:ops:main").sessions_history("main")) == ["of ops"]

    async def test_current_is_the_caller_and_an_operator_is_none(self, shelf: Shelf) -> None:
        shelf.session("agent:main:cron:x", "of the job")
        async with shelf.opened(AGENT) as gateway:
            assert texts(await gateway.tools("cron:x").sessions_history("current")) == ["of the job"]
            answer = await gateway.tools().sessions_history("current")
            assert answer["status"] == "error" and "operator" in answer["error"]

    async def test_a_key_wins_over_an_id(self, shelf: Shelf) -> None:
        session_id = shelf.session("agent:main:cron:x", "by id")
        shelf.session(f"agent:main:{session_id}", "by key")
        async with shelf.opened(AGENT) as gateway:
            assert texts(await gateway.tools().sessions_history(session_id)) == ["by key"]

    async def test_an_id_that_a_reset_replaced_is_an_error_that_names_the_key(self, shelf: Shelf) -> None:
        old = shelf.session("agent:main:cron:x", said := message("before"))
        async with shelf.opened(AGENT) as gateway:
            await gateway.store.reset_session(SessionKey.parse("agent:main:cron:x"))
            mine = await gateway.tools("main").sessions_history(old)
            assert mine == {"status": "error", "error": mine["error"]}
            assert "replaced by a reset" in mine["error"] and "cron:x" in mine["error"]
            assert "agent:main:cron:x" in (await gateway.tools().sessions_history(old))["error"]
            fresh = await gateway.tools("main").sessions_history("cron:x")
            assert fresh["messages"] == [] and fresh["sessionId"] != old
            for arguments in ({"before": said.id}, {"messageId": said.id}):
                answer = await gateway.tools("main").sessions_history("cron:x", **arguments)
                assert answer["status"] == "error" and answer["sessionKey"] == "cron:x"

    async def test_an_archived_session_is_not_found_by_key_or_id(self, shelf: Shelf) -> None:
        gone = shelf.session("agent:main:cron:x", "gone")
        async with shelf.opened(AGENT) as gateway:
            await gateway.runtime.delete(SessionKey.parse("agent:main:cron:x"))
            for caller in (None, MAIN):
                for name in ("cron:x", gone):
                    answer = await gateway.tools(caller).sessions_history(name)
                    assert answer["status"] == "error" and "reset" not in answer["error"], answer
            await gateway.ask("cron:x", "who can I spawn")
            assert "gone" not in texts(await gateway.tools().sessions_history("cron:x"))
            assert (await gateway.tools().sessions_history(gone))["status"] == "error"

    async def test_the_id_of_an_archived_sub_agent_does_not_lead_to_what_lives_under_its_key(
        self, shelf: Shelf
    ) -> None:
        child = "agent:main:subagent:3f2b8c1e-9a44-4d0e-8a51-0c4a7f1d2e90"
        gone = shelf.session(child, "gone", spawned_by=MAIN)
        async with shelf.opened(AGENT) as gateway:
            await gateway.runtime.delete(SessionKey.parse(child))
            for caller in (None, MAIN):
                answer = await gateway.tools(caller).sessions_history(gone)
                assert (texts(answer), answer["archived"]) == (["gone"], True)
            await gateway.ask(child, "who can I spawn")
            for caller in (None, MAIN):
                tools = gateway.tools(caller)
                for answer in (await tools.sessions_history(gone), await tools.session_status(sessionKey=gone)):
                    assert answer["status"] == "error" and "no session has" in answer["error"], answer

    async def test_an_id_of_a_session_that_is_not_visible_tells_nothing_of_it(self, shelf: Shelf) -> None:
        current = shelf.session("agent:ops:cron:secret", "secret")
        old = shelf.session("agent:ops:cron:other", "secret")
        async with shelf.opened(AGENT) as gateway:
            await gateway.store.reset_session(SessionKey.parse("agent:ops:cron:other"))
            for session_id in (current, old):
                answer = await gateway.tools("main").sessions_history(session_id)
                assert answer["status"] == "forbidden"
                assert "secret" not in answer["error"] and "cron" not in answer["error"]

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({}, "sessionKey"),
            ({"sessionKey": None}, "sessionKey"),
            ({"sessionKey": 7}, "sessionKey"),
            ({"sessionKey": "main", "limit": 0}, "limit"),
            ({"sessionKey": "main", "limit": -5}, "limit"),
            ({"sessionKey": "main", "limit": 1.5}, "limit"),
            ({"sessionKey": "main", "limit": "10"}, "limit"),
            ({"sessionKey": "main", "includeTools": 1}, "includeTools"),
            ({"sessionKey": "main", "includeTools": "yes"}, "includeTools"),
            ({"sessionKey": "main", "before": 7}, "before"),
            ({"sessionKey": "main", "messageId": ["x"]}, "messageId"),
            ({"sessionKey": "main", "messageId": "x", "offset": -1}, "offset"),
            ({"sessionKey": "main", "messageId": "x", "offset": 0.5}, "offset"),
            ({"sessionKey": "main", "after": "x"}, "after"),
        ],
    )
    async def test_input_that_does_not_fit_is_an_error_that_names_the_parameter(
        self, shelf: Shelf, arguments: dict[str, Any], named: str
    ) -> None:
        async with shelf.opened(AGENT) as gateway:
            error = await refused(gateway.tools(), **arguments)
            assert named in error.message and error.details["param"] == named
