"""The archiving of ended sub-agents: after their result has arrived, and never while they are used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.contracts import ModelFailed
from backchannel.core.delivery.channels import Channel, ChannelRefused, ChannelSilent, OutboundPart, Sent
from backchannel.core.sessions import Address, write_address
from tests.support.children import Cast, Family, Gate, config, spawn
from tests.support.clocks import StageClock
from tests.support.gateways import MAIN, running, session_of
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

MINUTE_MS = 60_000


class Chat(Channel):
    """A channel that does with a message what it is told to."""

    name = "chat"
    max_text_length = 4000
    takes_key = False

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)
        self.gate = asyncio.Event()
        self.gate.set()
        self.texts: list[str] = []

    async def send(self, part: OutboundPart) -> Sent:
        await self.gate.wait()
        if self.answers:
            raise self.answers.pop(0)
        self.texts.append(part.text)
        return Sent(part.key)


class CleanupFamily(Family):
    """A family on a clock that stands still, with a chat."""

    clock: StageClock
    chat: Chat

    async def archived(self, key: str) -> None:
        await self.until("SELECT 1 FROM sessions WHERE key = ? AND archived_at IS NOT NULL", key)

    def is_archived(self, key: str) -> bool:
        return bool(self.rows("SELECT 1 FROM sessions WHERE key = ? AND archived_at IS NOT NULL", key))

    def timer(self, key: str) -> int | None:
        """Tell when the child is looked at again, in minutes from now."""
        rows = self.rows("SELECT due_at FROM timers WHERE kind = 'archive' AND ref = ?", key)
        return round((rows[0][0] - self.clock.now_ms()) / MINUTE_MS) if rows else None

    async def moved_on(self, minutes: float) -> None:
        """Let time pass, and whatever falls due be done."""
        self.clock.move_on(minutes * 60)
        async with asyncio.timeout(20):
            while self.rows("SELECT 1 FROM timers WHERE due_at <= ?", self.clock.now_ms()):
                await self.gateway.store.check_writable()
                self.clock.move_on(1)  # for whoever went to sleep just after the time had moved


@asynccontextmanager
async def spawning_gateway(
    state: Path, *, chat: Chat | None = None, clock: StageClock | None = None, says: Any = None, **subagents: Any
) -> AsyncIterator[CleanupFamily]:
    clock, cast, chat = clock or StageClock.held(), Cast(**(says or {})), chat or Chat()
    opened = running(
        state, cast.model, config=config(**subagents), clock=clock, equip=lambda gateway: gateway.add_channel(chat)
    )
    async with opened as gateway:
        made = CleanupFamily(gateway, cast, state / "backchannel.db")
        made.clock, made.chat = clock, chat
        yield made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A main session that has a chat."""
    shelf = Shelf(tmp_path / "state")
    shelf.session(MAIN, "hello", delivery_context=write_address(Address(channel="chat", to="Room")))
    return shelf.state


def _is_link(file: Path) -> bool:
    return file.is_symlink()


def _archived_of(file: Path) -> list[Path]:
    return list(file.parent.glob(f"{file.name}.deleted.*"))


def _text_of(file: Path) -> str:
    return file.read_text()


# `cleanup: "delete"`


async def test_delete_archives_the_child_when_its_post_was_sent_and_not_before(state: Path) -> None:
    chat = Chat()
    chat.gate.clear()
    async with spawning_gateway(state, chat=chat) as home:
        child = (await home.spawned("dig", label="digger", cleanup="delete"))["childSessionKey"]
        await home.until("SELECT 1 FROM deliveries WHERE state = 'sending'")
        assert not home.is_archived(child)
        session = await session_of(home.gateway, child)
        chat.gate.set()
        await home.archived(child)
        assert home.spawn_receipts() == ["sent"]
        # It leaves the lists, its label is free, and its transcript is kept under another name.
        listed = await home.gateway.tools(None).sessions_list()
        assert [row["key"] for row in listed["sessions"]] == [MAIN]
        again = await home.spawned("dig", label="digger", cleanup="delete")
        assert again["childSessionKey"] != child
        await home.archived(again["childSessionKey"])
        folder = state / "agents" / "main" / "sessions"
        assert (await home.gateway.store.history(session.session_id, limit=9)).messages
    assert not (folder / f"{session.session_id}.jsonl").exists()
    assert len(list(folder.glob(f"{session.session_id}.jsonl.deleted.*"))) == 1


@pytest.mark.parametrize(
    ("says", "receipt"),
    [
        ({"announce": "ANNOUNCE_SKIP"}, "skipped"),
        ({"task": ModelFailed("no luck", retryable=False)}, "sent"),
        ({"task": Reply(thinking="hm"), "announce": Reply(thinking="hm")}, "sent"),
    ],
)
async def test_delete_archives_however_the_child_ended(state: Path, says: dict[str, Any], receipt: str) -> None:
    async with spawning_gateway(state, says=says) as home:
        child = (await home.spawned("dig", cleanup="delete"))["childSessionKey"]
        await home.archived(child)
        assert home.spawn_receipts() == [receipt]


@pytest.mark.parametrize("cleanup", ["delete", "keep"])
async def test_the_transcript_that_a_post_names_can_be_opened(state: Path, cleanup: str) -> None:
    chat = Chat()
    chat.gate.clear()
    async with spawning_gateway(state, chat=chat) as home:
        child = (await home.spawned("dig", cleanup=cleanup))["childSessionKey"]
        await home.until("SELECT 1 FROM deliveries WHERE state = 'sending'")
        home.clock.move_on(90)  # the chat takes its time
        chat.gate.set()
        await home.until("SELECT 1 FROM deliveries WHERE state = 'sent'")
        if cleanup == "delete":
            await home.archived(child)
    (post,) = chat.texts
    named = Path(post.rpartition("transcript ")[2])
    assert "dig" in _text_of(named)
    async with spawning_gateway(state):
        pass  # a start looks whether files are as they should be, and makes no second one
    live = named.with_name(named.name.partition(".deleted")[0])
    assert _archived_of(live) == ([named] if cleanup == "delete" else [])


async def test_delete_archives_a_child_that_nobody_could_be_told_of(tmp_path: Path) -> None:
    async with spawning_gateway(tmp_path) as home:
        child = (await home.spawned("dig", cleanup="delete"))["childSessionKey"]
        await home.archived(child)
        assert home.spawn_receipts() == ["no_channel"]
        assert len(await home.posts()) == 1


async def test_delete_archives_a_child_whose_requester_was_stopped(state: Path) -> None:
    gate = Gate()
    async with spawning_gateway(state, says={"task": gate.holds("half")}) as home:
        child = (await home.spawned("dig", cleanup="delete"))["childSessionKey"]
        await gate.reached()
        await home.stop()
        await home.over()
        assert home.spawn_receipts() == ["cancelled"]
        await home.moved_on(2)
        await home.archived(child)


@pytest.mark.parametrize(
    ("answer", "receipt"), [(ChannelRefused("no such room"), "failed"), (ChannelSilent("no answer"), "uncertain")]
)
@pytest.mark.parametrize("decision", ["drop", "retry", "reroute"])
@pytest.mark.parametrize("cleanup", ["delete", "keep"])
async def test_a_child_whose_post_did_not_arrive_is_kept_until_a_person_has_decided(
    state: Path, answer: Exception, receipt: str, decision: str, cleanup: str
) -> None:
    async with spawning_gateway(state, chat=Chat(answer)) as home:
        child = (await home.spawned("dig", cleanup=cleanup))["childSessionKey"]
        await home.until("SELECT 1 FROM deliveries WHERE state = ?", receipt)
        await home.moved_on(24 * 60)
        assert not home.is_archived(child)
        ((delivery_id,),) = home.rows("SELECT delivery_id FROM spawns")
        store = home.gateway.store
        match decision:
            case "drop":
                await store.drop_delivery(delivery_id)
            case "retry":
                await store.retry_delivery(delivery_id)
            case "reroute":
                await store.reroute_delivery(delivery_id, Address(channel="chat", to="Other-Room"))
        await home.archived(child)
        assert home.spawn_receipts() == ["dropped" if decision == "drop" else "sent"]
        assert len(home.chat.texts) == (0 if decision == "drop" else 1)


# `cleanup: "keep"`


async def test_keep_leaves_the_child_for_an_hour_after_it_ended(state: Path) -> None:
    async with spawning_gateway(state) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
        assert home.timer(child) == 60
        await home.moved_on(59)
        assert not home.is_archived(child)
        await home.moved_on(1.1)
        await home.archived(child)
        assert home.timer(child) is None


async def test_the_transcript_that_its_post_names_can_still_be_opened_when_it_is_archived(state: Path) -> None:
    async with spawning_gateway(state) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
        (post,) = home.chat.texts
        await home.moved_on(60.1)
        await home.archived(child)
    named = Path(post.rpartition("transcript ")[2])
    for _ in range(2):  # the first of them ends what the process had no time for, and the second changes nothing
        async with spawning_gateway(state):
            pass
        assert "dig" in _text_of(named) and _is_link(named)
        (archived,) = _archived_of(named)
        assert "dig" in _text_of(archived) and not _is_link(archived)


async def test_an_archived_child_can_still_be_read_by_its_requester_and_the_operator(state: Path) -> None:
    Shelf(state).session("agent:main:cron:other", "hello")
    async with spawning_gateway(state) as home:
        child = (await home.spawned("dig", cleanup="delete"))["childSessionKey"]
        await home.archived(child)
        session = await session_of(home.gateway, child)
        for caller in (None, MAIN):
            for name in (child, session.session_id):
                read = await home.gateway.tools(caller).sessions_history(name)
                assert read["archived"] is True and "dig" in str(read["messages"])
        other = await home.gateway.tools("agent:main:cron:other").sessions_history(child)
        assert other["status"] == "forbidden" and "messages" not in other


async def test_how_long_it_is_kept_is_a_setting_and_zero_is_for_ever(state: Path) -> None:
    async with spawning_gateway(state, archiveAfterMinutes=5) as home:
        short = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
        assert home.timer(short) == 5
    async with spawning_gateway(state, archiveAfterMinutes=0) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
        assert home.timer(child) is None
        await home.moved_on(100_000)
        assert not home.is_archived(child)
        assert home.is_archived(short)


async def test_zero_does_not_keep_what_is_to_be_deleted(state: Path) -> None:
    async with spawning_gateway(state, archiveAfterMinutes=0) as home:
        child = (await home.spawned("dig", cleanup="delete"))["childSessionKey"]
        await home.archived(child)


async def test_what_fell_due_while_no_gateway_ran_is_done_at_the_next_start(state: Path) -> None:
    clock = StageClock.held()
    async with spawning_gateway(state, clock=clock) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
    clock.move_on(3 * 3600)
    async with spawning_gateway(state, clock=clock) as home:
        await home.archived(child)


async def test_a_post_that_was_late_is_counted_from_the_childs_end(state: Path) -> None:
    chat = Chat()
    chat.gate.clear()
    async with spawning_gateway(state, chat=chat) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.until("SELECT 1 FROM deliveries WHERE state = 'sending'")
        home.clock.move_on(61 * 60)
        assert not home.is_archived(child)
        chat.gate.set()
        await home.archived(child)


# Never while it is used


async def test_a_child_that_works_for_somebody_is_not_archived(state: Path) -> None:
    gate = Gate()
    async with spawning_gateway(state, says={"task": ["dug", gate.holds("talking")]}) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
        run = await home.gateway.submit(child, "how was it?")
        await gate.reached()
        await home.moved_on(61)
        assert not home.is_archived(child)
        assert home.timer(child) == 1
        gate.open()
        assert (await home.ended(run.id)).reply == "talking"
        await home.moved_on(1.1)
        await home.archived(child)


async def test_a_child_that_has_somebody_waiting_is_not_deleted_under_them(state: Path) -> None:
    """A person's message waits behind the announce; it is answered, and then the child goes."""
    gate, talk = Gate(), Gate()
    says = {"task": ["dug", talk.holds("it was deep")], "announce": gate.holds("the hole is dug")}
    async with spawning_gateway(state, says=says) as home:
        child = (await home.spawned("dig", cleanup="delete"))["childSessionKey"]
        await gate.reached()
        run = await home.gateway.submit(child, "how deep?")
        gate.open()
        await talk.reached()
        await home.until("SELECT 1 FROM deliveries WHERE state = 'sent'")
        assert not home.is_archived(child)
        talk.open()
        assert (await home.ended(run.id)).reply == "it was deep"
        await home.moved_on(1.1)
        await home.archived(child)


async def test_a_child_in_an_exchange_is_not_archived(state: Path) -> None:
    gate = Gate()
    async with spawning_gateway(state, says={"task": ["dug", gate.holds("deep")]}) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
        sent = await home.gateway.tools(MAIN).sessions_send(sessionKey=child, message="how deep?", timeoutSeconds=0)
        assert sent["status"] == "accepted"
        await gate.reached()
        await home.moved_on(61)
        assert not home.is_archived(child)
        gate.open()
        await home.over()
        await home.moved_on(2)
        await home.archived(child)


async def test_a_child_with_a_delivery_of_its_own_that_nobody_settled_is_not_archived(state: Path) -> None:
    async with spawning_gateway(state) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
        home.execute(
            "INSERT INTO deliveries (id, session_key, state, created_at, updated_at) VALUES ('d', ?, 'failed', 0, 0)",
            child,
        )
        await home.moved_on(61)
        assert not home.is_archived(child)
        await home.gateway.store.drop_delivery("d")
        await home.moved_on(2)
        await home.archived(child)


async def test_a_child_that_is_written_to_after_it_was_archived_begins_anew(state: Path) -> None:
    async with spawning_gateway(state, says={"task": ["dug", "who are you?"]}) as home:
        child = (await home.spawned("dig", label="digger", cleanup="delete"))["childSessionKey"]
        await home.archived(child)
        old = (await session_of(home.gateway, child)).session_id
        assert await home.ask("hello", child) == "who are you?"
        session = await session_of(home.gateway, child)
        assert session.archived_at is None
        assert session.session_id != old
        await home.moved_on(1000)
        assert len(await home.posts()) == 1


async def test_a_run_that_spawned_many_leaves_one_timer_each(state: Path) -> None:
    calls = [[spawn(f"dig {n}") for n in range(5)]]
    async with spawning_gateway(state, says={"person": calls}) as home:
        await home.ask()
        await home.over()
        assert home.counts()["timers"] == 5
        await home.moved_on(61)
        await home.until("SELECT 1 WHERE (SELECT count(*) FROM sessions WHERE archived_at IS NOT NULL) = 5")
        assert home.counts()["timers"] == 0


async def test_a_child_that_a_person_deleted_is_left_alone(state: Path) -> None:
    async with spawning_gateway(state) as home:
        child = (await home.spawned("dig"))["childSessionKey"]
        await home.over()
        await home.gateway.runtime.delete(home.gateway.key(child))
        archived_at = (await session_of(home.gateway, child)).archived_at
        await home.moved_on(61)
        assert (await session_of(home.gateway, child)).archived_at == archived_at
