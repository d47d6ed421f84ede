"""Faults of a gateway in `status` and `health`. They do not make it unready."""

from __future__ import annotations

import asyncio
import inspect
import re
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import ScriptedModel
from backchannel.config.defaults import with_default_model
from backchannel.config.load import config_from
from backchannel.config.schema import DEMO_MODEL, Config, DefaultModel
from backchannel.core.contracts import ModelFailed
from backchannel.core.delivery.channels import Channel, ChannelSilent, OutboundPart, Sent
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.runs import CRASHES_UNTIL_SET_ASIDE
from backchannel.core.sessions import Address
from backchannel.gateway import condition as checks
from backchannel.gateway.app import Gateway, RunFailed
from backchannel.gateway.condition import examine
from backchannel.runtime import watchdog
from backchannel.storage import probing
from backchannel.storage.postgres import readiness
from backchannel.wire.rows import HealthProblem
from tests.channels.desk import ChannelDesk, desk
from tests.gateway.conftest import MakeWorld
from tests.support.clocks import StageClock
from tests.support.far_end import FarEnd, Fault
from tests.support.gateways import CONFIG, MAIN, dying, held, running
from tests.support.resting import until

pytestmark = pytest.mark.anyio
S = DeliveryState
TO_DESK = Post(session_key=MAIN, address=Address(channel="desk", to="C"), text="hello")


async def codes(gateway: Gateway) -> list[str]:
    return [problem.code for problem in (await examine(gateway.parts)).problems]


async def problem(gateway: Gateway, code: str) -> HealthProblem:
    (found,) = [problem for problem in (await examine(gateway.parts)).problems if problem.code == code]
    return found


async def test_a_gateway_on_which_nothing_is_wrong_says_ok(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["hi"])) as gateway:
        await gateway.ask("main", "hello")
        condition = await examine(gateway.parts)
        assert (condition.word, condition.problems) == ("ok", [])


async def test_a_model_without_its_key_makes_the_status_degraded_and_the_gateway_still_takes_messages(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    agents = {"list": [{"id": "main", "model": "anthropic/claude-sonnet-5-5"}]}
    async with make_world({"agents": agents}) as world, world.client() as client:
        status, told = await client.ask("status"), await client.ask("health")
    assert (status["status"], told["status"], told["ok"], told["store"]) == ("degraded", "degraded", True, "ok")
    (found,) = [problem for problem in status["problems"] if problem["code"] == "model_unusable"]
    assert "ANTHROPIC_API_KEY" in found["message"] and found["hint"]
    assert status["problems"] == told["problems"]


async def test_runs_that_failed_are_counted_until_a_retry_mends_them(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[ModelFailed("no", retryable=False), "hi"])
    async with running(tmp_path, model) as gateway:
        with pytest.raises(RunFailed):
            await gateway.ask("main", "hello", run_id="r")
        assert "1 run failed" in (await problem(gateway, "runs_failed")).message
        await gateway.store.retry_run("r")
        await gateway.runtime.wait("r", 20)
        assert await codes(gateway) == []


async def test_dead_letters_and_a_channel_that_is_down_are_told_and_it_coming_up_again(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        far_end.then(*[Fault(500)] * 10)
        async with desk(tmp_path, {"desk": far_end.settings()}, clock=StageClock()) as world:
            post = Post(session_key=MAIN, address=Address(channel="desk", to="C"), text="hello")
            lost = await world.send(post)
            await world.becomes(S.FAILED, lost)
            assert set(await codes(world.gateway)) == {"channel_down", "deliveries_failed"}
            assert "desk" in (await problem(world.gateway, "channel_down")).message
            assert "Nothing waits" in (await problem(world.gateway, "channel_down")).hint
            await world.becomes(S.SENT, await world.send(post))
            assert await codes(world.gateway) == ["deliveries_failed"]
            await world.gateway.store.drop_delivery(lost)
            assert await codes(world.gateway) == []


def has_been_in(world: ChannelDesk, delivery_id: str, states: list[DeliveryState]) -> bool:
    return world.states(delivery_id)[: len(states)] == states


async def test_what_waits_for_a_channel_that_is_down_is_counted(tmp_path: Path) -> None:
    clock = StageClock.held("2026-03-02T09:00:00")
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, clock=clock) as world:
        far_end.then(*[Fault(503)] * 3)
        for to in ("A", "B", "C"):
            post = Post(session_key=MAIN, address=Address(channel="desk", to=to), text="hello")
            tried = [S.PENDING, S.SENDING, S.PENDING]
            await world.heard.until(partial(has_been_in, world, await world.send(post), tried))
        assert "3 deliveries wait and are tried again" in (await problem(world.gateway, "channel_down")).hint


async def test_a_channel_that_refuses_after_it_was_down_is_up_again(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, clock=StageClock()) as world:
        far_end.then(*[Fault(503)] * 4, Fault(403))
        await world.becomes(S.FAILED, await world.send(TO_DESK))
        assert await codes(world.gateway) == ["deliveries_failed"]


class Silent(Channel):
    """A platform that never answers, and takes no keys."""

    name, max_text_length, takes_key = "silent", 1000, False

    async def send(self, part: OutboundPart) -> Sent:
        raise ChannelSilent("no answer")


async def test_deliveries_of_which_nobody_knows_are_told(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, Silent()) as world:
        await world.send(Post(session_key=MAIN, address=Address(channel="silent", to="C"), text="hello"))
        await world.becomes(S.UNCERTAIN)
        assert await codes(world.gateway) == ["deliveries_uncertain"]


async def test_little_room_on_the_disk_is_told_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "LOW_DISK_BYTES", sys.maxsize)
    async with running(tmp_path, ScriptedModel(replies=[])) as gateway:
        condition = await examine(gateway.parts)
    assert condition.word == "degraded" and [found.code for found in condition.problems] == ["disk_low"]


def configured(state: Path, found: DefaultModel, *agents: dict[str, Any]) -> Config:
    config = config_from({"agents": {"list": list(agents or ({"id": "main"},))}}, {}, state=state)
    return with_default_model(config, found)


async def demo_problems(config: Config, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("backchannel.gateway.app.default_model", lambda env: config.default_model)
    async with Gateway(config) as gateway:
        return [problem.message for problem in (await examine(gateway.parts)).problems if problem.code == "demo_model"]


async def test_a_newcomer_may_be_answered_by_the_demo_model_and_one_who_lost_a_key_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await demo_problems(configured(tmp_path, DEMO_MODEL), monkeypatch) == []
    before = DefaultModel("ollama/llama", "Ollama answers")
    assert await demo_problems(configured(tmp_path, before), monkeypatch) == []
    for _ in range(2):  # it is told at every start until something is done
        (told,) = await demo_problems(configured(tmp_path, DEMO_MODEL), monkeypatch)
        assert "ollama/llama" in told
    meant = {"id": "main", "model": DEMO_MODEL.ref}
    assert await demo_problems(configured(tmp_path, DEMO_MODEL, meant), monkeypatch) == []


async def test_the_demo_model_beside_a_configured_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [{"id": "main"}, {"id": "writer", "model": "ollama/llama"}]
    (told,) = await demo_problems(configured(tmp_path, DEMO_MODEL, *agents), monkeypatch)
    assert "answers for main" in told and "ollama/llama" in told


async def test_runs_that_wait_for_a_program_with_their_function_are_told(tmp_path: Path) -> None:
    config = {"agents": {"list": [{"id": "main", "model": DEMO_MODEL.ref}]}}
    async with Gateway.open(config, state=tmp_path) as gateway:
        gateway.add_agent("main", _forever)
        await gateway.submit("main", "hello")
    async with Gateway.open(config, state=tmp_path) as gateway:
        told = await problem(gateway, "function_missing")
    assert "1 run waits" in told.message and "main" in told.message


async def _forever(context: FunctionContext) -> str:
    await asyncio.Event().wait()
    return ""


async def test_runs_that_are_set_aside_are_told_with_the_time_of_the_next_try(tmp_path: Path) -> None:
    async with dying(tmp_path, ScriptedModel(replies=[held("so")])) as gateway:
        await gateway.submit("main", "hello", run_id="r")
    _count_crashes(tmp_path, CRASHES_UNTIL_SET_ASIDE - 1)  # the start counts the one above
    async with running(tmp_path, ScriptedModel(replies=[])) as gateway:
        await until(gateway, lambda: _is_told(gateway, "runs_set_aside"))
        told = await problem(gateway, "runs_set_aside")
        amounts = (await examine(gateway.parts)).amounts
        assert amounts is not None and amounts.troubles.runs_set_aside == 1
    assert "1 run" in told.message and re.search(r"tried at \d\d:\d\d:\d\d UTC", told.hint)


async def _is_told(gateway: Gateway, code: str) -> bool:
    return code in await codes(gateway)


def _count_crashes(state: Path, crashes: int) -> None:
    with closing(sqlite3.connect(state / "backchannel.db")) as database, database:
        database.execute("UPDATE runs SET crashes = ?", (crashes,))


async def test_a_long_time_in_which_nobody_was_answered_is_told_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LONG_S", 0.15)
    async with running(tmp_path, ScriptedModel(replies=[])) as gateway:
        time.sleep(0.4)  # noqa: ASYNC251  # it is the loop that has to be held
        assert "loop_stalled" in await codes(gateway)
        monkeypatch.setattr(checks, "RECENT_STALL_S", 0.0)
        assert "loop_stalled" not in await codes(gateway)


async def test_a_clock_that_was_set_back_is_told_for_an_hour(tmp_path: Path) -> None:
    clock, job = StageClock.held("2026-01-02T12:00:00"), {"id": "daily", "schedule": "0 9 * * *", "message": "hi"}
    config = {**CONFIG, "cron": {"jobs": [job]}}
    async with running(tmp_path, ScriptedModel(replies=[]), config=config, clock=clock) as gateway:
        assert await codes(gateway) == []
        clock.set_to("2026-01-01T12:00:00")
        async with asyncio.timeout(20):
            while gateway.runtime.clock_set_back_at is None:
                clock.stir()
                await gateway.store.check_writable()
        assert await codes(gateway) == ["clock_set_back"]
        clock.move_on(3600)
        assert await codes(gateway) == []


async def test_what_is_merely_wrong_keeps_nobody_from_sending_messages(make_world: MakeWorld) -> None:
    async with make_world() as world, httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as http:
        async with world.client() as client:
            await client.run(message="hi", agentId="broken")
            assert (await client.ask("status"))["status"] == "degraded"
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.sqlite_only
async def test_a_gateway_whose_database_does_not_answer_is_not_ready(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "_PROBE_LIMIT_S", 0.2)
    async with make_world() as world, httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as http:
        with closing(sqlite3.connect(world.gateway.store.database.name, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/readyz")).status_code == 200


FULL_DISK = """
    import asyncio, os, sys
    from pathlib import Path
    from backchannel.errors import StorageFull
    from backchannel.gateway.app import Gateway

    async def main(state):
        config = {"agents": {"list": [{"id": "main", "model": "builtin/demo"}]}}
        async with Gateway.open(config, state=state) as gateway:
            gateway.add_agent("main", quiet)
            await gateway.ask("main", "hello")
            await gateway.store.check_writable()
            filler = open(state / "filler", "wb", buffering=0)
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                filler.truncate(os.fstat(filler.fileno()).st_size - 3 * 4096)  # one page would still fit
            while not await is_refused(gateway.submit("main", "too much")):
                pass  # there may be some room left in the log
            assert await is_refused(gateway.store.check_writable()), "nothing is taken, and it says that it is ready"
            assert await is_refused(gateway.submit("main", "still too much"))
            filler.truncate(0)
            await gateway.store.check_writable()
            await gateway.ask("main", "room again")
        print("told the truth")

    async def quiet(context):
        return ""

    async def is_refused(work):
        try:
            await work
        except StorageFull:
            return True
        return False

    asyncio.run(main(Path(sys.argv[1])))
"""


def test_whether_messages_can_be_accepted_is_true_on_a_disk_that_is_really_full(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=3m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    words = ["unshare", "-rm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, textwrap.dedent(FULL_DISK)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("a small file system needs `unshare`")
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "told the truth" in done.stdout


def test_every_problem_has_its_line_in_the_documents() -> None:
    told = inspect.getsource(checks) + inspect.getsource(readiness)
    codes = set(re.findall(r'code="(\w+)"', told))
    page = (Path(__file__).parents[2] / "docs/how-to/watch-it.md").read_text(encoding="utf-8")
    table = page.partition("| Code | What is wrong |")[2].partition("\n\n")[0]
    assert codes and codes == set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
