"""Somebody whose message could not be answered is told so, in one line, once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.compaction.prompting import asks_for_summary
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.delivery.delivery import DeliveryState, notice_text, wait_text
from backchannel.core.models.model_wait import read_wait
from backchannel.core.runs import CRASHES_UNTIL_GIVEN_UP, CRASHES_UNTIL_SET_ASIDE, RunKind, RunState
from backchannel.core.sessions import Address, SessionPatch
from backchannel.gateway.app import Gateway
from tests.channels.desk import desk
from tests.conftest import CRASH_POINTS
from tests.support.far_end import FarEnd, event, signed
from tests.support.gateways import CONFIG, MAIN, dying, ended, held, live_runs, request, stored, with_defaults
from tests.support.kill import kill_at_every_commit
from tests.support.resting import at_rest, until

pytestmark = pytest.mark.anyio
SECRET_WORDS = "quota of account 4711 is exceeded"
AT_THE_DESK = Address(channel="desk", to="Chat-9")


def failing(request: ModelRequest) -> str:
    raise ModelFailed(SECRET_WORDS, retryable=False)


async def test_a_person_is_told_in_one_line_that_names_the_run_and_repeats_no_provider(tmp_path: Path) -> None:
    model = ScriptedModel(replies=failing)
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        run_id = (await world.say(text="hello"))["runId"]
        (told,) = await far_end.took(1)
        await at_rest(world.gateway)
        (receipt,) = await world.receipts()
    assert (told.to, told.text) == ("Chat-1", notice_text(run_id))
    assert run_id in told.text and SECRET_WORDS not in told.text
    assert receipt.delivery.run_id == run_id and receipt.delivery.session_key == MAIN


async def test_a_person_whose_compact_brings_no_summary_is_told_in_the_same_chat(tmp_path: Path) -> None:
    def reply(request: ModelRequest) -> str:
        return failing(request) if asks_for_summary(request) else "noted"

    model, long = ScriptedModel(replies=reply), "we talk about the weather. " * 200
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        for n in range(6):
            await world.say(messageId=f"m{n}", text=f"{n}: {long}")
            await far_end.took(n + 1)
        await world.say(messageId="c", text="/compact")
        begun, told = (await far_end.took(8))[6:]
    assert "is being summarised" in begun.text and begun.to == told.to == "Chat-1"
    assert told.text == "Sorry, no summary was made. The operator can see why."


async def test_a_person_whose_answer_waits_for_a_model_is_told_once_and_then_answered(tmp_path: Path) -> None:
    busy = ModelFailed(SECRET_WORDS, retryable=True, retry_after_s=100)
    model = ScriptedModel(replies=[busy, busy, "here it is"])
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        run_id = (await world.say(text="hello"))["runId"]
        for tries in (1, 2):
            await until(world.gateway, partial(_has_tried, world.gateway, run_id, tries))
            await world.gateway.store.retry_run(run_id)
        assert (await ended(world.gateway, run_id)).state is RunState.OK
        await at_rest(world.gateway)
    assert far_end.texts == [wait_text(run_id), "here it is"]
    assert run_id in wait_text(run_id) and SECRET_WORDS not in wait_text(run_id)


async def _has_tried(gateway: Gateway, run_id: str, tries: int) -> bool:
    run = await stored(gateway, run_id)
    wait = read_wait(run)
    return run.waits_for_model and wait is not None and wait.tries == tries


async def test_a_run_whose_time_is_over_tells_too(tmp_path: Path) -> None:
    model, limits = ScriptedModel(replies=[held("so far")]), with_defaults(timeoutSeconds=1)
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model, **limits) as world:
        run_id = (await world.say(text="hello"))["runId"]
        await far_end.took(1)
        run = await world.gateway.store.run(run_id)
    assert run is not None and run.state is RunState.TIMEOUT
    assert far_end.texts == [notice_text(run_id)]


@pytest.mark.parametrize(
    "what",
    [
        pytest.param({"deliver": False, "reply_to": AT_THE_DESK}, id="nothing was to be delivered"),
        pytest.param({"deliver": True}, id="there is no address"),
        pytest.param({"deliver": True, "reply_to": Address(channel="webchat")}, id="webchat has its own event"),
        pytest.param({"deliver": True, "reply_to": AT_THE_DESK, "kind": RunKind.PRIMARY}, id="a flow tells by itself"),
    ],
)
async def test_nobody_is_told_who_was_owed_nothing(tmp_path: Path, what: dict[str, Any]) -> None:
    model = ScriptedModel(replies=failing)
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        accepted = await world.gateway.runtime.submit(request(MAIN, "hello", **what))
        assert (await ended(world.gateway, accepted.run.id)).state is RunState.ERROR
        assert await world.receipts() == []


async def test_whoever_stopped_a_run_is_not_told_that_it_stopped(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("so far")])
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        run_id = (await world.say(text="hello"))["runId"]
        await model.asked(1)
        await world.gateway.runtime.abort(MAIN, run_id)
        assert (await ended(world.gateway, run_id)).state is RunState.ABORTED
        assert await world.receipts() == []


async def test_the_notice_can_be_turned_off(tmp_path: Path) -> None:
    model, off = ScriptedModel(replies=failing), {"failureNotice": False}
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model, messages=off) as world:
        run_id = (await world.say(text="hello"))["runId"]
        assert (await ended(world.gateway, run_id)).state is RunState.ERROR
        assert await world.receipts() == []


async def test_the_send_policy_is_asked_about_a_notice_as_about_any_delivery(tmp_path: Path) -> None:
    model = ScriptedModel(replies=failing)
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        accepted = request(MAIN, "hello", kind=RunKind.CRON, deliver=True, reply_to=AT_THE_DESK)
        await world.gateway.store.patch_session(world.gateway.key("main"), SessionPatch(send_policy="deny"))
        run = (await world.gateway.runtime.submit(accepted)).run
        await ended(world.gateway, run.id)
        await at_rest(world.gateway)
        (receipt,) = await world.receipts()
    assert receipt.delivery.state is DeliveryState.SUPPRESSED and far_end.texts == []


async def test_a_retry_that_fails_tells_nothing_again_and_one_that_succeeds_brings_the_answer(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[ModelFailed("no", retryable=False), ModelFailed("no", retryable=False), "at last"])
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        run_id = (await world.say(text="hello"))["runId"]
        await far_end.took(1)
        for state in (RunState.ERROR, RunState.OK):
            await world.gateway.store.retry_run(run_id)
            assert (await ended(world.gateway, run_id)).state is state
        await at_rest(world.gateway)
    assert far_end.texts == [notice_text(run_id), "at last"]


async def test_a_run_that_is_given_up_after_crashes_tells_too_and_one_that_is_set_aside_does_not(
    tmp_path: Path,
) -> None:
    async with FarEnd() as far_end:
        channels, model = {"desk": far_end.settings()}, ScriptedModel(replies=[held("so far")])
        async with dying(tmp_path, model, config={**CONFIG, "channels": channels}) as gateway:
            body, headers = signed(event())
            await gateway.inbound.post("desk", body, headers)
            (run,) = await live_runs(gateway)
        _count_crashes(tmp_path, CRASHES_UNTIL_SET_ASIDE - 1)  # the start counts the one above
        async with desk(tmp_path, channels) as world:
            await until(world.gateway, lambda: _is_set_aside(world.gateway, run.id))
            assert await world.receipts() == []
            await world.gateway.store.retry_run(run.id)
            await far_end.took(1)
        assert far_end.texts == ["re: hello"]


async def test_a_run_in_which_the_process_dies_for_ever_ends_with_the_notice(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        channels, model = {"desk": far_end.settings()}, ScriptedModel(replies=[held("so far")])
        async with dying(tmp_path, model, config={**CONFIG, "channels": channels}) as gateway:
            body, headers = signed(event())
            await gateway.inbound.post("desk", body, headers)
            (run,) = await live_runs(gateway)
        _count_crashes(tmp_path, CRASHES_UNTIL_GIVEN_UP - 1)
        async with desk(tmp_path, channels) as world:
            assert (await ended(world.gateway, run.id)).error_code == "crash_loop"
            await far_end.took(1)
            await at_rest(world.gateway)
    assert far_end.texts == [notice_text(run.id)]


async def _is_set_aside(gateway: Gateway, run_id: str) -> bool:
    return (await stored(gateway, run_id)).is_set_aside


def _count_crashes(state: Path, crashes: int) -> None:
    with closing(sqlite3.connect(state / "backchannel.db")) as database, database:
        database.execute("UPDATE runs SET crashes = ?", (crashes,))


class NotAnswered:
    """Somebody writes, and the model fails; the far end posts until the message is taken."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        far_end.messages.clear()
        far_end.posts.clear()
        self.model = ScriptedModel(replies=failing)

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        body, headers = signed(event())
        await gateway.inbound.post("desk", body, headers)
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        ((run_id, state, told),) = database.execute("SELECT id, state, failure_told FROM runs").fetchall()
        assert (state, told) == ("error", 1)
        receipts = database.execute("SELECT state, run_id, text FROM deliveries").fetchall()
        assert receipts == [("sent", run_id, notice_text(run_id))]
        assert self.far_end.texts == [notice_text(run_id)], "somebody was told twice, or not at all"


async def test_exactly_one_notice_comes_wherever_a_commit_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    agents = {"list": [{"id": "main", "model": "scripted/test"}]}
    async with FarEnd() as far_end:
        config: dict[str, object] = {"agents": agents, "channels": {"desk": far_end.settings()}}
        points = await kill_at_every_commit(lambda: NotAnswered(far_end), config)
    record_property(CRASH_POINTS, ("NotAnswered, at commits", points))
    assert points >= 8
