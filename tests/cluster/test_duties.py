"""Duties that only one gateway has. Another gateway takes them over when it is gone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import ScriptedModel
from backchannel.config.load import config_from
from backchannel.config.schema_doors import CronJob
from backchannel.core.delivery.channels import Channel, ChannelSettings, InboundTaker, OutboundPart, Sent
from backchannel.core.delivery.delivery import Post
from backchannel.core.facts import SessionChanged
from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import ApprovalDecided
from backchannel.core.sessions import Address
from backchannel.gateway.app import Gateway
from backchannel.runtime.events import Event, ListenerWants
from tests.cluster.gateways import LEASE_S, execute, gateways, knows, until
from tests.runtime.test_approvals import ASKING, PostingTool, asked, posting
from tests.support.gateways import CONFIG, MAIN, echo, ended

pytestmark = pytest.mark.anyio


class Line(Channel):
    """A platform with one connection per account."""

    name = "line"
    takes_key = True
    max_text_length = 1000
    settings = ChannelSettings(allow_from=("*",))

    def __init__(self, connected: list[str], sent: list[tuple[str, str]], owner: str) -> None:
        self._connected, self._sent, self._owner = connected, sent, owner

    async def run(self, taker: InboundTaker) -> None:
        self._connected.append(self._owner)
        try:
            await asyncio.Event().wait()
        finally:
            self._connected.remove(self._owner)

    async def send(self, part: OutboundPart) -> Sent:
        self._sent.append((self._owner, part.text))
        return Sent(part.key)


def opened(folder: Path, url: str, name: str, **more: Any) -> Gateway:
    shared = {"database": {"url": url}, "cluster": {"leaseSeconds": LEASE_S}}
    gateway = Gateway(config_from({**CONFIG, **shared, **more}, {}, state=folder / name))
    gateway.add_model(ScriptedModel(replies=echo))
    return gateway


async def test_a_connection_is_kept_by_one_gateway_which_alone_sends_over_it_and_moves_when_that_stops(
    tmp_path: Path, url: str
) -> None:
    connected: list[str] = []
    sent: list[tuple[str, str]] = []
    async with AsyncExitStack() as other_life, AsyncExitStack() as first_life:
        one, other = opened(tmp_path, url, "one"), opened(tmp_path, url, "other")
        one.add_channel(Line(connected, sent, "one"))
        other.add_channel(Line(connected, sent, "other"))
        await first_life.enter_async_context(one)
        await other_life.enter_async_context(other)
        await knows(one, 2)
        assert connected == ["one"]
        await one.ask("main", "hello")
        await post(other, "hello")
        await until(lambda: sent == [("one", "hello")])
        await first_life.aclose()
        await until(lambda: connected == ["other"])
        await post(other, "again")
        await until(lambda: sent == [("one", "hello"), ("other", "again")])


async def post(gateway: Gateway, text: str) -> None:
    """Have a text delivered to a chat of the channel."""
    address = Address(channel="line", to="somebody")
    await gateway.store.post(Post(session_key=MAIN, address=address, text=text))


async def test_a_job_comes_once_for_all_gateways_and_goes_on_when_the_one_that_fires_it_stops(
    tmp_path: Path, url: str
) -> None:
    jobs = {"cron": {"jobs": [{"id": "j", "agentId": "main", "schedule": "every 1s", "message": "tick"}]}}
    async with AsyncExitStack() as other_life, AsyncExitStack() as first_life:
        one, other = opened(tmp_path, url, "one", **jobs), opened(tmp_path, url, "other", **jobs)
        await first_life.enter_async_context(one)
        await other_life.enter_async_context(other)
        await knows(other, 2)
        assert has_timers(one) and not has_timers(other)
        await until(lambda: fired(url) >= 2)
        await first_life.aclose()
        before = fired(url)
        await until(lambda: fired(url) >= before + 2)
        assert has_timers(other)
        times = [at for (at,) in execute(url, "SELECT accepted_at FROM runs WHERE kind = 'cron' ORDER BY accepted_at")]
    assert len(times) - 1 <= (times[-1] - times[0]) / 1000 + 1  # one that is late is followed by one in time


async def test_a_command_of_a_job_runs_on_one_gateway_and_another_takes_over_when_that_stops(
    tmp_path: Path, url: str
) -> None:
    room = tmp_path / "room"
    room.mkdir()
    command = "echo made >> made; test -e go && echo news || exec tail -f /dev/null"
    job = {"id": "j", "agentId": "main", "schedule": "every 1h", "message": "tick", "when": {"command": command}}
    agents = {"list": [{"id": "main", "model": "scripted/test", "workspace": str(room)}]}
    shared = {"agents": agents, "cron": {"jobs": [job]}}
    async with AsyncExitStack() as other_life, AsyncExitStack() as first_life:
        one, other = opened(tmp_path, url, "one", **shared), opened(tmp_path, url, "other", **shared)
        await first_life.enter_async_context(one)
        await other_life.enter_async_context(other)
        await knows(other, 2)
        execute(url, "UPDATE timers SET due_at = 0 WHERE kind = 'cron'")
        execute(url, "UPDATE cron_jobs SET next_at = next_at - 3600000")
        await until((room / "made").exists)
        ((checker,),) = execute(url, "SELECT checker FROM cron_jobs")
        (room / "go").touch()
        await (first_life if checker == one.store.number else other_life).aclose()
        await until(lambda: fired(url) == 1)
        assert (room / "made").read_text() == "made\n" * 2
        assert execute(url, "SELECT skipped, checking FROM cron_jobs") == [(0, None)]


async def test_a_job_of_a_configuration_stays_until_no_gateway_at_work_has_it(tmp_path: Path, url: str) -> None:
    def life(name: str, *jobs: str) -> Gateway:
        listed = [{"id": id, "agentId": "main", "schedule": "every 1h", "message": id} for id in jobs]
        return opened(tmp_path, url, name, cron={"jobs": listed})

    async with life("one", "a", "b") as one:
        async with life("other", "b", "c") as other:
            for gateway in (one, other):
                assert await jobs_of(gateway) == ["a", "b", "c"]
        async with life("other", "b") as other:
            assert await jobs_of(other) == ["a", "b"]
            execute(url, "UPDATE processes SET ended_at = 1 WHERE number = %s", one.store.number)
            await until(lambda: one.store.number > other.store.number)  # it has begun anew, with its jobs
            async with life("third", "d") as third:
                assert await jobs_of(third) == ["a", "b", "d"]
    async with life("third") as third:
        assert await jobs_of(third) == []


async def test_of_two_jobs_with_one_id_that_of_the_gateway_counts_which_started_last(tmp_path: Path, url: str) -> None:
    def life(name: str, message: str) -> Gateway:
        job = {"id": "a", "agentId": "main", "schedule": "every 1h", "message": message}
        return opened(tmp_path, url, name, cron={"jobs": [job]})

    async with life("one", "older") as one, life("other", "newer"):
        (job,) = await one.cron.list()
        assert job.stored.job.message == "newer"


async def jobs_of(gateway: Gateway) -> list[str]:
    return sorted(job.stored.id for job in await gateway.cron.list())


async def test_a_list_of_jobs_on_one_gateway_hears_that_another_has_changed_it(tmp_path: Path, url: str) -> None:
    reasons: list[str] = []
    async with gateways(tmp_path, url, ScriptedModel(replies=echo)) as (one, other):

        def on_event(event: Event) -> None:
            assert isinstance(event, SessionChanged)
            reasons.append(event.reason)

        other.runtime.hub.listen(on_event, SessionChanged, elsewhere=True, wants=lambda: ListenerWants(everything=True))
        await one.cron.add(CronJob(id="a", agent_id="main", schedule="every 1h", message="hello"))
        await until(lambda: "job" in reasons)


def has_timers(gateway: Gateway) -> bool:
    return gateway.runtime.duties.has_timers


def fired(url: str) -> int:
    return int(execute(url, "SELECT count(*) FROM runs WHERE kind = 'cron'")[0][0])


async def test_a_call_that_waits_on_one_gateway_is_allowed_on_another(tmp_path: Path, url: str) -> None:
    desk = PostingTool()
    model = ScriptedModel(replies=posting)
    async with gateways(tmp_path, url, model, config=ASKING, equip=desk.equip) as (one, other):
        run = await one.submit("main", "hello")
        (approval,) = await asked(one)
        await other.store.answer_approval(approval.id, ApprovalDecided.APPROVE, Answerer("somebody"))
        assert (await ended(other, run.id, 10)).reply == "so: posted hello"
    assert desk.posted == ["hello"]


async def test_a_function_runs_where_its_program_is_whoever_takes_the_message(tmp_path: Path, url: str) -> None:
    agents = {"agents": {"list": [*CONFIG["agents"]["list"], {"id": "clerk", "model": "scripted/test"}]}}
    one, other = opened(tmp_path, url, "one", **agents), opened(tmp_path, url, "other", **agents)

    @one.agent("clerk")
    async def clerk(context: FunctionContext) -> str:
        return f"noted: {context.text}"

    async with one, other:
        await knows(one, 2)
        assert await other.ask("agent:clerk:main", "hello", timeout_s=20) == "noted: hello"
