"""`agent`, `agent.wait` and `runs.*`, through a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import UNSET

from backchannel.core.runs import Run, RunState
from backchannel.gateway.methods.runs import ended as show_end

from .client import Client
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio


async def test_agent_answers_twice_with_one_id(client: Client) -> None:
    queue = await client.begin("agent", {"message": "hi", "agentId": "echo"})
    accepted = await client.take(queue)
    assert accepted["status"] == "accepted"
    assert set(accepted) == {"runId", "status", "acceptedAt"}
    ended = await client.take(queue)
    assert ended["runId"] == accepted["runId"]
    assert ended["status"] == "ok"
    assert ended["summary"] == "completed"
    assert ended["result"]["payloads"] == [{"text": "echo hi", "mediaUrl": None}]
    assert set(ended["result"]["meta"]) == {"durationMs", "usage", "model"}


async def test_a_failed_run_says_why(client: Client) -> None:
    ended = await client.run(message="hi", agentId="broken")
    assert ended["status"] == "error"
    assert "this agent is broken" in ended["error"]
    assert ended["result"]["payloads"] == []


async def test_without_a_session_the_agents_main_one_is_meant(client: Client) -> None:
    await client.run(message="hi")
    await client.run(message="hi", agentId="Echo")
    keys = {row["key"] for row in (await client.ask("sessions.list"))["sessions"]}
    assert keys == {"agent:main:main", "agent:echo:main"}


async def test_a_bare_key_belongs_to_the_agent_named(client: Client) -> None:
    await client.run(message="hi", agentId="echo", sessionKey="cron:nightly")
    await client.ask("sessions.describe", key="agent:echo:cron:nightly")


async def test_an_agent_and_a_session_that_disagree_are_an_error(client: Client) -> None:
    error = await client.refused("agent", {"message": "hi", "agentId": "echo", "sessionKey": "agent:main:main"})
    assert error["details"]["param"] == "agentId"
    assert (await client.ask("runs.list"))["count"] == 0


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"agentId": "nobody"}, "unknown_agent"),
        ({"sessionKey": "agent:nobody:main"}, "unknown_agent"),
        ({"model": "nothing/at-all"}, "unknown_model"),
        ({"model": "no-slash"}, "unknown_model"),
        ({"thinking": "hard"}, "bad_params"),
        ({"sessionKey": "agent::main"}, "invalid_session_key"),
        ({"sessionKey": "global"}, "invalid_session_key"),
        ({"sessionKey": "current"}, "invalid_session_key"),
        ({"sessionKey": "x" * 600}, "invalid_session_key"),
        ({"sessionKey": "00000000-0000-4000-8000-000000000000"}, "session_not_found"),
        ({"deliver": True, "channel": "pigeon", "to": "x"}, "unknown_channel"),
        ({"deliver": True, "to": "x"}, "bad_params"),
        ({"sessionId": " "}, "invalid_session_key"),
        ({"sessionId": "x" * 600}, "invalid_session_key"),
        ({"sessionId": "nobody-has-it", "agentId": "nobody"}, "unknown_agent"),
        ({"timeout": 0}, "bad_params"),
    ],
)
async def test_what_cannot_be_done_is_refused_before_anything_is_accepted(
    client: Client, params: dict[str, Any], code: str
) -> None:
    error = await client.refused("agent", {"message": "hi", **params})
    assert error["details"]["code"] == code
    assert (await client.ask("runs.list"))["count"] == 0
    assert (await client.ask("sessions.list"))["count"] == 0


async def test_a_configured_channel_can_be_named(make_world: MakeWorld) -> None:
    channel = {"adapter": "bridge", "url": "http://localhost:1/", "secret": "0123456789abcdef"}
    async with make_world({"channels": {"pigeon": channel}}) as world, world.client() as client:
        error = await client.refused("agent", {"message": "hi", "deliver": True, "channel": "pigeon"})
        assert error["details"]["param"] == "to"
        ended = await client.run(message="hi", agentId="echo", channel="pigeon", to="loft")
        assert ended["status"] == "ok"


async def test_a_place_without_a_channel_is_no_matter_where_no_reply_goes_out(client: Client) -> None:
    ended = await client.run(message="hi", sessionKey="agent:echo:main", to="+15550100", deliver=False)
    assert ended["status"] == "ok"
    assert (await client.ask("deliveries.list"))["count"] == 0


class TestBySessionId:
    ID = "3f2b8a52-0000-4000-8000-00000000000a"

    async def test_an_id_that_no_session_has_starts_one_and_names_it_from_then_on(self, client: Client) -> None:
        for _ in range(2):
            await client.run(message="hi", agentId="echo", sessionId=self.ID)
        (row,) = (await client.ask("sessions.list"))["sessions"]
        assert row["key"] == f"agent:echo:explicit:{self.ID}"
        assert (await client.ask("runs.list", sessionKey=row["key"]))["count"] == 2

    async def test_the_id_of_a_transcript_means_its_session(self, client: Client) -> None:
        await client.run(message="hi", agentId="echo")
        (row,) = (await client.ask("sessions.list"))["sessions"]
        await client.run(message="again", sessionId=row["sessionId"].upper())
        assert (await client.ask("runs.list", sessionKey="agent:echo:main"))["count"] == 2

    async def test_an_id_that_a_reset_replaced_is_refused_with_the_key(self, client: Client) -> None:
        await client.run(message="hi", agentId="echo")
        (row,) = (await client.ask("sessions.list"))["sessions"]
        await client.ask("sessions.reset", key=row["key"])
        for params in ({}, {"sessionKey": row["key"]}):
            error = await client.refused("agent", {"message": "hi", "sessionId": row["sessionId"], **params})
            assert row["key"] in error["message"]
        assert (await client.ask("runs.list"))["count"] == 1

    async def test_a_message_for_a_transcript_that_is_there_goes_to_no_other(self, client: Client) -> None:
        expected: dict[str, Any] = {"sessionKey": "agent:echo:main", "expectedExistingSessionId": self.ID}
        assert (await client.refused("agent", {"message": "hi", **expected}))["details"][
            "code"
        ] == "session_id_replaced"
        assert (await client.ask("sessions.list"))["count"] == 0, "nor is one made"
        await client.run(message="hi", agentId="echo")
        (row,) = (await client.ask("sessions.list"))["sessions"]
        await client.run(message="again", **{**expected, "expectedExistingSessionId": row["sessionId"]})
        for wrong in ({"sessionKey": None}, {"sessionId": row["sessionId"]}):
            error = await client.refused("agent", {"message": "hi", **expected, **wrong})
            assert error["details"]["param"] == "expectedExistingSessionId"
        assert (await client.ask("runs.list"))["count"] == 2

    async def test_an_id_of_another_agents_session_is_refused(self, client: Client) -> None:
        await client.run(message="hi", agentId="echo")
        (row,) = (await client.ask("sessions.list"))["sessions"]
        error = await client.refused("agent", {"message": "hi", "agentId": "main", "sessionId": row["sessionId"]})
        assert error["details"]["param"] == "agentId"


class TestIdempotency:
    async def test_the_key_is_the_run_id_and_a_repeat_answers_with_the_first_run(self, client: Client) -> None:
        first = await client.run(message="hi", agentId="echo", idempotencyKey="k1")
        again = await client.run(message="hi", agentId="echo", idempotencyKey="k1")
        assert first == again
        assert first["runId"] == "k1"
        assert (await client.ask("runs.list"))["count"] == 1

    async def test_a_repeat_of_a_running_run_waits_for_the_same_end(self, client: Client, world: World) -> None:
        asked = {"message": "hi", "agentId": "held", "idempotencyKey": "k1"}
        queues = [await client.begin("agent", asked) for _ in range(2)]
        accepted = [await client.take(queue) for queue in queues]
        assert accepted[0] == accepted[1]
        world.release.set()
        ended = [await client.take(queue) for queue in queues]
        assert ended[0] == ended[1]

    async def test_the_same_session_written_otherwise_is_the_same(self, client: Client) -> None:
        await client.run(message="hi", agentId="echo", idempotencyKey="k1")
        await client.run(message="hi", sessionKey="agent:echo:main", idempotencyKey="k1")
        assert (await client.ask("runs.list"))["count"] == 1

    @pytest.mark.parametrize(
        "other",
        [{"message": "other"}, {"agentId": "main"}, {"thinking": "low"}, {"deliver": True}, {"timeout": 5}],
    )
    async def test_another_request_under_the_key_is_a_conflict(self, client: Client, other: dict[str, Any]) -> None:
        asked = {"message": "hi", "agentId": "echo", "idempotencyKey": "k1"}
        await client.run(**asked)
        error = await client.refused("agent", {**asked, **other})
        assert error["details"]["code"] == "idempotency_conflict"
        assert "echo" not in error["message"]

    async def test_another_method_under_the_key_is_a_conflict(self, client: Client) -> None:
        await client.run(message="hi", agentId="echo", idempotencyKey="k1")
        asked = {"message": "hi", "sessionKey": "agent:echo:main", "idempotencyKey": "k1"}
        assert (await client.refused("chat.send", asked))["details"]["code"] == "idempotency_conflict"

    async def test_another_token_under_the_key_is_a_conflict(self, client: Client, world: World) -> None:
        asked = {"message": "hi", "agentId": "echo", "idempotencyKey": "k1"}
        await client.run(**asked)
        made = await client.ask("tokens.create", scopes=["write"])
        async with world.client(made["token"]) as other:
            error = await other.refused("agent", asked)
        assert error["details"]["code"] == "idempotency_conflict"

    async def test_the_id_of_another_run_is_no_free_key(self, client: Client) -> None:
        ended = await client.run(message="hi", agentId="echo")
        asked = {"message": "hi", "agentId": "echo", "idempotencyKey": ended["runId"]}
        assert (await client.refused("agent", asked))["details"]["code"] == "idempotency_conflict"


class TestWaiting:
    async def test_a_run_that_ended_long_ago_is_told_at_once(self, client: Client) -> None:
        ended = await client.run(message="hi", agentId="echo")
        waited = await client.ask("agent.wait", runId=ended["runId"])
        assert waited["status"] == "ok"
        assert waited["reply"] == "echo hi"
        assert waited["startedAt"] <= waited["endedAt"]
        assert "running" not in waited and "queued" not in waited and "error" not in waited

    async def test_zero_only_looks_and_says_running_or_queued(self, client: Client, world: World) -> None:
        first = await client.ask("chat.send", sessionKey="agent:held:main", message="a")
        second = await client.ask("chat.send", sessionKey="agent:held:main", message="b")
        assert (first["status"], second["status"]) == ("started", "queued")
        running = await client.ask("agent.wait", runId=first["runId"], timeoutMs=0)
        queued = await client.ask("agent.wait", runId=second["runId"], timeoutMs=0)
        assert running["status"] == queued["status"] == "timeout"
        assert running["running"] is True and "queued" not in running and "endedAt" not in running
        assert queued["queued"] is True and "running" not in queued and "endedAt" not in queued
        world.release.set()
        waited = await client.ask("agent.wait", runId=second["runId"])
        assert waited["reply"] == "released b"

    async def test_a_wait_that_ends_first_leaves_the_run_alone(self, client: Client, world: World) -> None:
        run = await client.ask("chat.send", sessionKey="agent:held:main", message="a")
        assert (await client.ask("agent.wait", runId=run["runId"], timeoutMs=10))["running"] is True
        world.release.set()
        assert (await client.ask("agent.wait", runId=run["runId"]))["status"] == "ok"

    async def test_whoever_is_told_that_a_run_goes_on_hears_how_it_ends(self, client: Client, world: World) -> None:
        run = await client.ask("chat.send", sessionKey="agent:held:main", message="a")
        async with world.client() as back:  # as one that lost its connection
            assert (await back.ask("agent.wait", runId=run["runId"], timeoutMs=0))["running"] is True
            world.release.set()
            final = await back.event("chat", runId=run["runId"], state="final")
            assert final["message"]["content"] == [{"type": "text", "text": "released a"}]
            waited = await back.ask("agent.wait", runId=run["runId"], timeoutMs=0)
            assert waited["terminalReply"] == {"disposition": "visible", "text": "released a"}

    async def test_whoever_was_away_when_a_run_was_stopped_is_sent_its_end(self, client: Client, world: World) -> None:
        run = await client.ask("chat.send", sessionKey="agent:held:main", message="a")
        await client.ask("chat.abort", sessionKey="agent:held:main")
        await client.event("chat", runId=run["runId"], state="aborted")
        async with world.client() as back:
            assert (await back.ask("agent.wait", runId=run["runId"]))["status"] == "aborted"
            assert back.seen("chat") == []
            assert (await back.ask("agent.wait", runId=run["runId"], timeoutMs=0))["status"] == "aborted"
            ended = await back.event("chat", runId=run["runId"], state="aborted")
            assert (ended["sessionKey"], len(back.seen("chat"))) == ("agent:held:main", 1)

    async def test_an_agents_token_hears_nothing_of_runs_but_what_it_waits_for(
        self, client: Client, world: World
    ) -> None:
        made = await client.ask("tokens.create", sessionKey="agent:held:main")
        run = await client.ask("chat.send", sessionKey="agent:held:main", message="a")
        async with world.client(made["token"]) as agent:
            assert (await agent.ask("agent.wait", runId=run["runId"], timeoutMs=0))["running"] is True
            world.release.set()
            assert (await agent.ask("agent.wait", runId=run["runId"]))["status"] == "ok"
            assert [*agent.seen("chat"), *agent.seen("agent")] == []

    async def test_a_failed_run_has_its_error(self, client: Client) -> None:
        ended = await client.run(message="hi", agentId="broken")
        waited = await client.ask("agent.wait", runId=ended["runId"])
        assert waited["status"] == "error" and "broken" in waited["error"]

    async def test_an_unknown_run_is_not_found(self, client: Client) -> None:
        error = await client.refused("agent.wait", {"runId": "nothing"})
        assert (error["code"], error["details"]["code"]) == ("NOT_FOUND", "run_not_found")

    async def test_a_run_goes_on_when_its_client_is_gone(self, client: Client, world: World) -> None:
        async with world.client() as gone:
            run = await gone.take(await gone.begin("agent", {"message": "hi", "agentId": "held"}))
        world.release.set()
        assert (await client.ask("agent.wait", runId=run["runId"]))["reply"] == "released hi"


@pytest.mark.parametrize(("reply", "texts"), [("half of", ["half of", "its time was over"]), ("", []), (None, [])])
def test_below_a_part_of_a_reply_stands_why_there_is_no_more(reply: str | None, texts: list[str]) -> None:
    values: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
    run = Run(**values | {"id": "r1", "state": RunState.TIMEOUT, "error": "its time was over", "reply": reply})
    payloads = show_end(run).result.payloads
    assert [payload.text for payload in payloads] == texts
    assert [payload.is_error for payload in payloads] == [UNSET, True][: len(texts)]


class TestLooking:
    async def test_a_run_shows_what_is_known_of_it(self, client: Client) -> None:
        ended = await client.run(message="hi", agentId="echo")
        run = (await client.ask("runs.get", runId=ended["runId"]))["run"]
        assert run["sessionKey"] == "agent:echo:main"
        assert run["status"] == "ok" and run["reply"] == "echo hi" and run["kind"] == "message"
        assert None not in run.values()

    async def test_an_unknown_run_is_not_found(self, client: Client) -> None:
        for method in ("runs.get", "runs.retry"):
            assert (await client.refused(method, {"runId": "x"}))["details"]["code"] == "run_not_found"

    async def test_paging_reaches_every_run_once_newest_first(self, client: Client) -> None:
        made = [(await client.run(message=str(n), agentId="echo"))["runId"] for n in range(5)]
        seen: list[str] = []
        page: dict[str, Any] = {"nextCursor": None}
        while "nextCursor" in page:
            page = await client.ask("runs.list", limit=2, cursor=page["nextCursor"])
            seen += [run["runId"] for run in page["runs"]]
        assert seen == made[::-1]

    async def test_a_list_can_be_of_one_session_and_some_states(self, client: Client) -> None:
        await client.run(message="a", agentId="echo")
        await client.run(message="b", agentId="broken")
        assert (await client.ask("runs.list", sessionKey="agent:echo:main"))["count"] == 1
        failed = await client.ask("runs.list", states=["error"])
        assert [run["sessionKey"] for run in failed["runs"]] == ["agent:broken:main"]

    async def test_a_failed_run_can_be_retried(self, client: Client) -> None:
        ended = await client.run(message="hi", agentId="broken")
        again = (await client.ask("runs.retry", runId=ended["runId"]))["run"]
        assert again["status"] == "queued"
        assert (await client.ask("agent.wait", runId=ended["runId"]))["status"] == "error"


async def test_many_runs_at_once_are_all_answered(client: Client) -> None:
    params = [{"message": str(n), "sessionKey": f"agent:echo:lane{n % 8}"} for n in range(64)]
    ended = await asyncio.gather(*(client.run(**given) for given in params))
    assert [answer["result"]["payloads"][0]["text"] for answer in ended] == [f"echo {n}" for n in range(64)]


async def test_a_function_that_is_here_or_never_was_cannot_be_forgotten(client: Client) -> None:
    here = await client.refused("agents.forget", {"agentId": "echo"})
    assert "it is a function of this program" in here["message"]
    never = await client.refused("agents.forget", {"agentId": "speaker"})
    assert "it never was one" in never["message"]
    assert (await client.refused("agents.forget", {"agentId": "nobody"}))["details"]["code"] == "unknown_agent"
