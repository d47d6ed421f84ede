"""`sessions.*`, through a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.openclaw.shapes import Shape
from tests.support.openclaw.violations import violations
from tests.tools.door import doors
from tests.tools.shelf import Shelf

from .client import Client
from .conftest import MakeWorld, Speaker, World

pytestmark = pytest.mark.anyio


class Priced(Speaker):
    """The same, at a price."""

    ref = "test/priced"
    cost = 0.002


async def make(client: Client, *keys: str) -> None:
    for key in keys:
        await client.ask("sessions.patch", key=key)


async def test_a_row_tells_what_is_known_and_nothing_else(client: Client, world: World) -> None:
    await client.run(message="hi", agentId="speaker")
    row = (await client.ask("sessions.list"))["sessions"][0]
    assert None not in row.values()
    assert row["key"] == "agent:speaker:main"
    assert (row["kind"], row["classification"], row["agentId"]) == ("direct", "main", "speaker")
    assert (row["status"], row["hasActiveRun"], row["activeRunIds"]) == ("done", False, [])
    assert row["createdAt"] <= row["updatedAt"]
    assert (row["model"], row["modelProvider"], row["contextTokens"]) == ("test/speaker", "test", 1000)
    assert (row["totalTokens"], row["totalTokensFresh"]) == (13, True)
    assert (row["inputTokens"], row["outputTokens"]) == (10, 3)
    assert (row["systemSent"], row["abortedLastRun"]) == (True, False)
    assert row["transcriptPath"].endswith(f"agents/speaker/sessions/{row['sessionId']}.jsonl")
    for absent in ("label", "spawnedBy", "sendPolicy", "thinkingLevel", "displayName", "messages", "lastTo"):
        assert absent not in row
    assert "estimatedCostUsd" not in row, "the model has no known price"


async def test_a_row_tells_what_all_runs_of_a_session_have_cost(client: Client, world: World) -> None:
    world.gateway.add_model(Priced())
    for _ in range(2):
        await client.run(message="hi", agentId="speaker", model="test/priced")
    row = (await client.ask("sessions.describe", key="agent:speaker:main"))["session"]
    assert (row["inputTokens"], row["outputTokens"], row["totalTokens"]) == (20, 6, 13)
    assert row["estimatedCostUsd"] == pytest.approx(0.004)
    shown = (await client.ask("tools.invoke", tool="sessions_list", sessionKey="agent:speaker:main"))["result"]
    assert "estimatedCostUsd" not in shown["sessions"][0], "what is paid is no agent's affair"


async def test_the_list_says_where_it_comes_from_and_what_the_defaults_are(client: Client) -> None:
    answer = await client.ask("sessions.list")
    assert answer["path"].endswith("backchannel.db")
    assert answer["defaults"] == {"modelProvider": "builtin", "model": "builtin/demo", "contextTokens": 32768}
    assert answer["ts"] > 0 and answer["count"] == 0 and answer["hasMore"] is False
    assert "nextCursor" not in answer


async def test_status_says_whether_a_session_works_and_which_runs_are_not_over(client: Client, world: World) -> None:
    runs = [await client.ask("chat.send", sessionKey="agent:held:main", message=text) for text in "abc"]
    (listed,) = (await client.ask("sessions.list"))["sessions"]
    assert (await client.ask("sessions.describe", key="agent:held:main"))["session"] == listed
    assert (listed["status"], listed["hasActiveRun"]) == ("running", True)
    assert listed["activeRunIds"] == [run["runId"] for run in runs]
    world.release.set()


@pytest.mark.parametrize(("agent", "status"), [("echo", "done"), ("broken", "failed")])
async def test_a_session_that_is_idle_says_how_its_last_run_ended(client: Client, agent: str, status: str) -> None:
    await client.run(message="hi", agentId=agent)
    assert (await client.ask("sessions.describe", key=f"agent:{agent}:main"))["session"]["status"] == status
    reset = (await client.ask("sessions.reset", key=f"agent:{agent}:main"))["entry"]
    assert "status" not in reset, "nothing has run in the new transcript"


async def test_a_session_whose_run_was_stopped_or_took_too_long_says_so(client: Client) -> None:
    run = await client.ask("chat.send", sessionKey="agent:held:main", message="hi")
    await client.ask("chat.abort", sessionKey="agent:held:main")
    await client.ask("agent.wait", runId=run["runId"])
    assert (await client.ask("sessions.describe", key="agent:held:main"))["session"]["status"] == "killed"
    await client.run(message="hi", agentId="held", timeout=0.01)
    assert (await client.ask("sessions.describe", key="agent:held:main"))["session"]["status"] == "timeout"


async def test_a_list_that_is_asked_for_again_shows_what_has_changed(client: Client, world: World) -> None:
    """Rows are kept as JSON between two lists: each change must make a new one."""
    key = "agent:held:main"
    await client.ask("sessions.patch", key="agent:echo:other", displayName="stays as it is")
    seen: list[dict[str, Any]] = []
    for given in ({"displayName": "d"}, {"thinkingLevel": "high"}, {"model": "test/speaker"}, {"model": None}):
        await client.ask("sessions.patch", key=key, **given)
        seen.append(await _listed(client, key))
    for text in "ab":  # one at work, then one behind it
        await client.ask("chat.send", sessionKey=key, message=text)
        seen.append(await _listed(client, key))
    await client.ask("chat.abort", sessionKey=key)
    await client.ask("sessions.reset", key=key)
    seen.append(await _listed(client, key))
    assert all(row != other for i, row in enumerate(seen) for other in seen[:i])


async def _listed(client: Client, key: str) -> dict[str, Any]:
    """Ask twice for a list, and return a session's row, which must be the one that describes it."""
    rows = [(await client.ask("sessions.list"))["sessions"] for _ in range(2)]
    (row,) = (row for row in rows[1] if row["key"] == key)
    assert rows[0] == rows[1] and len(rows[1]) == 2
    assert (await client.ask("sessions.describe", key=key))["session"] == row
    return dict(row)


async def test_a_change_is_told_with_the_row_as_it_is_by_then(client: Client, world: World) -> None:
    await client.ask("sessions.subscribe")
    run = await client.ask("chat.send", sessionKey="agent:held:main", message="hi")
    begun = await client.event("sessions.changed", reason="run", activeRunIds=[run["runId"]])
    assert (begun["sessionKey"], begun["agentId"]) == ("agent:held:main", "held")
    assert begun["session"]["sessionId"] == begun["sessionId"] and begun["session"]["status"] == "running"
    world.release.set()
    ended = await client.event("sessions.changed", reason="run", activeRunIds=[])
    assert (ended["session"]["status"], ended["session"]["hasActiveRun"]) == ("done", False)
    await make(client, "cron:a")
    await client.ask("sessions.delete", key="cron:a")
    deleted = await client.event("sessions.changed", reason="delete")
    assert deleted.keys() == {"sessionKey", "agentId", "reason", "ts"}


async def test_paging_reaches_every_session_once_newest_first(client: Client) -> None:
    keys = [f"agent:main:cron:job{n}" for n in range(7)]
    await make(client, *keys)
    seen: list[str] = []
    page: dict[str, Any] = {"nextCursor": None}
    while "nextCursor" in page:
        page = await client.ask("sessions.list", limit=3, cursor=page["nextCursor"])
        seen += [row["key"] for row in page["sessions"]]
    assert sorted(seen) == sorted(keys)
    offset = await client.ask("sessions.list", limit=3, offset=3)
    assert [row["key"] for row in offset["sessions"]] == seen[3:6]


@pytest.mark.parametrize(
    "other", [{"kinds": ["cron"]}, {"search": "job"}, {"agentId": "main"}, {"archived": True}, {"activeMinutes": 5}]
)
async def test_a_cursor_of_another_query_is_refused(client: Client, other: dict[str, Any]) -> None:
    await make(client, "cron:a", "cron:b")
    cursor = (await client.ask("sessions.list", limit=1))["nextCursor"]
    error = await client.refused("sessions.list", {"limit": 1, "cursor": cursor, **other})
    assert error["details"] == {"code": "bad_params", "param": "cursor"}


async def test_a_cursor_of_another_list_is_refused(client: Client) -> None:
    await client.run(message="a", agentId="echo")
    await client.run(message="b", agentId="echo")
    cursor = (await client.ask("runs.list", limit=1))["nextCursor"]
    assert (await client.refused("sessions.list", {"cursor": cursor}))["details"]["param"] == "cursor"


async def test_a_cursor_and_an_offset_exclude_each_other(client: Client) -> None:
    await make(client, "cron:a", "cron:b")
    cursor = (await client.ask("sessions.list", limit=1))["nextCursor"]
    await client.refused("sessions.list", {"cursor": cursor, "offset": 1})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kinds": ["cron"]}, {"agent:main:cron:a"}),
        ({"kinds": ["group", "cron"]}, {"agent:main:cron:a", "agent:main:discord:group:g1"}),
        ({"agentId": "Echo"}, {"agent:echo:main"}),
        ({"agentId": "nobody"}, set()),
        ({"label": "pick me"}, {"agent:main:cron:a"}),
        ({"search": "DISCORD"}, {"agent:main:discord:group:g1"}),
        ({"search": "pick"}, {"agent:main:cron:a"}),
        ({"spawnedBy": "main"}, set()),
        ({"activeMinutes": 5}, {"agent:main:cron:a", "agent:main:discord:group:g1", "agent:echo:main"}),
        ({"archived": True}, set()),
    ],
)
async def test_filters(client: Client, given: dict[str, Any], expected: set[str]) -> None:
    await client.ask("sessions.patch", key="cron:a", label="pick me")
    await make(client, "discord:group:G1", "agent:echo:main")
    answer = await client.ask("sessions.list", **given)
    assert {row["key"] for row in answer["sessions"]} == expected


async def test_a_session_whose_key_ends_like_a_reserved_one_is_listed_as_the_tool_lists_it(client: Client) -> None:
    await make(client, "cron:global", "cron:unknown")
    by_tool = await client.ask("tools.invoke", tool="sessions_list")
    listed = await client.ask("sessions.list")

    keys = {row["key"] for row in listed["sessions"]}
    assert keys == {"agent:main:cron:global", "agent:main:cron:unknown"}
    assert keys == {row["key"] for row in by_tool["result"]["sessions"]}


async def test_a_group_shows_its_channel(client: Client) -> None:
    await make(client, "discord:group:g1", "cron:a", "agent:echo:main")
    rows = {row["key"]: row["channel"] for row in (await client.ask("sessions.list"))["sessions"]}
    assert rows == {
        "agent:main:discord:group:g1": "discord",
        "agent:main:cron:a": "internal",
        "agent:echo:main": "unknown",
    }


async def test_a_list_can_show_the_last_message_and_a_title(client: Client) -> None:
    await client.run(message="hi   there", agentId="echo")
    row = (await client.ask("sessions.list", includeLastMessage=True, includeDerivedTitles=True))["sessions"][0]
    assert row["lastMessagePreview"] == "echo hi there"
    assert row["derivedTitle"] == "hi there"


async def test_a_title_stays_until_the_session_is_named(client: Client) -> None:
    async def title() -> str:
        return str((await client.ask("sessions.list", includeDerivedTitles=True))["sessions"][0]["derivedTitle"])

    for text in ("plan a trip", "to Rome"):
        await client.run(message=text, agentId="echo")
        assert await title() == "plan a trip"
    await client.ask("sessions.patch", key="agent:echo:main", displayName="Travel")
    assert await title() == "Travel"
    await client.ask("sessions.patch", key="agent:echo:main", label="Rome")
    assert await title() == "Rome"


async def test_a_list_can_have_what_is_archived_and_what_is_not(client: Client) -> None:
    keys = [f"agent:main:cron:job{n}" for n in range(6)]
    await make(client, *keys)
    for key in keys[:3]:
        await client.ask("sessions.delete", key=key)

    async def listed(archived: object, **more: Any) -> list[str]:
        answer = await client.ask("sessions.list", archived=archived, **more)
        rest = await listed(archived, **{**more, "cursor": answer["nextCursor"]}) if answer["hasMore"] else []
        return [row["key"] for row in answer["sessions"]] + rest

    gone, here = await listed(True), await listed(False)
    assert (sorted(gone), sorted(here)) == (keys[:3], keys[3:])
    assert sorted(await listed("all")) == keys == sorted(await listed("all", limit=2))
    assert (await client.refused("sessions.list", {"archived": "some"}))["details"]["param"] == "archived"


class TestResolving:
    async def test_a_key_an_id_and_a_label_find_the_session(self, client: Client) -> None:
        entry = (await client.ask("sessions.patch", key="cron:a", label="nightly"))["entry"]
        for given in ({"key": "cron:a"}, {"sessionId": entry["sessionId"]}, {"label": "nightly"}):
            found = {"ok": True, "key": "agent:main:cron:a", "agentId": "main"}
            assert await client.ask("sessions.resolve", **given) == found

    async def test_the_addresses_of_pages_name_a_session_by_its_key_or_by_a_part_of_its_uuid(
        self, client: Client
    ) -> None:
        plain, dashed = "9fe58684c0b84fa0800ea3662a8e702a", "9fe58684-1111-4fa0-800e-a3662a8e702a"
        keys = [f"agent:echo:{plain}", f"agent:echo:subagent:{dashed}", "agent:main:9fe58684ffff4fa0800ea3662a8e702a"]
        await make(client, *keys, "agent:echo:9fe58684", "agent:echo:project")

        async def found(**given: Any) -> Any:
            answer = await client.ask("sessions.resolve", **given, allowMissing=True)
            return answer.get("key") or [each["key"] for each in answer.get("candidates", [])]

        reference = {"key": "agent:echo:project", "slug": "project"}
        assert await found(reference=reference, agentId="echo") == "agent:echo:project"
        assert await found(reference={"key": "agent:echo:other"}) == []
        assert await found(shortId=plain, agentId="echo") == keys[0]
        assert await found(shortId="9FE58684C0", agentId="echo") == keys[0]
        assert await found(shortId="9fe5868411114") == keys[1]
        assert await found(shortId="9fe58684", agentId="echo") == keys[:2], "what only looks like one is none"
        assert await found(shortId="9fe58684") == keys
        assert await found(shortId="9fe5868") == await found(shortId="9fe5868%") == await found(shortId="0" * 32) == []
        await client.ask("sessions.delete", key=keys[1])
        assert await found(shortId="9fe58684", agentId="echo") == keys[0]
        assert (await client.refused("sessions.resolve", {"shortId": "0" * 8}))["details"][
            "code"
        ] == "session_not_found"

    @pytest.mark.parametrize(
        "given", [{}, {"key": "a", "label": "b"}, {"agentId": "main"}, {"key": "a", "shortId": "b"}]
    )
    async def test_exactly_one_of_them_is_needed(self, client: Client, given: dict[str, Any]) -> None:
        assert (await client.refused("sessions.resolve", given))["details"]["code"] == "bad_params"

    @pytest.mark.parametrize("given", [{"key": "cron:a"}, {"label": "x"}, {"sessionId": "no"}])
    async def test_what_is_not_there_is_not_found(self, client: Client, given: dict[str, Any]) -> None:
        error = await client.refused("sessions.resolve", given)
        assert (error["code"], error["details"]["code"]) == ("NOT_FOUND", "session_not_found")
        assert await client.ask("sessions.resolve", **given, allowMissing=True) == {"ok": False}

    async def test_a_label_that_several_have_lists_them_and_an_agent_narrows_it(self, client: Client) -> None:
        await client.ask("sessions.patch", key="agent:main:cron:a", label="same")
        await client.ask("sessions.patch", key="agent:echo:cron:a", label="same")
        error = await client.refused("sessions.resolve", {"label": "same"})
        assert error["details"]["code"] == "ambiguous_label"
        assert error["details"]["sessionKeys"] == ["agent:echo:cron:a", "agent:main:cron:a"]
        found = await client.ask("sessions.resolve", label="same", agentId="echo")
        assert found["key"] == "agent:echo:cron:a"


class TestPatching:
    async def test_settings_are_set_and_cleared(self, client: Client) -> None:
        given = {
            "label": "l",
            "displayName": "d",
            "sendPolicy": "deny",
            "model": "test/speaker",
            "thinkingLevel": "high",
            "verboseLevel": "on",
        }
        entry = (await client.ask("sessions.patch", key="cron:a", **given))["entry"]
        assert given.items() <= entry.items()
        cleared = (await client.ask("sessions.patch", key="cron:a", **dict.fromkeys(given)))["entry"]
        assert not (given.keys() - {"model"}) & cleared.keys()
        assert cleared["model"] == "builtin/demo"

    async def test_what_is_no_limit_may_be_changed_by_whoever_may_write(self, world: World) -> None:
        async with world.client(scopes=["operator.write"]) as writer:
            free = {"label": "l", "model": "test/speaker", "thinkingLevel": "high", "pinned": True, "archived": False}
            assert (await writer.ask("sessions.patch", key="cron:a", **free))["entry"]["label"] == "l"
            for given in (
                {"sendPolicy": "allow"},
                {"verboseLevel": None},
                {"displayName": "d"},
                {"elevatedLevel": "on"},
            ):
                error = await writer.refused("sessions.patch", {"key": "cron:a", "label": "other", **given})
                assert error["details"] == {"code": "scope_missing", "scope": "operator.admin"}
                assert next(iter(given)) in error["message"]
            assert (await writer.ask("sessions.describe", key="cron:a"))["session"]["label"] == "l"
            await writer.ask("sessions.patch", key="cron:a", archived=True)
            assert (await writer.ask("sessions.list"))["count"] == 0
        async with world.client(scopes=["operator.read"]) as reader:
            assert (await reader.refused("sessions.patch", {"key": "cron:a"}))["details"]["code"] == "scope_missing"

    async def test_what_other_gateways_have_is_accepted_and_not_shown(self, client: Client) -> None:
        given = {"responseUsage": "full", "traceLevel": "on", "elevatedLevel": "ask", "fastMode": True, "icon": "x"}
        entry = (await client.ask("sessions.patch", key="cron:a", verboseLevel="full", **given))["entry"]
        assert entry["verboseLevel"] == "on" and not given.keys() & entry.keys()

    @pytest.mark.parametrize("name", ["permissionMode", "execSecurity", "toolOverrides", "inheritedToolDeny"])
    async def test_a_limit_that_nothing_would_keep_is_refused(self, client: Client, name: str) -> None:
        error = await client.refused("sessions.patch", {"key": "cron:a", name: "read-only"})
        assert error["details"] == {"code": "bad_params", "param": name}
        await client.ask("sessions.patch", key="cron:a", **{name: None})

    async def test_what_is_not_named_stays(self, client: Client) -> None:
        await client.ask("sessions.patch", key="cron:a", label="l")
        entry = (await client.ask("sessions.patch", key="cron:a", displayName="d"))["entry"]
        assert (entry["label"], entry["displayName"]) == ("l", "d")

    @pytest.mark.parametrize(
        ("given", "code"),
        [
            ({"model": "nothing/at-all"}, "unknown_model"),
            ({"thinkingLevel": "hard"}, "bad_params"),
            ({"expectedSessionId": "other"}, "session_id_replaced"),
            ({"key": "agent:nobody:main"}, "unknown_agent"),
        ],
    )
    async def test_a_bad_change_changes_nothing(self, client: Client, given: dict[str, Any], code: str) -> None:
        before = await client.ask("sessions.list")
        error = await client.refused("sessions.patch", {"key": "cron:a", "label": "l", **given})
        assert error["details"]["code"] == code
        assert (await client.ask("sessions.list"))["sessions"] == before["sessions"]

    async def test_a_label_in_use_names_its_holder(self, client: Client) -> None:
        await client.ask("sessions.patch", key="cron:a", label="l")
        error = await client.refused("sessions.patch", {"key": "cron:b", "label": "l"})
        assert error["details"]["code"] == "label_in_use"
        assert "cron:a" in error["message"]

    async def test_archiving_deletes_and_cannot_be_undone(self, client: Client) -> None:
        await make(client, "cron:a")
        await client.ask("sessions.patch", key="cron:a", archived=True)
        assert (await client.ask("sessions.list"))["count"] == 0
        error = await client.refused("sessions.patch", {"key": "cron:a", "archived": False})
        assert "does not come back" in error["message"]

    async def test_a_main_session_is_not_archived(self, client: Client) -> None:
        error = await client.refused("sessions.patch", {"key": "main", "archived": True})
        assert error["details"]["code"] == "main_session"


class TestEnding:
    async def test_a_reset_keeps_the_key_and_settings_and_starts_anew(self, client: Client) -> None:
        await client.run(message="hi", agentId="echo")
        before = (await client.ask("sessions.patch", key="agent:echo:main", label="l"))["entry"]
        answer = await client.ask("sessions.reset", key="agent:echo:main", reason="new")
        assert answer["ok"] is True and answer["entry"]["label"] == "l"
        assert answer["entry"]["sessionId"] != before["sessionId"]
        assert (await client.ask("chat.history", sessionKey="agent:echo:main"))["messages"] == []

    async def test_a_deleted_session_leaves_the_lists(self, client: Client) -> None:
        await make(client, "cron:a")
        answer = await client.ask("sessions.delete", key="cron:a")
        assert answer["ok"] is True and answer["key"] == "agent:main:cron:a"
        assert (await client.ask("sessions.list"))["count"] == 0
        archived = (await client.ask("sessions.list", archived=True))["sessions"]
        assert [row["key"] for row in archived] == ["agent:main:cron:a"]
        assert archived[0]["archivedAt"] > 0
        await client.refused("sessions.resolve", {"sessionId": answer["backchannel"]["sessionId"]})

    async def test_deleting_a_session_at_work_stops_its_run_first(self, client: Client) -> None:
        run = await client.ask("chat.send", sessionKey="agent:held:cron:a", message="hi")
        await client.ask("sessions.delete", key="agent:held:cron:a")
        assert (await client.ask("agent.wait", runId=run["runId"]))["status"] == "aborted"

    async def test_the_main_session_cannot_be_deleted(self, client: Client) -> None:
        await client.run(message="hi", agentId="echo")
        error = await client.refused("sessions.delete", {"key": "agent:echo:main"})
        assert error["details"]["code"] == "main_session"

    async def test_what_is_not_there_is_made_by_a_reset(self, client: Client) -> None:
        made = await client.ask("sessions.reset", key="agent:echo:project")
        assert (await client.ask("sessions.describe", key="agent:echo:project"))["session"] == made["entry"]
        await client.ask("sessions.delete", key="agent:echo:project")
        again = await client.ask("sessions.reset", key="agent:echo:project")
        assert again["entry"]["sessionId"] != made["entry"]["sessionId"]
        for wrong, code in (("agent:nobody:project", "unknown_agent"), ("a-word", "session_not_found")):
            assert (await client.refused("sessions.reset", {"key": wrong}))["details"]["code"] == code

    async def test_what_is_not_there_is_not_deleted_and_not_described(self, client: Client) -> None:
        never = {"key": "cron:never"}
        assert await client.ask("sessions.delete", **never) == {"ok": True, **never, "deleted": False, "archived": []}
        assert await client.ask("sessions.describe", **never) == {"session": None}


async def test_previews_show_the_end_of_each_session_cut_short(client: Client) -> None:
    await client.run(message="x" * 500, agentId="echo")
    await make(client, "cron:a")
    answer = await client.ask("sessions.preview", keys=["agent:echo:main", "cron:a", "cron:b"], limit=1, maxChars=20)
    first, second, third = answer["previews"]
    assert first["status"] == "ok"
    assert [(item["role"], len(item["text"])) for item in first["items"]] == [("assistant", 20)]
    assert (second["status"], third["status"]) == ("empty", "missing")


async def test_with_the_global_scope_the_session_of_all_direct_chats_is_of_the_kind_global(
    make_world: MakeWorld,
) -> None:
    async with make_world({"session": {"scope": "global"}}) as world, world.client() as client:
        for key in ("agent:echo:main", "agent:echo:other", "agent:echo:desk:group:room"):
            await client.run(message="hi", sessionKey=key)
        rows = (await client.ask("sessions.list"))["sessions"]
        assert {row["key"]: (row["kind"], row["classification"]) for row in rows} == {
            "agent:echo:main": ("global", "main"),
            "agent:echo:other": ("direct", "other"),
            "agent:echo:desk:group:room": ("group", "group"),
        }
        assert violations(Shape("SessionRow", ("*",)), rows) == set()


async def test_with_the_global_scope_clients_are_told_a_main_session_that_they_can_address(
    make_world: MakeWorld,
) -> None:
    async with make_world({"session": {"scope": "global"}}) as world, world.client() as client:
        told = client.hello["snapshot"]["sessionDefaults"]
        assert (told["mainSessionKey"], told["scope"]) == ("agent:main:main", "per-sender")
        assert (await client.ask("agents.list"))["scope"] == "per-sender"
        assert (await client.ask("chat.startup", sessionKey=told["mainSessionKey"]))["messages"] == []


async def test_with_the_global_scope_the_shared_session_shows_as_main(make_world: MakeWorld) -> None:
    async with make_world({"session": {"scope": "global"}}) as world, world.client() as client:
        await client.run(message="hi", agentId="echo")
        run = (await client.ask("runs.list"))["runs"][0]
        row = (await client.ask("sessions.list"))["sessions"][0]
        assert row["key"] == run["sessionKey"] == "agent:echo:main"
        assert (await client.event("chat", state="final"))["sessionKey"] == "agent:echo:main"
        history = await client.ask("chat.history", sessionKey=row["key"])
        assert history["sessionKey"] == "agent:echo:main" and len(history["messages"]) == 2
        await client.refused("chat.history", {"sessionKey": "agent:echo:global"})


async def test_the_rules_of_a_session_are_explained_by_its_id_too(client: Client) -> None:
    made = await client.ask("sessions.create", key="agent:echo:project")
    for target in (made["sessionId"], made["sessionId"].upper()):
        assert (await client.ask("policy.explain", target=target))["target"] == "agent:echo:project"
    unknown = await client.refused("policy.explain", {"target": "00000000-0000-4000-8000-000000000000"})
    assert unknown["details"]["code"] == "session_not_found"


async def test_an_explanation_denies_the_tools_that_a_session_has_not(client: Client) -> None:
    made = (await client.ask("tools.invoke", tool="sessions_spawn", args={"task": "dig", "agentId": "main"}))["result"]
    child = made["childSessionKey"]
    told = await client.ask("policy.explain", caller=child, target=child)
    refused = await client.refused(
        "tools.invoke", {"tool": "sessions_history", "args": {"sessionKey": child}, "sessionKey": child}
    )

    (history,) = [each for each in told["tools"] if each["what"] == "sessions_history"]
    assert not history["allowed"]
    assert history["reason"] in refused["message"], "it says what the refusal says"
    assert "tools.subagents.tools.allow" in history["reason"]
    main = await client.ask("policy.explain", caller="main", target="main")
    assert all(each["allowed"] for each in main["tools"])


async def test_no_deleted_session_of_an_agent_that_is_gone_is_made_anew_by_a_reset(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "state")
    shelf.session("agent:gone:project", "hello")
    async with doors(shelf, {}) as at:
        await at.client.ask("sessions.delete", key="agent:gone:project")
        error = await at.client.refused("sessions.reset", {"key": "agent:gone:project"})
    assert error["details"]["code"] == "unknown_agent"
