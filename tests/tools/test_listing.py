"""`sessions_list`: every parameter, every field, and paging that neither loses nor repeats a row."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.keys import KeyScheme
from backchannel.core.messages import ImageBlock, Role, ThinkingBlock, ToolCallBlock
from backchannel.core.sessions import Address, write_address
from backchannel.errors import InvalidRequest
from backchannel.tools.registry import SessionTools
from tests.tools.shelf import START_MS, Shelf, agents, message, nulls, result

pytestmark = pytest.mark.anyio

KEYS = {
    "main": "agent:main:main",
    "group": "agent:main:discord:group:7",
    "room": "agent:main:slack:channel:c1:thread:9",
    "cron": "agent:main:cron:Nightly",
    "hook": "agent:main:hook:build",
    "node": "agent:main:node-phone",
    "subagent": "agent:main:subagent:u1",
    "direct": "agent:main:telegram:direct:anna",
    "custom": "agent:main:openai:u2",
    "other agent": "agent:ops:main",
    "other agent's job": "agent:ops:cron:weekly",
}
ALL = {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}
OPEN = agents("main", "ops", tools=ALL)


@pytest.fixture
def one_of_each(shelf: Shelf) -> Shelf:
    """A session of every kind; the first is the newest."""
    for minutes, key in enumerate(KEYS.values()):
        shelf.session(key, at=START_MS - minutes * 60_000)
    return shelf


async def keys(tools: SessionTools, **arguments: Any) -> list[str]:
    return [row["key"] for row in (await tools.sessions_list(**arguments))["sessions"]]


async def pages(tools: SessionTools, **arguments: Any) -> list[list[str]]:
    """Follow the cursors to the end."""
    found: list[list[str]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await tools.sessions_list(**arguments, **cursor)
        assert answer["count"] == len(answer["sessions"])
        found.append([row["sessionId"] for row in answer["sessions"]])
        if "nextCursor" not in answer:
            return found
        cursor = {"cursor": answer["nextCursor"]}


async def refused(tools: SessionTools, **arguments: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await tools.sessions_list(**arguments)
    return caught.value


class TestRows:
    async def test_every_field_that_is_known_is_told(self, shelf: Shelf) -> None:
        address = Address(channel="telegram", to="-100A", account_id="work", thread_id="5")
        session_id = shelf.session(
            "agent:main:subagent:u1",
            label="helper",
            display_name="The helper",
            model="builtin/demo",
            thinking_level="low",
            verbose_level="on",
            send_policy="deny",
            system_sent=1,
            aborted_last_run=1,
            total_tokens=1200,
            delivery_context=write_address(address),
            spawned_by="agent:main:main",
        )
        async with shelf.opened(OPEN) as gateway:
            (row,) = (await gateway.tools("main").sessions_list())["sessions"]
            window = gateway.models.get("builtin/demo").context_window
        assert row == {
            "key": "agent:main:subagent:u1",
            "kind": "other",
            "channel": "telegram",
            "label": "helper",
            "displayName": "The helper",
            "updatedAt": START_MS,
            "sessionId": session_id,
            "agentId": "main",
            "model": "builtin/demo",
            "modelProvider": "builtin",
            "contextTokens": window,
            "totalTokens": 1200,
            "thinkingLevel": "low",
            "verboseLevel": "on",
            "systemSent": True,
            "abortedLastRun": True,
            "sendPolicy": "deny",
            "lastChannel": "telegram",
            "lastTo": "-100A",
            "lastAccountId": "work",
            "deliveryContext": {"channel": "telegram", "to": "-100A", "accountId": "work", "threadId": "5"},
            "transcriptPath": str(shelf.state / "agents" / "main" / "sessions" / f"{session_id}.jsonl"),
            "spawnedBy": "main",
            "status": "idle",
        }

    async def test_what_is_not_known_is_absent_and_nothing_is_ever_null(self, one_of_each: Shelf) -> None:
        async with one_of_each.opened(OPEN) as gateway:
            for tools in (gateway.tools(), gateway.tools("main")):
                answer = await tools.sessions_list(messageLimit=3)
                assert list(nulls(answer)) == []
                plain = (await tools.sessions_list(kinds=["hook"]))["sessions"][0]
                assert plain.keys() == {
                    *("key", "kind", "channel", "updatedAt", "sessionId", "agentId", "systemSent", "abortedLastRun"),
                    *("status", "model", "modelProvider", "contextTokens", "transcriptPath"),
                }

    async def test_an_empty_list_is_a_list(self, shelf: Shelf) -> None:
        async with shelf.opened(OPEN) as gateway:
            assert await gateway.tools("main").sessions_list() == {
                "count": 0,
                "sessions": [],
                "visibility": {"mode": "all", "restricted": False},
            }

    async def test_the_channel_is_that_of_the_kind(self, one_of_each: Shelf) -> None:
        async with one_of_each.opened(OPEN) as gateway:
            rows = (await gateway.tools().sessions_list())["sessions"]
        channels = {row["key"]: row["channel"] for row in rows}
        for name in ("cron", "hook", "node"):
            assert channels[KEYS[name]] == "internal"
        assert channels[KEYS["group"]] == "discord" and channels[KEYS["room"]] == "slack"
        for name in ("main", "subagent", "direct", "custom"):
            assert channels[KEYS[name]] == "unknown"

    async def test_a_session_at_work_says_so(self, shelf: Shelf) -> None:
        shelf.session("agent:main:main", queued=2)
        shelf.execute("UPDATE sessions SET running_run = 'r'")
        shelf.session("agent:main:cron:x", queued=1)
        async with shelf.opened(OPEN) as gateway:
            rows = (await gateway.tools().sessions_list())["sessions"]
        assert {row["key"]: row["status"] for row in rows} == {
            "agent:main:main": "running",
            "agent:main:cron:x": "queued",
        }

    async def test_an_archived_session_has_left_the_list(self, shelf: Shelf) -> None:
        shelf.session("agent:main:cron:old", archived_at=5)
        async with shelf.opened(OPEN) as gateway:
            assert await keys(gateway.tools()) == await keys(gateway.tools("main")) == []

    async def test_reserved_keys_are_never_listed(self, shelf: Shelf) -> None:
        shelf.session("agent:main:global", "from a time when all direct chats were one")
        shelf.session("agent:main:unknown")
        shelf.session("agent:main:cron:x")
        async with shelf.opened(OPEN) as gateway:
            for tools in (gateway.tools(), gateway.tools("main")):
                answer = await tools.sessions_list()
                assert [row["kind"] for row in answer["sessions"]] == ["cron"] and answer["count"] == 1


class TestKeys:
    async def test_a_session_gets_the_shortest_key_and_can_pass_it_back(self, one_of_each: Shelf) -> None:
        async with one_of_each.opened(OPEN) as gateway:
            tools = gateway.tools(KEYS["group"])
            rows = (await tools.sessions_list())["sessions"]
            full = {row["sessionId"]: row["key"] for row in (await gateway.tools().sessions_list())["sessions"]}
            shown = {full[row["sessionId"]]: row["key"] for row in rows}
            short = {"main": "main", "cron": "cron:Nightly", "hook": "hook:build", "node": "node-phone"}
            assert shown == {key: short.get(name, key) for name, key in KEYS.items()}
            for row in rows:
                for text in (row["key"], row["sessionId"], full[row["sessionId"]]):
                    back = await tools.session_status(sessionKey=text)
                    assert (back["sessionId"], back["key"]) == (row["sessionId"], row["key"])

    async def test_an_operator_gets_full_keys_and_can_pass_them_back(self, one_of_each: Shelf) -> None:
        async with one_of_each.opened(OPEN) as gateway:
            rows = (await gateway.tools().sessions_list())["sessions"]
            assert [row["key"] for row in rows] == list(KEYS.values())
            for row in rows:
                assert (await gateway.tools().session_status(sessionKey=row["key"]))["sessionId"] == row["sessionId"]

    @pytest.mark.parametrize("settings", [{"scope": "global"}, {"mainKey": "home"}])
    async def test_the_main_session_is_main_whatever_it_is_stored_as(
        self, shelf: Shelf, settings: dict[str, str]
    ) -> None:
        is_global = "scope" in settings
        scheme = KeyScheme(global_scope=is_global, main_key=settings.get("mainKey", "main"))
        stored = [str(scheme.main(agent)) for agent in ("main", "ops")]
        other = shelf.__class__(shelf.state, scheme)
        ids = [other.session(key) for key in stored]
        async with other.opened({**OPEN, "session": settings}) as gateway:
            shown = {row["sessionId"]: row["key"] for row in (await gateway.tools("main").sessions_list())["sessions"]}
            in_full = "agent:ops:main" if is_global else "agent:ops:home"
            assert shown == {ids[0]: "main", ids[1]: in_full}
            for session_id, key in shown.items():
                assert (await gateway.tools("main").session_status(sessionKey=key))["sessionId"] == session_id
            operator = {row["key"] for row in (await gateway.tools().sessions_list())["sessions"]}
            assert operator == {in_full.replace("ops", "main"), in_full}
            assert (await gateway.tools("main").session_status(sessionKey="global"))["status"] == "error"


class TestFilters:
    @pytest.mark.parametrize(
        ("kinds", "names"),
        [
            (["main"], ["main", "other agent"]),
            (["group"], ["group", "room"]),
            (["cron"], ["cron", "other agent's job"]),
            (["hook"], ["hook"]),
            (["node"], ["node"]),
            (["other"], ["subagent", "direct", "custom"]),
            (["node", "hook", "node"], ["hook", "node"]),
            ([], list(KEYS)),
            (None, list(KEYS)),
        ],
    )
    async def test_only_sessions_of_these_kinds(
        self, one_of_each: Shelf, kinds: list[str] | None, names: list[str]
    ) -> None:
        async with one_of_each.opened(OPEN) as gateway:
            assert await keys(gateway.tools(), kinds=kinds) == [KEYS[name] for name in names]

    async def test_an_unknown_kind_is_an_error_that_names_those_there_are(self, one_of_each: Shelf) -> None:
        async with one_of_each.opened(OPEN) as gateway:
            error = await refused(gateway.tools(), kinds=["main", "mian"])
        assert "'mian'" in error.message and "kinds[1]" in error.message
        for word in ("main", "group", "cron", "hook", "node", "other"):
            assert word in error.message

    async def test_only_sessions_that_changed_lately(self, shelf: Shelf) -> None:
        async with shelf.opened(OPEN) as gateway:
            now = gateway.clock.now_ms()
            for minutes in (0, 4, 6, 600):
                shelf.session(f"agent:main:cron:m{minutes}", at=now - minutes * 60_000)
            tools = gateway.tools("main")
            assert await keys(tools, activeMinutes=1) == ["cron:m0"]
            assert await keys(tools, activeMinutes=5) == ["cron:m0", "cron:m4"]
            assert await keys(tools, activeMinutes=60) == ["cron:m0", "cron:m4", "cron:m6"]
            for longest in (10**6, 10**15, 2**63 - 1):
                assert len(await keys(tools, activeMinutes=longest)) == 4

    async def test_only_the_session_with_exactly_this_label(self, shelf: Shelf) -> None:
        shelf.session("agent:main:cron:a", label="the plan")
        shelf.session("agent:main:cron:b", label="the plan b")
        shelf.session("agent:ops:cron:c", label="the plan")
        async with shelf.opened(OPEN) as gateway:
            assert await keys(gateway.tools(), label="the plan") == ["agent:main:cron:a", "agent:ops:cron:c"]
            for other in ("plan", "The Plan", "the plan%", ""):
                assert await keys(gateway.tools(), label=other) == []

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("harbour", {"agent:main:cron:a"}),
            ("HARBOUR", {"agent:main:cron:a"}),
            ("100%", {"agent:main:cron:b"}),
            ("0%", {"agent:main:cron:b"}),
            ("a_b", {"agent:main:cron:c"}),
            ("_", {"agent:main:cron:c"}),
            ("\\", {"agent:main:cron:d"}),
            ("\\_", set()),
            ("%", {"agent:main:cron:b"}),
            ("cron:a", {"agent:main:cron:a"}),
            ("'", {"agent:main:cron:d"}),
            ("' OR 1=1 --", set()),
            ("", {f"agent:main:cron:{name}" for name in "abcd"}),
            ("é" * 512, set()),
        ],
    )
    async def test_a_search_looks_for_the_text_as_it_is_in_key_label_and_display_name(
        self, shelf: Shelf, text: str, found: set[str]
    ) -> None:
        shelf.session("agent:main:cron:a", display_name="Harbour office")
        shelf.session("agent:main:cron:b", label="100% sure")
        shelf.session("agent:main:cron:c", label="a_b")
        shelf.session("agent:main:cron:d", label="back\\slash's")
        async with shelf.opened(OPEN) as gateway:
            assert set(await keys(gateway.tools(), search=text)) == found

    async def test_filters_apply_before_the_limit_and_together(self, shelf: Shelf) -> None:
        for n in range(30):
            shelf.session(f"agent:main:cron:{n}", at=START_MS - n, label="wanted" if n == 25 else None)
            shelf.session(f"agent:main:hook:{n}", at=START_MS - n)
        async with shelf.opened(OPEN) as gateway:
            tools = gateway.tools("main")
            assert await keys(tools, limit=1, label="wanted") == ["cron:25"]
            assert await keys(tools, limit=1, search=":29") == ["cron:29"]
            assert await keys(tools, limit=5, kinds=["hook"], search=":2") == [f"hook:{n}" for n in (2, 20, 21, 22, 23)]

    async def test_a_filter_does_not_widen_the_view(self, shelf: Shelf) -> None:
        shelf.session("agent:main:cron:a", label="mine")
        shelf.session("agent:ops:cron:b", label="theirs")
        async with shelf.opened(agents("main", "ops", tools={"sessions": {"visibility": "agent"}})) as gateway:
            tools = gateway.tools("main")
            assert await keys(tools, label="theirs") == await keys(tools, search="theirs") == []
            assert await keys(tools, search="agent:") == ["cron:a"]


class TestLimits:
    async def test_fifty_rows_by_default_and_two_hundred_at_most(self, shelf: Shelf) -> None:
        for n in range(210):
            shelf.session(f"agent:main:cron:{n}")
        async with shelf.opened(OPEN) as gateway:
            for arguments, count in (({}, 50), ({"limit": 1}, 1), ({"limit": 200}, 200), ({"limit": 5000}, 200)):
                answer = await gateway.tools().sessions_list(**arguments)
                assert answer["count"] == len(answer["sessions"]) == count
                assert "nextCursor" in answer

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *((name, value) for name in ("limit", "activeMinutes") for value in (0, -1, 1.5, 2.0, "1", True, [1])),
            *(("messageLimit", value) for value in (-1, 0.5, "1", False)),
            ("limit", None),
            ("kinds", "main"),
            ("kinds", [1]),
            ("kinds", [None]),
            ("label", 7),
            ("search", ["x"]),
            ("search", "x" * 513),
            ("search", "\ud800"),
            ("cursor", 7),
            ("mesageLimit", 1),
            ("agentId", "main"),
        ],
    )
    async def test_input_that_does_not_fit_is_an_error_that_names_the_parameter(
        self, shelf: Shelf, name: str, value: Any
    ) -> None:
        async with shelf.opened(OPEN) as gateway:
            error = await refused(gateway.tools(), **{name: value})
        assert (error.code, error.http_status) == ("bad_params", 400)
        assert name in error.message or value == "\ud800"

    async def test_a_misspelt_parameter_is_told_the_right_one(self, shelf: Shelf) -> None:
        async with shelf.opened(OPEN) as gateway:
            assert "did you mean messageLimit?" in (await refused(gateway.tools(), mesageLimit=1)).message


class TestMessages:
    async def test_without_a_message_limit_rows_have_no_messages(self, shelf: Shelf) -> None:
        shelf.session("agent:main:main", "hello")
        async with shelf.opened(OPEN) as gateway:
            for arguments in ({}, {"messageLimit": 0}):
                (row,) = (await gateway.tools().sessions_list(**arguments))["sessions"]
                assert "messages" not in row

    async def test_the_last_messages_come_oldest_first_and_without_tool_results(self, shelf: Shelf) -> None:
        shelf.session("agent:main:main", *(text for n in range(30) for text in (f"said {n}", result(f"result {n}"))))
        shelf.session("agent:main:cron:silent")
        shelf.session("agent:main:cron:short", "one", "two")
        async with shelf.opened(OPEN) as gateway:
            for given, count in ((1, 1), (5, 5), (20, 20), (10_000, 20)):
                answer = await gateway.tools("main").sessions_list(messageLimit=given)
                texts = {
                    row["key"]: [said["content"][0]["text"] for said in row["messages"]] for row in answer["sessions"]
                }
                assert texts["main"] == [f"said {n}" for n in range(30 - count, 30)]
                assert texts["cron:silent"] == []
                assert texts["cron:short"] == ["one", "two"][-count:]
                assert "redacted" not in answer

    async def test_messages_are_redacted_and_cut_and_images_left_out(self, shelf: Shelf) -> None:
        key = "sk-ant-api03-" + "abcDEF123456" * 8
        said = message(
            f"my key is {key}",
            Role.ASSISTANT,
            ThinkingBlock(thinking="t" * 5000, signature="opaque"),
            ToolCallBlock(id="r/0/0", name="look", arguments={"password": "hunter2", "text": "x" * 5000, "n": None}),
            ToolCallBlock(id="r/0/1", name="n" * 9000, arguments={}),
            ImageBlock(mime_type="image/png", data="QUJD" * 1000),
            ImageBlock(mime_type="image/png", url="https://example.com/" + "x" * 9000),
        )
        shelf.session("agent:main:main", said)
        shelf.session("agent:ops:main", "nothing to hide")
        async with shelf.opened(OPEN) as gateway:
            answer = await gateway.tools().sessions_list(messageLimit=1)
            assert answer["redacted"] is True
            row = next(row for row in answer["sessions"] if row["agentId"] == "main")
            text, thinking, call, odd, image, far = row["messages"][0]["content"]
            stored = (await gateway.store.message(said.id), said)
            assert "redacted" not in await gateway.tools().sessions_list(messageLimit=1, search="ops")
        assert text["text"] == "my key is [redacted]"
        assert thinking["thinking"].startswith("t" * 4000 + "…") and "signature" not in thinking
        assert call["arguments"]["password"] == "[redacted]"
        assert call["arguments"]["text"].startswith("x" * 4000 + "…") and len(call["arguments"]["text"]) < 4300
        assert call["arguments"]["n"] is None
        assert len(odd["name"]) < 4300
        assert image == far == {"type": "image", "mimeType": "image/png"}
        assert stored[0] == stored[1]


class TestPaging:
    @pytest.mark.parametrize("caller", [None, "agent:main:main"])
    @pytest.mark.parametrize("mode", ["tree", "agent", "all"])
    @pytest.mark.parametrize("limit", [1, 3, 7])
    async def test_pages_reach_every_row_once_also_where_times_are_equal(
        self, shelf: Shelf, mode: str, caller: str | None, limit: int
    ) -> None:
        main = "agent:main:main"
        ids = [shelf.session(main, at=START_MS + 3)]
        for n in range(6):
            for agent in ("main", "ops", "other"):
                ids.append(shelf.session(f"agent:{agent}:subagent:{n}", at=START_MS + n // 3, spawned_by=main))
                ids.append(shelf.session(f"agent:{agent}:cron:{n}", at=START_MS + n // 3))
        tools = {"sessions": {"visibility": mode}, "agentToAgent": {"enabled": True, "allow": ["main", "ops"]}}
        async with shelf.opened(agents("main", "ops", "other", tools=tools)) as gateway:
            found = await pages(gateway.tools(caller), limit=limit)
            whole = await pages(gateway.tools(caller), limit=200)
        expected = {None: 37, "tree": 19, "agent": 25, "all": 31}[caller and mode]
        assert len(whole) == 1 and len(whole[0]) == expected
        assert [session_id for page in found for session_id in page] == whole[0]
        assert len(set(whole[0])) == expected and set(whole[0]) <= set(ids)
        assert all(len(page) == limit for page in found[:-1])

    async def test_a_row_that_changes_meanwhile_does_not_push_others_out(self, shelf: Shelf) -> None:
        ids = [shelf.session(f"agent:main:cron:{n}", at=START_MS - n) for n in range(10)]
        async with shelf.opened(OPEN) as gateway:
            first = await gateway.tools("main").sessions_list(limit=4)
            shelf.execute("UPDATE sessions SET updated_at = updated_at + 100 WHERE session_id = ?", ids[8])
            rest = await gateway.tools("main").sessions_list(limit=200, cursor=first["nextCursor"])
            assert [row["sessionId"] for row in rest["sessions"]] == [*ids[4:8], ids[9]]

    async def test_reserved_rows_do_not_end_the_pages_early(self, shelf: Shelf) -> None:
        shelf.session("agent:main:global", at=START_MS + 5)
        shelf.session("agent:ops:unknown", at=START_MS + 5)
        ids = [shelf.session(f"agent:main:cron:{n}", at=START_MS - n) for n in range(3)]
        async with shelf.opened(OPEN) as gateway:
            found = await pages(gateway.tools(), limit=1)
            assert [session_id for page in found for session_id in page] == ids

    @pytest.mark.parametrize(
        "other",
        [{"kinds": ["hook"]}, {"kinds": ["cron", "hook"]}, {"label": "x"}, {"search": "x"}, {"activeMinutes": 10**9}],
    )
    async def test_a_cursor_of_another_query_is_refused(self, shelf: Shelf, other: dict[str, Any]) -> None:
        for n in range(3):
            shelf.session(f"agent:main:cron:{n}")
        async with shelf.opened(OPEN) as gateway:
            tools = gateway.tools("main")
            cursor = (await tools.sessions_list(limit=1, kinds=["cron"]))["nextCursor"]
            error = await refused(tools, cursor=cursor, **other)
            assert error.details["param"] == "cursor" and "other filters" in error.message
            # A limit is no filter, and neither is how many messages are shown.
            assert (await tools.sessions_list(limit=2, messageLimit=1, kinds=["cron"], cursor=cursor))["count"] == 2

    async def test_a_cursor_of_another_caller_is_refused(self, shelf: Shelf) -> None:
        for n in range(3):
            shelf.session(f"agent:main:cron:{n}")
        async with shelf.opened(OPEN) as gateway:
            callers = [None, "agent:main:main", "agent:main:cron:1", "agent:ops:main"]
            for caller in callers:
                cursor = (await gateway.tools(caller).sessions_list(limit=1))["nextCursor"]
                for other in callers:
                    if other != caller:
                        assert (await refused(gateway.tools(other), cursor=cursor)).details["param"] == "cursor"

    @pytest.mark.parametrize(
        "place", [{"updated_at": 10**30, "key": "x"}, {"updated_at": -1, "key": "x"}, {"updated_at": "1"}, None, []]
    )
    async def test_a_forged_cursor_is_refused(self, shelf: Shelf, place: Any) -> None:
        for n in range(2):
            shelf.session(f"agent:main:cron:{n}")
        async with shelf.opened(OPEN) as gateway:
            cursor = (await gateway.tools().sessions_list(limit=1))["nextCursor"]
            mark, _ = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
            forged = base64.urlsafe_b64encode(json.dumps([mark, place]).encode()).decode().rstrip("=")
            assert (await refused(gateway.tools(), cursor=forged)).details["param"] == "cursor"

    @pytest.mark.parametrize("cursor", ["", "x", "é", "=====", "W10", "bnVsbA", "[]", "a" * 100_000])
    async def test_what_is_no_cursor_is_refused(self, shelf: Shelf, cursor: str) -> None:
        async with shelf.opened(OPEN) as gateway:
            assert (await refused(gateway.tools(), cursor=cursor)).details["param"] == "cursor"

    async def test_a_forged_place_shows_nothing_that_the_caller_may_not_see(self, shelf: Shelf) -> None:
        shelf.session("agent:main:main")
        shelf.session("agent:ops:main", at=START_MS - 10)
        async with shelf.opened(agents("main", "ops")) as gateway:
            for child in range(3):
                shelf.session(f"agent:main:subagent:{child}", spawned_by="agent:main:main")
            cursor = (await gateway.tools("main").sessions_list(limit=1))["nextCursor"]
            mark, _ = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
            place = {"updated_at": START_MS * 2, "key": ""}
            forged = base64.urlsafe_b64encode(json.dumps([mark, place]).encode()).decode().rstrip("=")
            assert len(await keys(gateway.tools("main"), cursor=forged)) == 4


async def test_a_row_names_the_model_that_the_next_run_will_use(shelf: Shelf) -> None:
    shelf.session("agent:main:main")
    shelf.session("agent:main:cron:x", model="scripted/chosen")
    shelf.session("agent:main:cron:gone", model="nobody/knows")
    shelf.session("agent:retired:main")
    config = agents("main", defaults={"model": "scripted/test"})
    models = [ScriptedModel(), ScriptedModel("scripted/chosen", context_window=7)]
    async with shelf.opened(config, *models) as gateway:
        rows = {row["key"]: row for row in (await gateway.tools().sessions_list())["sessions"]}
    shown = {key: (row.get("model"), row.get("modelProvider"), row.get("contextTokens")) for key, row in rows.items()}
    assert shown == {
        "agent:main:main": ("scripted/test", "scripted", 100_000),
        "agent:main:cron:x": ("scripted/chosen", "scripted", 7),
        "agent:main:cron:gone": ("nobody/knows", "nobody", None),
        "agent:retired:main": (None, None, None),
    }


async def test_a_list_of_a_gateway_at_work_is_that_of_its_rows(shelf: Shelf) -> None:
    model = ScriptedModel(replies=lambda request: "fine")
    config = agents("main", defaults={"model": "scripted/test"})
    async with shelf.opened(config, model) as gateway:
        await gateway.ask("main", "hello")
        await gateway.ask("cron:x", "hello")
        rows = (await gateway.tools().sessions_list(messageLimit=2))["sessions"]
        assert [row["key"] for row in rows] == ["agent:main:cron:x", "agent:main:main"]
        for row in rows:
            assert row["systemSent"] is True
            assert [said["role"] for said in row["messages"]] == ["user", "assistant"]
