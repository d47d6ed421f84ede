"""A process dies around the end of a wait: what the call answers, and what is said afterwards, always agree."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, ScriptedModel, call
from backchannel.core.contracts import ModelFailed
from backchannel.core.flows.exchange_values import read_exchange
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role
from backchannel.errors import FenceLost, StopRequested, Unavailable
from backchannel.gateway.app import Gateway
from backchannel.storage.driver import ProcessKilled
from backchannel.tools.base import Caller
from backchannel.tools.registry import invoke
from tests.support.clocks import StageClock
from tests.support.gateways import Equip, Heard, dying, ended, running, settled, stored, transcript_of
from tests.support.talks import A, B, Player, config, send
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

AB = config("a", "b")
EXPIRED = "SELECT 1 FROM exchanges WHERE NOT EXISTS (SELECT 1 FROM waits)"
HANDED_OVER = "SELECT 1 FROM exchanges WHERE state = 'handover'"
SENT = "SELECT 1 FROM exchanges"


class DeadOnce:
    """Kills the process after the first commit that makes something so."""

    def __init__(self, database: Path, sql: str) -> None:
        self._database = database
        self._sql = sql

    def before_commit(self, number: int) -> None: ...

    def after_commit(self, number: int) -> None:
        with closing(sqlite3.connect(self._database)) as connection:
            if connection.execute(self._sql).fetchone():
                raise ProcessKilled


def agents(a: dict[str, Any], b: dict[str, Any]) -> tuple[ScriptedModel, ScriptedModel]:
    return Player("a", **a).model, Player("b", **b).model


async def live_until(
    state: Path, sql: str, a: dict[str, Any], b: dict[str, Any], settings: dict[str, Any] | None = None
) -> None:
    """Ask, and let the process die right after the commit that makes something so."""
    faults = DeadOnce(state / "backchannel.db", sql)
    with suppress(asyncio.CancelledError):
        async with running(state, *agents(a, b), config=settings or AB, faults=faults) as gateway:
            with suppress(Unavailable):
                await gateway.submit(A, "ask b", run_id="asking")
            assert gateway.failed is not None
            async with asyncio.timeout(20):
                await gateway.failed


async def let_only_b_work(state: Path, b: dict[str, Any]) -> None:
    """Let the target's agent come back alone, and end what it has to do."""
    alone = config("b")
    async with running(state, Player("b", **b).model, config=alone) as gateway:
        for run in await gateway.store.runs(session_key=B, limit=10):
            await ended(gateway, run.id)


@asynccontextmanager
async def at_last(
    state: Path, a: dict[str, Any], b: dict[str, Any], settings: dict[str, Any] | None = None
) -> AsyncIterator[Gateway]:
    """Let everything go on to its end."""
    async with running(state, *agents(a, b), config=settings or AB) as gateway:
        await ended(gateway, "asking")
        await settled(gateway)
        yield gateway
        with closing(sqlite3.connect(state / "backchannel.db")) as database:
            assert database.execute("SELECT state FROM exchanges").fetchall() == [("done",)]
            assert not database.execute("SELECT 1 FROM waits").fetchall()


async def result_of(gateway: Gateway) -> Message:
    (result,) = [message for message in await transcript_of(gateway, A) if message.role is Role.TOOL_RESULT]
    return result


async def told_to_a(gateway: Gateway) -> list[str]:
    """Read what the requester was told after its own question."""
    messages = [message for message in await transcript_of(gateway, A) if message.role is Role.USER]
    return [message.text for message in messages[1:]]


ASKS = {"person": send(timeoutSeconds=0.1)}
WAITS = {"person": send(timeoutSeconds=30)}
REPLIES = {"request": "fine"}
FAILS = {"request": ModelFailed("on fire", retryable=False)}


def holds() -> dict[str, Any]:
    return {"request": Reply(text="never", gate=asyncio.Event())}


@pytest.mark.parametrize("returns", ["alone", "with the other"])
async def test_a_wait_that_expired_before_the_crash_stays_expired(tmp_path: Path, returns: str) -> None:
    await live_until(tmp_path, EXPIRED, ASKS, holds())
    if returns == "alone":
        await let_only_b_work(tmp_path, REPLIES)
    async with at_last(tmp_path, {}, REPLIES) as gateway:
        result = (await result_of(gateway)).text
        assert '"status":"timeout"' in result and "do not send" in result
        (turn,) = await told_to_a(gateway)
        assert "this is the reply you were no longer waiting for" in turn and "\nfine\n" in turn


async def test_a_failure_after_a_wait_that_expired_is_told_once_and_as_a_note(tmp_path: Path) -> None:
    await live_until(tmp_path, EXPIRED, ASKS, holds())
    await let_only_b_work(tmp_path, FAILS)
    async with at_last(tmp_path, {}, REPLIES) as gateway:
        assert '"status":"timeout"' in (await result_of(gateway)).text
        (note,) = await told_to_a(gateway)
        assert note.startswith("[No reply from") and "on fire" in note


async def test_a_reply_that_was_answered_and_not_written_is_answered_again(tmp_path: Path) -> None:
    await live_until(tmp_path, HANDED_OVER, WAITS, REPLIES)
    async with at_last(tmp_path, {}, REPLIES) as gateway:
        result = (await result_of(gateway)).text
        assert '"status":"ok"' in result and '"reply":"fine"' in result
        (turn,) = await told_to_a(gateway)
        assert "you already have this reply as its result" in turn


async def test_a_failure_that_was_answered_and_not_written_is_answered_again(tmp_path: Path) -> None:
    await live_until(tmp_path, HANDED_OVER, WAITS, FAILS)
    async with at_last(tmp_path, {}, REPLIES) as gateway:
        result = (await result_of(gateway)).text
        assert '"status":"error"' in result and "on fire" in result
        assert await told_to_a(gateway) == []


@pytest.mark.parametrize("outcome", ["reply", "failure"])
async def test_an_abort_before_the_result_is_written_leaves_the_outcome_to_a_message(
    tmp_path: Path, outcome: str
) -> None:
    await live_until(tmp_path, HANDED_OVER, WAITS, REPLIES if outcome == "reply" else FAILS)
    async with running(tmp_path, Player("b").model, config=config("b")) as gateway:
        await gateway.runtime.abort(A, "asking")
    async with at_last(tmp_path, {}, REPLIES) as gateway:
        result = await result_of(gateway)
        ended_as = "ok" if outcome == "reply" else "error"
        assert (
            result.is_error and f"it has ended as {ended_as}" in result.text and "do not send it again" in result.text
        )
        (told,) = await told_to_a(gateway)
        if outcome == "reply":
            assert "no longer waiting for" in told and "\nfine\n" in told
        else:
            assert told.startswith("[No reply from") and "on fire" in told


async def test_a_tool_that_is_gone_after_the_crash_does_not_take_the_reply_with_it(tmp_path: Path) -> None:
    await live_until(tmp_path, HANDED_OVER, WAITS, REPLIES)
    settings = config("a", "b")
    settings["tools"]["deny"] = ["sessions_send"]
    async with at_last(tmp_path, {}, REPLIES, settings) as gateway:
        result = await result_of(gateway)
        assert result.is_error and "sessions_send is not among your tools: tools.deny" in result.text
        (turn,) = await told_to_a(gateway)
        assert "this is the reply you were no longer waiting for" in turn and "\nfine\n" in turn


async def test_a_target_that_is_out_of_sight_after_the_crash_has_been_sent_to_all_the_same(tmp_path: Path) -> None:
    await live_until(tmp_path, SENT, WAITS, REPLIES)
    settings = config("a", "b")
    settings["tools"]["sessions"]["visibility"] = "self"
    async with at_last(tmp_path, {}, REPLIES, settings) as gateway:
        assert '"status":"ok"' in (await result_of(gateway)).text


async def test_a_label_that_names_another_session_after_the_crash_changes_nothing(tmp_path: Path) -> None:
    shelf, other = Shelf(tmp_path / "state"), "agent:b:other"
    shelf.session("agent:b:first", "hello", label="desk")
    shelf.session(other, "hello")
    ask = [call("sessions_send", label="desk", message="how are you?", timeoutSeconds=30)]
    await live_until(shelf.state, SENT, {"person": ask}, REPLIES)
    shelf.execute("UPDATE sessions SET label = NULL WHERE key = 'agent:b:first'")
    shelf.execute("UPDATE sessions SET label = 'desk' WHERE key = ?", other)
    async with at_last(shelf.state, {}, REPLIES) as gateway:
        result = (await result_of(gateway)).text
        assert '"status":"ok"' in result and '"sessionKey":"agent:b:first"' in result


class Watching:
    """Looks after every commit whether the rows of waits are those of the calls that wait."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self.seen: set[tuple[bool, bool]] = set()

    def before_commit(self, number: int) -> None: ...

    def after_commit(self, number: int) -> None:
        with closing(sqlite3.connect(self._database)) as connection:
            rows = connection.execute(
                "SELECT x.body, w.call_id IS NOT NULL FROM exchanges x LEFT JOIN waits w ON w.call_id = x.call_id"
            ).fetchall()
        self.seen |= {(read_exchange(body).is_waiting, bool(has_row)) for body, has_row in rows}


@pytest.mark.parametrize("b", [REPLIES, FAILS], ids=["replies", "fails"])
@pytest.mark.parametrize("timeout_s", [0, 0.05, 30])
async def test_a_call_waits_as_long_as_its_row_is_there(tmp_path: Path, timeout_s: float, b: dict[str, Any]) -> None:
    watching = Watching(tmp_path / "backchannel.db")
    a = {"person": send(timeoutSeconds=timeout_s)}
    async with running(tmp_path, *agents(a, b), config=AB, faults=watching) as gateway:
        await gateway.ask(A, "ask b", timeout_s=20)
        await settled(gateway)
    assert watching.seen <= {(True, True), (False, False)}
    assert ((True, True) in watching.seen) is (timeout_s > 0)


async def test_a_clock_that_was_set_back_while_no_gateway_ran_makes_no_wait_longer(tmp_path: Path) -> None:
    a, held = {"person": send(timeoutSeconds=0.5)}, {"request": Reply(text="late", gate=asyncio.Event())}
    await live_until(tmp_path, SENT, a, held)
    clock = StageClock()
    clock.move_on(-3600)
    async with running(tmp_path, *agents(a, held), config=AB, clock=clock) as gateway:
        await ended(gateway, "asking", 10)
        (result,) = [message for message in await transcript_of(gateway, A) if message.role is Role.TOOL_RESULT]
        assert '"status":"timeout"' in result.text


# What a call is said to have done that its run could not wait for


@pytest.mark.parametrize(("timeout_s", "until"), [(0, SENT), (30, SENT), (0.1, EXPIRED)], ids=["not", "long", "over"])
async def test_a_call_that_is_closed_says_that_its_message_was_sent(
    tmp_path: Path, timeout_s: float, until: str
) -> None:
    await live_until(tmp_path, until, {"person": send(timeoutSeconds=timeout_s)}, holds())
    async with running(tmp_path, Player("b", **REPLIES).model, config=config("b")) as gateway:
        await gateway.runtime.abort(A, "asking")
        await settled(gateway)
        (primary,) = [run for run in await gateway.store.runs(session_key=B, limit=10) if run.kind == "primary"]
    async with at_last(tmp_path, {}, REPLIES) as gateway:
        result = await result_of(gateway)
        assert result.is_error
        for told in ("The run ended (aborted)", "its message was sent", B, primary.id, "do not send it again"):
            assert told in result.text
        (turn,) = await told_to_a(gateway)
        assert "this is the reply you were no longer waiting for" in turn


@pytest.mark.parametrize("name", ["sessions_list", "sessions_send"])
async def test_a_call_that_has_set_nothing_going_says_that_it_was_not_carried_out(tmp_path: Path, name: str) -> None:
    asks = {"person": send("agent:nobody:main") if name == "sessions_send" else [call(name)]}
    await live_until(tmp_path, "SELECT 1 FROM tool_calls", asks, REPLIES)
    async with running(tmp_path, Player("b").model, config=config("b")) as gateway:
        await gateway.runtime.abort(A, "asking")
        await settled(gateway)
        assert "it was not carried out" in (await result_of(gateway)).text


async def test_nothing_is_sent_for_a_run_that_has_ended_or_is_being_stopped(tmp_path: Path) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    a = {"person": [Reply(text="done"), Reply(text="busy", gate=gate, reached=reached)]}
    async with running(tmp_path, *agents(a, REPLIES), config=AB) as gateway:
        await gateway.ask(A, "hello", run_id="over")
        await gateway.submit(A, "hello", run_id="stopping")
        async with asyncio.timeout(20):
            await reached.wait()
        for run_id, refusal in (("over", FenceLost), ("stopping", StopRequested)):
            caller = Caller(SessionKey.parse(A), f"{run_id}/0/0", run_id=run_id)
            stopping = gateway.runtime.abort(A, "stopping") if run_id == "stopping" else asyncio.sleep(0)
            sending = invoke(gateway.parts, caller, "sessions_send", {"sessionKey": B, "message": "hello"})
            with pytest.raises(refusal):
                await asyncio.gather(stopping, sending)
        gate.set()
        assert await gateway.store.runs(session_key=B, limit=10) == []


# Whose fault a crash is


async def wait_and_die(state: Path, *, times: int, equip: Equip | None = None) -> None:
    """Let the process die so often while one run waits for another, which is at work."""
    for _ in range(times):
        at_work = asyncio.Event()
        b = Player("b", request=Reply(text="never", gate=asyncio.Event(), reached=at_work))
        models = [Player("a", **WAITS).model, b.model]
        async with dying(state, *models, config=AB, equip=equip or (lambda gateway: None)) as gateway:
            if await gateway.store.run("asking") is None:
                await gateway.submit(A, "ask b", run_id="asking")
            async with asyncio.timeout(20):
                await at_work.wait()


async def test_a_run_that_only_waits_for_the_culprit_is_not_blamed(tmp_path: Path) -> None:
    await wait_and_die(tmp_path, times=3)
    async with running(tmp_path, *agents({}, REPLIES), config=AB) as gateway:
        heard = Heard(gateway)
        [culprit] = await gateway.store.runs(session_key=B, limit=1)
        if not culprit.is_set_aside:
            await heard.until(lambda: "queued" in heard.states(culprit.id))
        assert (await stored(gateway, "asking")).state == "running"
        await gateway.store.retry_run(culprit.id)
        run = await ended(gateway, "asking")
        assert (run.state, run.reply, run.crashes) == ("ok", "I see.", 0)
        assert '"status":"ok"' in (await result_of(gateway)).text


async def test_a_run_that_waits_goes_on_at_once_and_not_as_a_suspect(tmp_path: Path) -> None:
    await wait_and_die(tmp_path, times=2)
    async with running(tmp_path, *agents({}, holds()), config=AB) as gateway:
        asking = await stored(gateway, "asking")
        assert (asking.crashes, asking.is_suspect) == (0, False)
        culprit = next(run for run in await gateway.store.runs(session_key=B, limit=1))
        assert (culprit.crashes, culprit.is_suspect) == (2, True)


async def test_a_run_that_does_something_else_beside_its_wait_is_counted(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def hang() -> str:
            await asyncio.Event().wait()
            return "never"

    both = [*send(timeoutSeconds=30), call("hang")]
    at_work = asyncio.Event()
    b = Player("b", request=Reply(text="never", gate=asyncio.Event(), reached=at_work))
    async with dying(tmp_path, Player("a", person=both).model, b.model, config=AB, equip=equip) as gateway:
        await gateway.submit(A, "ask b", run_id="asking")
        async with asyncio.timeout(20):
            await at_work.wait()
    async with running(tmp_path, *agents({}, holds()), config=AB, equip=equip) as gateway:
        assert (await stored(gateway, "asking")).crashes == 1


async def test_a_function_agent_that_dies_on_the_way_back_to_its_wait_is_counted(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def waits(context: FunctionContext) -> str:
        return str(await context.call("sessions_send", sessionKey=B, message="hello", timeoutSeconds=30))

    async def hangs(context: FunctionContext) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    await wait_and_die(tmp_path, times=1, equip=lambda gateway: gateway.add_agent("a", waits))
    async with dying(tmp_path, *agents({}, holds()), config=AB, equip=lambda g: g.add_agent("a", hangs)) as gateway:
        assert (await stored(gateway, "asking")).crashes == 0
        async with asyncio.timeout(20):
            await begun.wait()
    async with running(tmp_path, *agents({}, holds()), config=AB, equip=lambda g: g.add_agent("a", hangs)) as gateway:
        assert (await stored(gateway, "asking")).crashes == 1
