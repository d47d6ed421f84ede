"""Gateways tell each other what somebody waits for, at once; what is not heard is found within a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel
from backchannel.config.schema_doors import CronJob
from backchannel.core.cluster.echoes import EVERYTHING, EchoId, session_topic
from backchannel.core.cluster.interests import AGAIN_S
from backchannel.core.facts import MessageAppended, RunChanged, SessionChanged
from backchannel.core.runs import RunState
from backchannel.gateway.app import Gateway
from backchannel.runtime.cluster import echoing, offering
from backchannel.runtime.cluster.member import ClusterMember
from backchannel.runtime.events import Event, ListenerWants
from tests.cluster.gateways import PATIENCE_S, execute, gateways, until
from tests.support.gateways import echo, ended, held, texts_of, with_defaults

pytestmark = pytest.mark.anyio
JOB = CronJob(id="a", agent_id="main", schedule="every 1h", message="hello")


@pytest.fixture
def words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be found by looking again."""
    monkeypatch.setattr(echoing, "_POLL_S", 600.0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[EchoId]:
    """What gateways have heard of each other and read."""
    words: list[EchoId] = []
    hear = echoing.EchoService._echo

    async def noting(self: echoing.EchoService, heard: Sequence[EchoId]) -> None:
        words.extend(heard)
        await hear(self, heard)

    monkeypatch.setattr(echoing.EchoService, "_echo", noting)
    return words


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[EchoId]:
    """What gateways tell each other."""
    words: list[EchoId] = []
    send = echoing.EchoService.send

    def noting(self: echoing.EchoService, to: Set[int], said: Sequence[EchoId]) -> None:
        words.extend(said)
        send(self, to, said)

    monkeypatch.setattr(echoing.EchoService, "send", noting)
    return words


async def known(*both: Gateway) -> None:
    """Wait until gateways have told each other what they want."""
    for gateway in both:
        await until(partial(getattr, member(gateway).echoing, "is_directed"))


@pytest.mark.usefixtures("words_alone")
async def test_the_end_of_a_run_is_heard_at_once_where_somebody_waits_for_it(tmp_path: Path, url: str) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate, reached=reached)])
    async with gateways(tmp_path, url, model) as (one, other):
        await known(one, other)
        run = await one.submit("main", "go")
        await reached.wait()
        waiting = asyncio.create_task(ended(other, run.id, PATIENCE_S))
        await until(lambda: run.id in other.runtime._waits.waited_for())
        gate.set()
        assert (await waiting).reply == "done"


@pytest.mark.usefixtures("words_alone")
async def test_whoever_begins_to_wait_when_a_run_has_just_ended_hears_it(tmp_path: Path, url: str) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo)) as (one, other):
        await known(one, other)
        for n in range(10):
            run = await one.submit(f"agent:main:session{n}", "go")
            assert (await ended(other, run.id, PATIENCE_S)).state is RunState.OK


async def test_what_nobody_waits_for_is_not_read_by_another_gateway(
    tmp_path: Path, url: str, read: list[EchoId]
) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo)) as (one, other):
        await known(one, other)
        read.clear()
        heard: list[Event] = []
        for n in range(5):
            assert await one.ask(f"agent:main:session{n}", "hello") == "re: hello"
        other.runtime.hub.listen(
            heard.append, RunChanged, elsewhere=True, wants=lambda: ListenerWants(sessions=[{"agent:main:watched"}])
        )
        await one.ask("agent:main:watched", "hello")
        await one.ask("agent:main:session0", "hello")
        await until(lambda: any(isinstance(event, RunChanged) and event.run.is_finished for event in heard))
        assert {event.run.session_key for event in heard if isinstance(event, RunChanged)} == {"agent:main:watched"}
        assert {kind for kind, _ in read} <= {"run", "message"}
        assert len(read) <= 5  # of one run: that it began, and ended, and what was said


@pytest.mark.usefixtures("words_alone")
async def test_a_run_for_which_a_gateway_has_no_slot_is_started_by_another(tmp_path: Path, url: str) -> None:
    reached = asyncio.Event()
    model = ScriptedModel(replies=[held("half", reached=reached), "quick"])
    async with gateways(tmp_path, url, model, config=with_defaults(maxConcurrent=1)) as (one, other):
        await known(one, other)
        await one.submit("agent:main:slow", "go")
        await reached.wait()
        run = await one.submit("agent:main:quick", "go")
        assert (await ended(one, run.id, PATIENCE_S)).reply == "quick"


@pytest.mark.usefixtures("words_alone")
async def test_a_run_that_gets_a_slot_soon_where_it_is_awaited_costs_the_other_gateways_nothing(
    tmp_path: Path, url: str, sent: list[EchoId], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering, "OFFERED_AFTER_S", 600.0)
    gate, reached, looked = asyncio.Event(), asyncio.Event(), asyncio.Event()
    look = echoing.EchoService._want_more

    def noting(self: echoing.EchoService) -> None:
        look(self)
        looked.set()

    monkeypatch.setattr(echoing.EchoService, "_want_more", noting)
    model = ScriptedModel(replies=[Reply(text="first", gate=gate, reached=reached), "second"])
    async with gateways(tmp_path, url, model, config=with_defaults(maxConcurrent=1), lease_s=60) as (one, other):
        await known(one, other)
        await one.submit("agent:main:slow", "go")
        await reached.wait()
        looked.clear()
        sent.clear()
        asking = asyncio.create_task(one.ask("agent:main:quick", "go"))
        await asyncio.wait_for(looked.wait(), PATIENCE_S)  # the others would now be told that somebody waits
        gate.set()
        assert await asking == "second"
        assert not [word for word in sent if word[0] in ("run", "lane", "wants-run")]


async def test_a_timer_for_much_later_is_no_news_for_the_gateway_that_has_the_timers(
    tmp_path: Path, url: str, sent: list[EchoId]
) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), lease_s=60) as (one, other):
        await known(one, other)
        assert one.runtime.duties.has_timers and not other.runtime.duties.has_timers
        await other.cron.add(JOB)
        assert "timer" not in {kind for kind, _ in sent}
        await other.cron.add(CronJob(id="soon", agent_id="main", schedule="every 1s", message="hello"))
        assert "timer" in {kind for kind, _ in sent}


@pytest.mark.usefixtures("words_alone")
async def test_a_message_that_came_by_another_gateway_is_next_when_the_run_before_it_ends(
    tmp_path: Path, url: str
) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="first", gate=gate, reached=reached), "second"])
    async with gateways(tmp_path, url, model) as (one, other):
        await known(one, other)
        await one.submit("main", "a")
        await reached.wait()
        second = await other.submit("main", "b")
        gate.set()
        assert (await ended(other, second.id, PATIENCE_S)).reply == "second"
        assert await texts_of(other) == ["a", "first", "b", "second"]


async def test_what_was_not_heard_is_found_by_looking_again(tmp_path: Path, url: str) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate, reached=reached), "next"])
    async with gateways(tmp_path, url, model, wakeups=("notify", "poll")) as (one, other):
        run = await one.submit("main", "go")
        await reached.wait()
        waiting = asyncio.create_task(ended(other, run.id, PATIENCE_S))
        following = await other.submit("main", "and then?")
        gate.set()
        assert (await waiting).reply == "done"
        assert (await ended(other, following.id, PATIENCE_S)).reply == "next"


@pytest.mark.parametrize("followed", ["the session", "the run"])
async def test_whoever_follows_a_run_on_another_gateway_is_told_how_it_ended_though_no_word_of_it_came(
    tmp_path: Path, url: str, followed: str
) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate, reached=reached)])
    async with gateways(tmp_path, url, model, wakeups=("notify", "poll")) as (one, other):
        run = await one.submit("main", "go")
        await reached.wait()
        heard: list[Event] = []
        wanted = (
            ListenerWants(sessions=[{run.session_key}]) if followed == "the session" else ListenerWants(runs={run.id})
        )
        other.runtime.hub.listen(heard.append, RunChanged, MessageAppended, elsewhere=True, wants=lambda: wanted)
        await until(lambda: run.id in member(other)._elsewhere._read)
        gate.set()
        await until(lambda: len(heard) == 2)
        await member(other).look_again()
        await member(other).look_again()
        said, over = heard
        assert isinstance(said, MessageAppended)
        assert said.message.text == "done"
        assert isinstance(over, RunChanged)
        assert over.run.reply == "done"


async def test_whoever_wrote_a_message_that_another_gateway_answers_is_told_how_though_no_word_of_it_came(
    tmp_path: Path, url: str
) -> None:
    gate, reached, busy = asyncio.Event(), asyncio.Event(), asyncio.Event()
    replies: list[Scripted] = [Reply(text="done", gate=gate, reached=reached), held("half", reached=busy), "next"]
    ways, config = ("notify", "poll"), with_defaults(maxConcurrent=1)
    async with gateways(tmp_path, url, ScriptedModel(replies=replies), wakeups=ways, config=config) as (one, other):
        await one.submit("main", "go")
        await reached.wait()
        await other.submit("agent:main:slow", "go")
        await busy.wait()
        heard: list[Event] = []
        wanted = ListenerWants(sessions=[{"agent:main:main"}])
        other.runtime.hub.listen(heard.append, RunChanged, elsewhere=True, wants=lambda: wanted)
        await other.submit("main", "and then?")
        gate.set()
        await until(lambda: any(isinstance(event, RunChanged) and event.run.reply == "next" for event in heard))


@pytest.mark.usefixtures("words_alone")
async def test_words_are_sent_after_the_server_has_ended_the_connection_that_sends_them(
    tmp_path: Path, url: str
) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate, reached=reached)])
    async with gateways(tmp_path, url, model, lease_s=60) as (one, other):
        await known(one, other)
        heard: list[Event] = []
        wanted = ListenerWants(sessions=[{"agent:main:main"}])
        other.runtime.hub.listen(heard.append, RunChanged, elsewhere=True, wants=lambda: wanted)
        await until(lambda: _is_wanted(one, "agent:main:main"))
        await one.submit("main", "go")
        await reached.wait()
        await until(lambda: bool(heard))
        execute(
            url,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE '%%pg_notify%%' AND pid <> pg_backend_pid()",
        )
        gate.set()
        await until(lambda: any(isinstance(event, RunChanged) and event.run.is_finished for event in heard))


def changes(gateway: Gateway) -> list[str]:
    """Collect why sessions change, here and elsewhere."""
    reasons: list[str] = []

    def on_event(event: Event) -> None:
        assert isinstance(event, SessionChanged)
        reasons.append(event.reason)

    gateway.runtime.hub.listen(on_event, SessionChanged, elsewhere=True, wants=lambda: ListenerWants(everything=True))
    return reasons


@pytest.mark.usefixtures("words_alone")
async def test_a_change_is_heard_though_the_word_that_somebody_listens_comes_late(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echoing, "WANTED_AFTER_S", 2 * AGAIN_S)
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), lease_s=60) as (one, other):
        await known(one, other)
        reasons = changes(other)
        await one.cron.add(JOB)
        await until(lambda: "job" in reasons)


@pytest.mark.usefixtures("words_alone")
async def test_a_change_is_heard_that_came_while_a_gateway_had_no_connection_to_hear(tmp_path: Path, url: str) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), lease_s=60) as (one, other):
        await known(one, other)
        reasons = changes(other)
        await until(lambda: EVERYTHING in member(one).echoing._interests._wanted)
        execute(
            url,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%%' AND pid <> pg_backend_pid()",
        )
        await one.cron.add(JOB)
        await until(lambda: "job" in reasons)


def _is_wanted(gateway: Gateway, key: str) -> bool:
    return session_topic(key) in member(gateway).echoing._interests._wanted


def member(gateway: Gateway) -> ClusterMember:
    assert gateway.runtime.member is not None
    return gateway.runtime.member
