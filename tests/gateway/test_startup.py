"""Opening, making, writing to and stopping sessions as OpenClaw's clients do, through a socket."""

from __future__ import annotations

import pytest

from .client import Client
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

ECHO, HELD = "agent:echo:main", "agent:held:main"


async def test_a_session_is_opened_with_its_row_and_the_end_of_its_transcript(client: Client) -> None:
    for text in ("a", "b"):
        await client.run(message=text, agentId="echo")
    opened = await client.ask("chat.startup", sessionKey=ECHO, limit=3, maxBytes=100_000)
    assert [message["content"][0]["text"] for message in opened["messages"]] == ["echo a", "b", "echo b"]
    assert [message["__openclaw"]["seq"] for message in opened["messages"]] == [2, 3, 4]
    assert (opened["totalMessages"], opened["hasMore"], opened["pending"]) == (4, True, [])
    assert opened["defaults"]["model"] == "builtin/demo"
    row = (await client.ask("sessions.describe", key=ECHO))["session"]
    assert opened["sessionInfo"] == row and row["hasActiveRun"] is False
    assert await client.ask("chat.history", sessionKey=ECHO, limit=3) == opened


async def test_a_session_that_is_opened_at_work_names_its_runs_and_tells_of_them(client: Client, world: World) -> None:
    run = await client.ask("chat.send", sessionKey=HELD, message="hi")
    async with world.client() as other:
        opened = await other.ask("chat.startup", sessionKey=HELD)
        assert opened["sessionInfo"]["activeRunIds"] == [run["runId"]]
        assert opened["inFlightRun"] == {"runId": run["runId"], "text": ""}
        world.release.set()
        assert (await other.said(runId=run["runId"]))["state"] == "final"
        assert "inFlightRun" not in await other.ask("chat.history", sessionKey=HELD)


async def test_what_waits_behind_a_run_is_told_to_openclaws_clients_in_their_shape(
    client: Client, world: World
) -> None:
    await client.ask("chat.send", sessionKey=HELD, message="first")
    behind = await client.ask("chat.send", sessionKey=HELD, message="second")
    opened = await client.ask("chat.startup", sessionKey=HELD)
    (waiting,) = opened["pendingInputs"]["items"]
    assert (waiting["runId"], waiting["state"], opened["pendingInputs"]["total"]) == (behind["runId"], "queued", 1)
    assert (waiting["id"], waiting["message"]) == (opened["pending"][0]["id"], opened["pending"][0])
    world.release.set()
    await client.said(runId=behind["runId"])
    assert (await client.ask("chat.history", sessionKey=HELD))["pendingInputs"] == {"items": [], "total": 0}


async def test_a_session_that_is_not_there_is_opened_empty_and_not_made(client: Client) -> None:
    opened = await client.ask("chat.startup", sessionKey="agent:echo:dashboard:new")
    assert (opened["messages"], opened["hasMore"]) == ([], False)
    assert opened.keys().isdisjoint({"sessionId", "sessionInfo", "totalMessages"})
    assert await client.ask("sessions.get", key="agent:echo:dashboard:new") == {"messages": []}
    assert (await client.ask("sessions.list"))["count"] == 0


async def test_a_short_id_opens_the_session_whose_key_ends_with_it(client: Client) -> None:
    key = "agent:echo:9fe58684c0b84fa0800ea3662a8e702a"
    await client.run(message="hi", sessionKey=key)
    opened = await client.ask("chat.startup", shortId="9fe58684c0b8", agentId="echo")
    assert opened["resolution"] == {"ok": True, "key": key, "agentId": "echo"}
    assert (opened["sessionKey"], len(opened["messages"])) == (key, 2)


async def test_a_short_id_of_another_gateway_opens_nothing(client: Client) -> None:
    assert await client.ask("chat.startup", shortId="a1b2c3") == {"resolution": {"ok": False}}
    assert (await client.refused("chat.startup", {}))["details"]["param"] == "sessionKey"


async def test_an_answer_keeps_to_the_bytes_that_were_asked_for(client: Client) -> None:
    for _ in range(3):
        await client.run(message="x" * 1000, agentId="echo")
    opened = await client.ask("chat.startup", sessionKey=ECHO, maxBytes=2500)
    assert len(opened["messages"]) == 1 and opened["hasMore"] is True
    assert (await client.refused("chat.startup", {"sessionKey": ECHO, "maxBytes": "many"}))["details"]["param"] == (
        "maxBytes"
    )


async def test_messages_are_read_by_a_key(client: Client) -> None:
    await client.run(message="hi", agentId="echo")
    history = await client.ask("chat.history", sessionKey=ECHO)
    assert await client.ask("sessions.get", key=ECHO, limit=1) == {"messages": history["messages"][-1:]}


async def test_what_can_be_chosen_is_what_the_lists_have(client: Client) -> None:
    chosen = await client.ask("chat.metadata", agentId="echo", sessionKey=ECHO)
    assert chosen["models"] == (await client.ask("models.list", agentId="echo"))["models"]
    assert chosen["commands"] == (await client.ask("commands.list"))["commands"]


class TestMaking:
    async def test_a_new_session_is_empty_and_has_a_key_of_its_own(self, client: Client) -> None:
        first, second = [await client.ask("sessions.create", agentId="echo", emitCommandHooks=True) for _ in range(2)]
        assert first["key"] != second["key"] and first["key"].startswith("agent:echo:dashboard:")
        assert (first["ok"], first["runStarted"], "runId" in first) == (True, False, False)
        assert first["entry"]["sessionId"] == first["sessionId"] and first["entry"]["key"] == first["key"]
        assert (await client.ask("sessions.list"))["count"] == 2

    async def test_a_word_alone_names_a_session_of_the_agent(self, client: Client) -> None:
        made = [await client.ask("sessions.create", key="tui-1", agentId="echo") for _ in range(2)]
        assert [each["key"] for each in made] == ["agent:echo:tui-1"] * 2
        assert made[0]["sessionId"] == made[1]["sessionId"], "it was there the second time"
        error = await client.refused("sessions.create", {"key": "agent:main:tui-1", "agentId": "echo"})
        assert error["details"]["param"] == "agentId"

    async def test_what_it_is_given_is_in_its_row(self, client: Client) -> None:
        made = await client.ask(
            "sessions.create", key="agent:main:trip", label="Rome", model="builtin/demo", thinkingLevel="low"
        )
        assert made["key"] == "agent:main:trip"
        assert [made["entry"][name] for name in ("label", "model", "thinkingLevel")] == ["Rome", "builtin/demo", "low"]
        for given, param in (({"model": "no/such"}, None), ({"thinkingLevel": "hard"}, "thinkingLevel")):
            error = await client.refused("sessions.create", given)
            assert param is None or error["details"]["param"] == param
        assert (await client.ask("sessions.list"))["count"] == 1, "nothing was made for what was refused"

    async def test_a_request_that_comes_again_makes_no_second_session_and_no_second_run(self, client: Client) -> None:
        asked = {"agentId": "echo", "message": "hi", "idempotencyKey": "once"}
        first = await client.ask("sessions.create", **asked)
        assert (first["runStarted"], first["runId"]) == (True, "once")
        assert (await client.ask("agent.wait", runId="once"))["reply"] == "echo hi"
        again = await client.ask("sessions.create", **asked)
        assert (again["key"], again["runId"]) == (first["key"], "once")
        assert len((await client.ask("sessions.get", key=first["key"]))["messages"]) == 2
        assert (await client.ask("sessions.list"))["count"] == 1

    @pytest.mark.parametrize("message", [{}, {"message": "hi"}, {"message": "/status"}])
    async def test_a_request_that_comes_again_changes_nothing(self, client: Client, message: dict[str, str]) -> None:
        asked = {"agentId": "echo", "label": "first", "idempotencyKey": "once", **message}
        made = await client.ask("sessions.create", **asked)
        if made.get("runId") == "once":
            await client.ask("agent.wait", runId="once")
        await client.ask("sessions.patch", key=made["key"], label="second")
        again = await client.ask("sessions.create", **asked)
        assert (again["key"], again["sessionId"], again.get("runId")) == (
            made["key"],
            made["sessionId"],
            made.get("runId"),
        )
        assert again["entry"]["label"] == "second"
        for other in ({"label": "third"}, {"displayName": "Other"}, {"message": "other"}, {"agentId": "main"}):
            error = await client.refused("sessions.create", {**asked, **other})
            assert error["details"]["code"] == "idempotency_conflict"
        assert (await client.ask("sessions.describe", key=made["key"]))["session"]["label"] == "second"
        await client.ask("sessions.delete", key=made["key"])
        assert (await client.ask("sessions.create", **asked))["sessionId"] == made["sessionId"]
        assert (await client.ask("sessions.list"))["count"] == 0, "it stays deleted"

    @pytest.mark.parametrize("message", [{}, {"message": "hi"}])
    async def test_who_may_not_rename_a_session_does_not_by_making_it_again(
        self, world: World, client: Client, message: dict[str, str]
    ) -> None:
        token = (await client.ask("tokens.create", scopes=["write"]))["token"]
        async with world.client(token) as writer:
            made = await writer.ask("sessions.create", key="agent:echo:new", displayName="Mine", label="a", **message)
            assert made["entry"]["displayName"] == "Mine", "a new one is called as its maker says"
            again = await writer.ask("sessions.create", key="agent:echo:new", displayName="Mine", label="b", **message)
            assert (again["entry"]["label"], again["sessionId"]) == ("b", made["sessionId"])
            runs = await client.ask("runs.list")
            error = await writer.refused(
                "sessions.create", {"key": "agent:echo:new", "displayName": "Evil", "label": "c", **message}
            )
            assert (error["details"]["code"], error["details"]["scope"]) == ("scope_missing", "operator.admin")
            row = (await client.ask("sessions.describe", key="agent:echo:new"))["session"]
            assert (row["displayName"], row["label"]) == ("Mine", "b")
            assert (await client.ask("runs.list"))["count"] == runs["count"]
        renamed = await client.ask("sessions.create", key="agent:echo:new", displayName="Ours")
        assert renamed["entry"]["displayName"] == "Ours", "an administrator may"

    async def test_the_id_of_a_session_is_not_the_key_of_another(self, client: Client) -> None:
        made = await client.ask("sessions.create", key="agent:echo:trip")
        again = await client.ask("sessions.create", key=made["sessionId"], label="Rome")
        assert (again["key"], again["entry"]["label"]) == ("agent:echo:trip", "Rome")
        assert (await client.ask("sessions.list"))["count"] == 1

    async def test_it_is_made_with_its_first_message_or_not_at_all(self, make_world: MakeWorld) -> None:
        rules = [{"match": {"keyPrefix": "agent:echo:closed"}, "action": "deny"}]
        config = {"session": {"sendPolicy": {"rules": rules, "default": "allow"}}}
        async with make_world(config) as world, world.client() as client:
            await client.ask("sessions.create", key="agent:echo:first", label="taken")
            for given, code in (
                ({"key": "agent:echo:second", "label": "taken"}, "label_in_use"),
                ({"key": "agent:echo:closed", "label": "other"}, "policy_denied"),
            ):
                error = await client.refused("sessions.create", {**given, "message": "hi", "idempotencyKey": "k"})
                assert error["details"]["code"] == code
            assert [row["key"] for row in (await client.ask("sessions.list"))["sessions"]] == ["agent:echo:first"]
            assert (await client.ask("runs.list"))["count"] == 0
            made = await client.ask(
                "sessions.create", key="agent:echo:third", label="other", message="hi", idempotencyKey="k"
            )
            assert (made["entry"]["label"], made["runId"]) == ("other", "k"), "the key was not used up"
            assert (await client.ask("agent.wait", runId="k"))["reply"] == "echo hi"

    async def test_a_chat_command_as_the_first_message_is_answered(self, client: Client) -> None:
        made = await client.ask("sessions.create", key="agent:echo:asked", label="asked", message="/status")
        assert made["entry"]["label"] == "asked"
        assert (await client.ask("runs.list"))["count"] == 0

    async def test_an_unknown_agent_and_an_attachment_are_refused(self, client: Client) -> None:
        assert (await client.refused("sessions.create", {"agentId": "nobody"}))["details"]["code"] == "unknown_agent"
        error = await client.refused("sessions.create", {"message": "see", "attachments": [{"content": "x"}]})
        assert error["details"]["param"] == "attachments"
        assert (await client.ask("sessions.list"))["count"] == 0


async def test_a_message_is_sent_by_a_key_once(client: Client) -> None:
    await client.run(message="hi", agentId="echo")
    sent = [await client.ask("sessions.send", key=ECHO, message="more", idempotencyKey="k") for _ in range(2)]
    assert [each["runId"] for each in sent] == ["k", "k"]
    assert (await client.said(runId="k", state="final"))["message"]["content"][0]["text"] == "echo more"
    assert len((await client.ask("sessions.get", key=ECHO))["messages"]) == 4
    error = await client.refused("sessions.send", {"key": "agent:echo:never", "message": "hi"})
    assert error["details"]["code"] == "session_not_found"


async def test_a_run_is_stopped_by_its_session_or_by_its_id(client: Client) -> None:
    first, second = [await client.ask("chat.send", sessionKey=HELD, message=text) for text in "ab"]
    stopped = {"ok": True, "status": "aborted"}
    assert await client.ask("sessions.abort", runId=second["runId"]) == {**stopped, "abortedRunId": second["runId"]}
    assert await client.ask("sessions.abort", key=HELD) == {**stopped, "abortedRunId": first["runId"]}
    for run in (first, second):
        assert (await client.ask("agent.wait", runId=run["runId"]))["status"] == "aborted"
    assert await client.ask("sessions.abort", key=HELD) == {
        "ok": True,
        "abortedRunId": None,
        "status": "no-active-run",
    }
    assert (await client.refused("sessions.abort", {}))["details"]["param"] == "key"
    assert (await client.refused("sessions.abort", {"runId": "no"}))["details"]["code"] == "run_not_found"
