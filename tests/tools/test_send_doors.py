"""`sessions_send` from outside a run: idempotency keys, restarts, and `exchanges.get`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply
from backchannel.core.sessions import Address, write_address
from tests.gateway.client import connected
from tests.support.gateways import dying, ended, settled
from tests.support.talks import A, B, Player, Talk, config, send, talking
from tests.tools.door import Doors, doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

AB = config("a", "b")


def invocation(key: str | None = "k1", message: str = "hello", **args: Any) -> dict[str, Any]:
    named = {} if key is None else {"idempotencyKey": key}
    return {"tool": "sessions_send", "args": {"sessionKey": B, "message": message, **args}, **named}


async def sent(open_doors: Doors, **body: Any) -> dict[str, Any]:
    """Send through the socket, and take the result."""
    answer = await open_doors.client.ask("tools.invoke", **body)
    assert answer["ok"] is True
    result: dict[str, Any] = answer["result"]
    return result


async def test_the_key_is_the_run_and_the_same_key_again_starts_nothing(shelf: Shelf) -> None:
    b = Player("b", request="fine")
    async with doors(shelf, AB, b.model) as open_doors:
        first = await sent(open_doors, **invocation())
        assert (first["runId"], first["status"], first["reply"]) == ("k1", "ok", "fine")
        await settled(open_doors.gateway)
        counts = {table: shelf.count(table) for table in ("runs", "exchanges", "deliveries", "messages")}
        again = await sent(open_doors, **invocation())
        assert again == {**first, "delivery": {**first["delivery"], "status": "no_channel"}}
        by_http = (await open_doors.invoke(**invocation())).json()
        assert by_http == {"ok": True, "result": again}
        waited = await open_doors.client.ask("agent.wait", runId="k1")
        assert (waited["status"], waited["reply"]) == ("ok", "fine")
        assert counts == {table: shelf.count(table) for table in counts}
        assert len(b.requests("request")) == 1


async def test_the_same_key_at_the_same_time_starts_one_run(shelf: Shelf) -> None:
    b = Player("b", request="fine")
    async with doors(shelf, AB, b.model) as open_doors:
        results = await asyncio.gather(*(sent(open_doors, **invocation()) for _ in range(8)))
        assert {(result["runId"], result["status"], result["reply"]) for result in results} == {("k1", "ok", "fine")}
        assert shelf.count("exchanges") == 1


async def test_a_repeated_call_may_wait_longer_for_the_same_run(shelf: Shelf) -> None:
    gate = asyncio.Event()
    b = Player("b", request=Reply(text="fine", gate=gate))
    async with doors(shelf, AB, b.model) as open_doors:
        assert (await sent(open_doors, **invocation(timeoutSeconds=0)))["status"] == "accepted"
        assert (await sent(open_doors, **invocation(timeoutSeconds=0.2)))["status"] == "timeout"
        waiting = asyncio.create_task(sent(open_doors, **invocation(timeoutSeconds=30)))
        gate.set()
        assert (await waiting)["reply"] == "fine"
        assert shelf.count("exchanges") == 1


@pytest.mark.parametrize(
    "other",
    [
        invocation(message="something else"),
        {**invocation(), "sessionKey": A},
        {**invocation(), "args": {"sessionKey": A, "message": "hello"}},
    ],
)
async def test_the_same_key_for_something_else_is_a_conflict_and_tells_nothing(
    shelf: Shelf, other: dict[str, Any]
) -> None:
    async with doors(shelf, AB, Player("a", request="a").model, Player("b", request="secret").model) as open_doors:
        await sent(open_doors, **invocation())
        before = shelf.count("runs")
        error = await open_doors.client.refused("tools.invoke", other)
        assert error["details"]["code"] == "idempotency_conflict"
        assert "secret" not in str(error)
        assert shelf.count("runs") == before


@pytest.mark.parametrize("change", ["sessions.reset", "sessions.delete"])
@pytest.mark.parametrize("by_id", [True, False])
async def test_the_same_key_again_hears_of_the_first_whatever_became_of_the_session(
    shelf: Shelf, change: str, by_id: bool
) -> None:
    key = "agent:b:project"
    async with doors(shelf, AB, Player("b", request="fine").model) as open_doors:
        client = open_doors.client
        made = await client.ask("sessions.create", key=key)
        asked = invocation(sessionKey=made["sessionId"] if by_id else key)
        first = await sent(open_doors, **asked)
        await settled(open_doors.gateway)
        await client.ask(change, key=key)
        again = await sent(open_doors, **asked)
        assert [again[name] for name in ("runId", "status", "reply")] == ["k1", "ok", "fine"]
        assert again["sessionKey"] == first["sessionKey"]
        other = {**asked, "args": {**asked["args"], "message": "something else"}}
        assert (await client.refused("tools.invoke", other))["details"]["code"] == "idempotency_conflict"
        assert shelf.count("exchanges") == 1
        if by_id:
            refused = await sent(open_doors, **{**asked, "idempotencyKey": "k2"})
            assert refused["status"] == "error" and shelf.count("exchanges") == 1


async def test_the_same_key_of_another_token_or_method_is_a_conflict(shelf: Shelf) -> None:
    async with doors(shelf, AB, Player("a").model, Player("b", request="secret").model) as open_doors:
        await sent(open_doors, **invocation())
        made = await open_doors.client.ask("tokens.create", scopes=["write"])
        async with connected(open_doors.at.websocket_url, made["token"]) as other:
            error = await other.refused("tools.invoke", invocation())
            assert error["details"]["code"] == "idempotency_conflict"
        params = {"sessionKey": B, "message": "hello", "idempotencyKey": "k1"}
        error = await open_doors.client.refused("chat.send", params)
        assert error["details"]["code"] == "idempotency_conflict"


async def test_a_key_that_is_the_id_of_any_other_run_is_a_conflict(shelf: Shelf) -> None:
    async with doors(shelf, AB, Player("b", request="fine", person="secret").model) as open_doors:
        first = await open_doors.client.ask("chat.send", sessionKey=B, message="hello")
        error = await open_doors.client.refused("tools.invoke", invocation(first["runId"]))
        assert error["details"]["code"] == "idempotency_conflict"
        inner = await sent(open_doors, **invocation(None))
        error = await open_doors.client.refused("tools.invoke", invocation(inner["runId"]))
        assert error["details"]["code"] == "idempotency_conflict"
        await settled(open_doors.gateway)


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 257])
async def test_a_key_that_cannot_be_one_is_bad_input(shelf: Shelf, key: str) -> None:
    async with doors(shelf, AB, Player("b", request="fine").model) as open_doors:
        error = await open_doors.client.refused("tools.invoke", invocation(key))
        assert "idempotencyKey" in error["message"]
        assert (await open_doors.invoke(**invocation(key))).status_code == 400
        assert shelf.count("runs") == 0


async def test_a_refused_send_does_not_use_its_key_up(shelf: Shelf) -> None:
    async with doors(shelf, AB, Player("b", request="fine").model) as open_doors:
        body = invocation()
        body["args"]["sessionKey"] = "agent:b:nowhere"
        assert (await sent(open_doors, **body))["status"] == "error"
        assert shelf.count("idempotency") == 0
        assert (await sent(open_doors, **invocation()))["status"] == "ok"


async def test_the_same_key_after_a_restart_answers_with_the_first_run(tmp_path: Path) -> None:
    b = Player("b", request=["fine", "fine again"])
    shelf = Shelf(tmp_path / "state")
    async with doors(shelf, AB, b.model) as open_doors:
        first = await sent(open_doors, **invocation())
        await settled(open_doors.gateway)
    async with doors(shelf, AB, b.model) as open_doors:
        again = await sent(open_doors, **invocation())
        assert (again["runId"], again["reply"]) == (first["runId"], "fine")
        assert shelf.count("exchanges") == 1


# In a run


@pytest.mark.parametrize("is_function", [False, True])
async def test_the_same_call_after_a_crash_finds_the_same_exchange(tmp_path: Path, is_function: bool) -> None:
    answers: list[Any] = []

    async def asks(context: FunctionContext) -> str:
        if "reply-back" in context.text:
            return "REPLY_SKIP"
        answers.append(await context.call("sessions_send", sessionKey=B, message="hello"))
        return "asked"

    def equip(gateway: Any) -> None:
        if is_function:
            gateway.add_agent("a", asks)

    held = Reply(text="never", gate=asyncio.Event(), reached=asyncio.Event())
    a, b = Player("a", person=send(), result="asked"), Player("b", request=[held, "fine"])
    async with dying(tmp_path, a.model, b.model, config=AB, equip=equip) as gateway:
        run = await gateway.submit(A, "ask b")
        async with asyncio.timeout(20):
            assert held.reached is not None
            await held.reached.wait()
        before = Talk(gateway, {}, tmp_path / "backchannel.db").exchange()
    async with talking(tmp_path, AB, a=a, b=b) as talk:
        equip(talk.gateway)
        assert (await ended(talk.gateway, run.id, 20)).reply == "asked"
        await settled(talk.gateway)
        after = talk.exchange()
        assert (after["id"], after["primary_run"]) == (before["id"], before["primary_run"])
        if is_function:
            assert [answer["reply"] for answer in answers] == ["fine"]
        else:
            assert [result["reply"] for result in await talk.results()] == ["fine"]
        assert [kind for _, kind, _ in talk.runs()] == ["message", "primary", "turn"]


async def test_a_wait_goes_on_over_a_clean_restart(tmp_path: Path) -> None:
    gate = asyncio.Event()
    held = Reply(text="never", gate=gate, reached=asyncio.Event())
    a, b = Player("a", person=send()), Player("b", request=[held, "fine"])
    async with talking(tmp_path, AB, a=a, b=b) as talk:
        run = await talk.gateway.submit(A, "ask b")
        async with asyncio.timeout(20):
            assert held.reached is not None
            await held.reached.wait()
    async with talking(tmp_path, AB, a=a, b=b) as talk:
        assert (await ended(talk.gateway, run.id, 20)).reply == "I see."
        assert [(result["status"], result["reply"]) for result in await talk.results()] == [("ok", "fine")]
        await settled(talk.gateway)


# exchanges.get


async def test_an_exchange_is_shown_by_its_id_and_by_each_of_its_runs(shelf: Shelf) -> None:
    shelf.session(B, "hello", delivery_context=write_address(Address(channel="webchat")))
    a = Player("a", person=send(message="how are you?"), turn="and you?")
    b = Player("b", request="fine", turn="REPLY_SKIP", announce="we talked")
    async with doors(shelf, AB, a.model, b.model) as open_doors:
        client = open_doors.client
        await client.run(sessionKey=A, message="ask b")
        await settled(open_doors.gateway)
        (run,) = [run for run in (await client.ask("runs.list"))["runs"] if run["kind"] == "primary"]
        shown = (await client.ask("exchanges.get", runId=run["runId"]))["exchange"]
        assert shown["requester"] == {"sessionKey": A, "channel": "unknown"}
        assert shown["target"] == {"sessionKey": B, "channel": "webchat"}
        assert (shown["state"], shown["turn"], shown["maxTurns"], shown["waiting"]) == ("done", 2, 5, False)
        assert (shown["message"], shown["reply"], shown["latestReply"]) == ("how are you?", "fine", "and you?")
        assert (shown["outcome"], shown["path"]) == ("announced", [A, B])
        assert [run["kind"] for run in shown["runs"]] == ["primary", "turn", "turn", "announce"]
        assert (shown["receipt"]["state"], shown["receipt"]["text"]) == ("sent", "we talked")
        assert shown["receipt"]["exchangeId"] == shown["id"]
        for run in shown["runs"]:
            assert (await client.ask("exchanges.get", runId=run["runId"]))["exchange"] == shown
        assert (await client.ask("exchanges.get", id=shown["id"]))["exchange"] == shown


async def test_what_is_no_exchange_is_not_found_or_bad_input(shelf: Shelf) -> None:
    async with doors(shelf, AB, Player("b", person="hi").model) as open_doors:
        client = open_doors.client
        plain = await client.ask("chat.send", sessionKey=B, message="hello")
        for params in ({"id": "x"}, {"runId": "x"}, {"runId": plain["runId"]}):
            error = await client.refused("exchanges.get", params)
            assert (error["code"], error["details"]["code"]) == ("NOT_FOUND", "exchange_not_found")
        for bad in ({}, {"id": "x", "runId": "y"}, {"id": ""}, {"id": 7}):
            assert (await client.refused("exchanges.get", bad))["code"] == "INVALID_REQUEST"
        made = await client.ask("tokens.create", sessionKey=B)
        async with connected(open_doors.at.websocket_url, made["token"]) as agent:
            assert (await agent.refused("exchanges.get", {"id": "x"}))["code"] == "FORBIDDEN"
