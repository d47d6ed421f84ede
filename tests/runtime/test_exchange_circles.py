"""Circles and chains are refused at once, with the path; a session that waits gives its slot back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, call
from backchannel.core.contracts import ModelRequest
from tests.support.gateways import settled
from tests.support.talks import A, B, C, Talk, config, send, talking

pytestmark = pytest.mark.anyio

ABC = config("a", "b", "c")


async def refused(talk: Talk, key: str) -> str:
    """Read why the send of a session was refused."""
    (result,) = [result for result in await talk.results(key) if result["status"] == "error"]
    assert result.keys() == {"status", "error", "sessionKey"}
    return str(result["error"])


@pytest.mark.parametrize("target", ["current", "main", A])
async def test_a_session_cannot_wait_for_itself(tmp_path: Path, target: str) -> None:
    async with talking(tmp_path, ABC, a={"person": send(target)}) as talk:
        assert await talk.gateway.ask(A, "ask yourself", timeout_s=20) == "I see."
        assert f"{A} → {A}" in await refused(talk, A)
        counts = talk.counts()
        assert (counts["runs"], counts["exchanges"], counts["waits"], counts["deliveries"]) == (1, 0, 0, 0)


@pytest.mark.parametrize("exists", [False, True])
async def test_a_program_cannot_wait_for_the_session_in_whose_name_it_calls(tmp_path: Path, exists: bool) -> None:
    async with talking(tmp_path, ABC, a={"person": "hi", "request": "me"}) as talk:
        if exists:
            await talk.gateway.ask(A, "hello", timeout_s=20)
        before = talk.counts()
        result = await talk.gateway.tools(A).sessions_send(sessionKey="main", message="hello")
        assert result["status"] == "error"
        assert f"{A} → {A}" in result["error"]
        assert talk.counts() == before


async def test_two_sessions_cannot_wait_for_each_other(tmp_path: Path) -> None:
    async with talking(tmp_path, ABC, a={"person": send(B)}, b={"request": send(A), "result": "no way"}) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        assert f"{B} → {A} → {B}" in await refused(talk, B)
        (result,) = await talk.results(A)
        assert (result["status"], result["reply"]) == ("ok", "no way")
        await settled(talk.gateway)
        assert talk.counts()["exchanges"] == 1


async def test_a_circle_of_three_is_refused_with_its_path(tmp_path: Path) -> None:
    b = {"request": send(C), "result": "b knows"}
    async with talking(tmp_path, ABC, a={"person": send(B)}, b=b, c={"request": send(A), "result": "c knows"}) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        assert f"{C} → {A} → {B} → {C}" in await refused(talk, C)
        assert [result["reply"] for result in await talk.results(A)] == ["b knows"]
        await settled(talk.gateway)


async def test_a_circle_through_one_of_two_calls_at_once_is_refused(tmp_path: Path) -> None:
    both = [call("sessions_send", sessionKey=key, message="hello") for key in (B, C)]
    b_has_asked = asyncio.Event()
    b = {"request": Reply(text="b", gate=b_has_asked)}
    async with talking(tmp_path, ABC, a={"person": both}, b=b, c={"request": send(A), "result": "c"}) as talk:
        asking = asyncio.create_task(talk.gateway.ask(A, "ask both", timeout_s=20))
        async with asyncio.timeout(20):
            await talk.players["c"].model.asked(2)
        assert f"{C} → {A} → {C}" in await refused(talk, C)
        b_has_asked.set()
        await asking
        assert sorted(result["reply"] for result in await talk.results(A)) == ["b", "c"]
        await settled(talk.gateway)


async def test_a_send_that_does_not_wait_closes_no_circle(tmp_path: Path) -> None:
    b = {"request": send(A, timeoutSeconds=0), "result": "told you"}
    async with talking(tmp_path, ABC, a={"person": send(B), "request": "heard"}, b=b) as talk:
        await talk.gateway.ask(A, "ask b", timeout_s=20)
        assert [result["status"] for result in await talk.results(B)] == ["accepted"]
        await settled(talk.gateway)
        assert talk.counts()["exchanges"] == 2
        assert not talk.rows("SELECT * FROM waits")


async def test_a_wait_that_has_its_answer_is_no_part_of_a_circle(tmp_path: Path) -> None:
    async with talking(tmp_path, ABC, a={"request": "hm"}, b={"request": "fine"}) as talk:
        answered = await talk.gateway.tools(A).sessions_send(sessionKey=B, message="hello")
        await settled(talk.gateway)
        # As it is after the end of that run, while the one that waited needs a slot to go on.
        wait = "INSERT INTO waits (call_id, waiter_key, target_key, run_id, until_at) VALUES ('x/0/0', ?, ?, ?, ?)"
        talk.execute(wait, A, B, answered["runId"], talk.gateway.clock.now_ms() + 60_000)
        result = await talk.gateway.tools(B).sessions_send(sessionKey=A, message="and you?")
        assert (result["status"], result.get("reply")) == ("ok", "hm")
        await settled(talk.gateway)


# Chains


@pytest.mark.parametrize("hops", [1, 2, 3])
async def test_a_chain_goes_no_further_than_the_hops_it_may_have(tmp_path: Path, hops: int) -> None:
    names = ["a", "b", "c", "d", "e"]
    keys = [f"agent:{name}:main" for name in names]
    settings = config(*names, agentToAgent={"maxHops": hops})
    players: dict[str, Any] = {name: {"request": send(to)} for name, to in zip(names[1:], keys[2:], strict=False)}
    async with talking(tmp_path, settings, a={"person": send(B)}, e={}, **players) as talk:
        await talk.gateway.ask(A, "start", timeout_s=20)
        await settled(talk.gateway)
        error = await refused(talk, keys[hops])
        assert " → ".join(keys[: hops + 2]) in error
        assert f"session.agentToAgent.maxHops is {hops}" in error
        assert talk.counts()["exchanges"] == hops
        assert await talk.gateway.store.session(keys[hops + 1]) is None, "nothing happened: no session was made"


async def test_a_chain_has_only_so_many_runs(tmp_path: Path) -> None:
    settings = config("a", "b", agentToAgent={"maxChainRuns": 6, "maxPingPongTurns": 5})
    a = {"person": send(B), "turn": lambda request: send(B, "again", timeoutSeconds=0), "result": "go on"}
    async with talking(tmp_path, settings, a=a, b={"request": "fine", "turn": "and?"}) as talk:
        await talk.gateway.ask(A, "start", timeout_s=20)
        await settled(talk.gateway)
        errors = [result["error"] for result in await talk.results(A) if result["status"] == "error"]
        assert errors
        assert all("session.agentToAgent.maxChainRuns is 6" in error and f"→ {B}" in error for error in errors)


async def test_runs_of_an_exchange_that_a_program_opened_count_in_its_chain(tmp_path: Path) -> None:
    settings = config("a", "b", "c", agentToAgent={"maxChainRuns": 3})
    a = {"person": "hi", "turn": ["go on", send(C)]}
    async with talking(tmp_path, settings, a=a, b={"request": "fine", "turn": "more"}, c={"request": "c"}) as talk:
        await talk.gateway.ask(A, "hello", timeout_s=20)
        await talk.gateway.tools(A).sessions_send(sessionKey=B, message="hello")
        await settled(talk.gateway)
        third, fifth = [result["error"] for result in await talk.results(A)]
        assert "this chain has had 4 runs" in third
        assert "this chain has had 6 runs" in fifth


async def test_a_persons_message_starts_a_new_chain(tmp_path: Path) -> None:
    settings = config("a", "b", agentToAgent={"maxHops": 1, "maxChainRuns": 3, "maxPingPongTurns": 0})
    async with talking(tmp_path, settings, a={"person": send(B)}, b={"request": "fine"}) as talk:
        for _ in range(4):
            await talk.gateway.ask(A, "ask b", timeout_s=20)
        assert [result["status"] for result in await talk.results(A)] == ["ok"] * 4
        await settled(talk.gateway)


# Slots


async def test_a_session_that_waits_gives_its_slot_to_the_one_it_waits_for(tmp_path: Path) -> None:
    settings = config("a", "b", "c", defaults={"maxConcurrent": 1})
    b = {"request": send(C), "result": "from c"}
    async with talking(tmp_path, settings, a={"person": send(B)}, b=b, c={"request": "deep"}) as talk:
        assert await talk.gateway.ask(A, "ask b", timeout_s=20) == "I see."
        assert [result["reply"] for result in await talk.results(A)] == ["from c"]
        await settled(talk.gateway)
        assert await talk.gateway.ask(A, "again", timeout_s=20) == "I see.", "no slot was lost"
        await settled(talk.gateway)


async def test_a_run_that_returns_from_a_wait_comes_before_queued_ones(tmp_path: Path) -> None:
    order: list[str] = []
    settings = config("a", "b", defaults={"maxConcurrent": 1}, agentToAgent={"maxPingPongTurns": 0})

    def note(name: str, reply: Any) -> Any:
        def answer(request: ModelRequest) -> Any:
            order.append(name)
            return reply

        return answer

    gate = asyncio.Event()
    held = Reply(text="fine", gate=gate)
    a = {"person": note("a asks", send(B)), "result": note("a has it", "I see.")}
    b = {"request": note("b", held), "person": note("queued", "later")}
    async with talking(tmp_path, settings, a=a, b=b) as talk:
        asking = asyncio.create_task(talk.gateway.ask(A, "ask b", timeout_s=20))
        async with asyncio.timeout(20):
            await talk.players["b"].model.asked(1)
        await talk.gateway.submit(B, "work")
        for n in range(5):
            await talk.gateway.submit(f"agent:b:s{n}", "work")
        gate.set()
        await asking
        await settled(talk.gateway)
        assert order == ["a asks", "b", "a has it", *["queued"] * 6]


@pytest.mark.parametrize(("limit", "of_b"), [(1, 1), (3, 2)])  # with more than one, one is kept for a
async def test_calls_at_once_give_one_slot_back_and_not_one_each(tmp_path: Path, limit: int, of_b: int) -> None:
    most, present = 0, 0
    settings = config("a", "b", defaults={"maxConcurrent": limit}, agentToAgent={"maxPingPongTurns": 0})
    keys = [f"agent:b:s{n}" for n in range(4)]

    async def work(request: ModelRequest) -> str:
        nonlocal most, present
        present += 1
        most = max(most, present)
        for _ in range(5):
            await talk.gateway.store.check_writable()
        present -= 1
        return "done"

    both = [call("sessions_send", sessionKey=key, message="work") for key in keys]
    async with talking(tmp_path, settings, a={"person": both}, b={"request": work, "person": "hi"}) as talk:
        for key in keys:
            await talk.gateway.ask(key, "hello", timeout_s=20)
        await talk.gateway.ask(A, "ask all", timeout_s=20)
        assert [result["reply"] for result in await talk.results(A)] == ["done"] * 4
        assert most == of_b
        await settled(talk.gateway)
        most = 0
        await talk.gateway.ask(A, "ask all", timeout_s=20)
        assert most == of_b, "no slot was lost or made"


async def test_a_function_agent_asks_and_gives_its_slot_back(tmp_path: Path) -> None:
    settings = config("a", "b", defaults={"maxConcurrent": 1}, agentToAgent={"maxPingPongTurns": 0})
    answers: list[Any] = []

    async def ask(context: FunctionContext) -> str:
        answers.append(await context.call("sessions_send", sessionKey=B, message="hello"))
        return "asked"

    async with talking(tmp_path, settings, b={"request": "fine"}) as talk:
        talk.gateway.add_agent("a", ask)
        assert await talk.gateway.ask(A, "go", timeout_s=20) == "asked"
        (answer,) = answers
        assert (answer["status"], answer["reply"], answer["sessionKey"]) == ("ok", "fine", B)
        assert talk.exchange()["call_id"].endswith("/f/1")
        assert talk.exchange()["has_reply"] is True
        await settled(talk.gateway)
        assert not talk.rows("SELECT * FROM waits")
