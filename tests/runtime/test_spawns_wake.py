"""`announce: "wake"`: the children of one run wake their requester together, once, with all their results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import call
from backchannel.core.contracts import ModelFailed
from backchannel.core.flows.spawn_texts import WAKE_LINE
from backchannel.core.messages import ProvenanceKind
from backchannel.core.runs import RunState
from backchannel.gateway.app import Gateway
from tests.channels.desk import desk
from tests.support.children import Cast, Family, Gate, config, die_when, family, spawn
from tests.support.clocks import StageClock
from tests.support.far_end import FarEnd
from tests.support.gateways import MAIN, session_of, texts_of
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

SIDE = "agent:main:side"
THREE = [spawn("dig one", label="one"), spawn("dig two"), spawn("dig three")]


def waking(*others: str, **more: Any) -> dict[str, Any]:
    return config(*others, announce="wake", **more)


async def wakes(household: Family, key: str = MAIN) -> list[str]:
    """Read the messages that woke a requester."""
    return [message.text for message in await household.told(key) if message.text.startswith(WAKE_LINE)]


async def told_once(household: Family, *results: str, key: str = MAIN) -> None:
    """Check that a transcript has each result once, whoever brought it, and that nothing is held any more."""
    text = "\n".join(await texts_of(household.gateway, key))
    for result in results:
        assert text.count(f"Result: {result}") == 1, (result, text)
    assert (await session_of(household.gateway, key)).held_posts == 0
    assert not household.rows("SELECT body FROM barriers WHERE state = 'open'")


# The barrier


async def test_three_children_wake_their_requester_once_with_all_results(tmp_path: Path) -> None:
    gates = {word: Gate() for word in ("one", "two", "three")}
    says: dict[str, Any] = {
        "person": [THREE],
        "task": {word: gate.holds(word) for word, gate in gates.items()},
        "announce": {word: f"report {word}" for word in gates},
        "wake": "all three are done",
    }
    async with family(tmp_path, waking(), **says) as household:
        assert await household.ask() == "on it"
        for count, gate in enumerate(gates.values(), 1):
            await gate.reached()
            assert household.kinds("wake") == []
            assert await household.told() == []
            gate.open()
            await household.until(f"SELECT 1 WHERE (SELECT count(*) FROM spawns WHERE state = 'done') = {count}")
        await household.over()
        assert household.kinds("wake") == [("wake", "ok")]
        (message,) = await household.told()
        assert message.provenance is not None
        assert message.provenance.kind is ProvenanceKind.INTERNAL_SYSTEM
        assert message.text.startswith(WAKE_LINE)
        assert '"one"' in message.text
        assert "NO_REPLY" in message.text
        await told_once(household, "report one", "report two", "report three")
        assert (await texts_of(household.gateway))[-1] == "all three are done"
        (prompt,) = household.cast.prompts("wake")
        assert prompt.count("Status: success") == 3


async def test_children_that_end_before_the_run_that_spawned_them_wait_for_it(tmp_path: Path) -> None:
    mine = Gate()
    async with family(tmp_path, waking(), person=[THREE], result=mine.holds("on it")) as household:
        run = await household.gateway.submit(MAIN, "go")
        await mine.reached()
        await household.until("SELECT 1 WHERE (SELECT count(*) FROM spawns WHERE state = 'done') = 3")
        assert household.kinds("wake") == []
        assert (await session_of(household.gateway)).held_posts == 3
        mine.open()
        await household.ended(run.id)
        await household.over()
        assert household.kinds("wake") == [("wake", "ok")]
        assert len(await wakes(household)) == 1
        assert "\n".join(await wakes(household)).count("Status: success") == 3


async def test_each_run_has_a_barrier_of_its_own(tmp_path: Path) -> None:
    slow = Gate()
    says: dict[str, Any] = {"person": [[spawn("slow")], [spawn("quick")], "hello"]}
    says |= {"task": {"slow": slow.holds("slow"), "quick": "quick"}}
    async with family(tmp_path, waking(), **says) as household:
        await household.ask()
        await slow.reached()
        await household.ask("and the other")
        await household.until("SELECT 1 FROM runs WHERE kind = 'wake' AND state = 'ok'")
        slow.open()
        await household.over()
        first, second = await wakes(household)
        assert 'task "quick"' in first and 'task "slow"' not in first
        assert 'task "slow"' in second and 'task "quick"' not in second


async def test_a_spawn_from_outside_a_run_wakes_alone(tmp_path: Path) -> None:
    async with family(tmp_path, waking(), wake="noted") as household:
        await household.spawned("dig", key=None)
        await household.over()
        assert household.kinds() == [("child", "ok"), ("announce", "ok"), ("wake", "ok")]
        await told_once(household, "the hole is dug")


async def test_if_all_skip_there_is_no_wake(tmp_path: Path) -> None:
    async with family(tmp_path, waking(), person=[THREE], announce="ANNOUNCE_SKIP") as household:
        await household.ask()
        await household.over()
        assert household.kinds("wake") == []
        assert await household.told() == []
        await told_once(household)


async def test_those_that_skip_are_not_named_and_those_that_fail_are(tmp_path: Path) -> None:
    says: dict[str, Any] = {
        "person": [THREE],
        "task": {"one": "dug", "two": ModelFailed("no luck", retryable=False), "three": "dug"},
        "announce": {"one": "ANNOUNCE_SKIP", "three": "the third hole"},
    }
    async with family(tmp_path, waking(), **says) as household:
        await household.ask()
        await household.over()
        (text,) = await wakes(household)
        assert "dig one" not in text
        assert "Status: error" in text and "no luck" in text
        assert "Result: the third hole" in text
        assert household.spawn_receipts().count("skipped") == 1


async def test_a_wake_may_say_nothing(tmp_path: Path) -> None:
    async with family(tmp_path, waking(), person=[[spawn("dig")], "hello"], wake="NO_REPLY") as household:
        await household.ask()
        await household.over()
        assert household.kinds("wake") == [("wake", "ok")]
        assert [state for state, _ in household.receipts()] == ["no_channel"]
        assert await household.ask("and?") == "hello"


async def test_a_wake_can_spawn_again_and_is_woken_again(tmp_path: Path) -> None:
    says: dict[str, Any] = {
        "person": [[spawn("first")]],
        "wake": [[spawn("second")], "that is all"],
        "announce": {"first": "first hole", "second": "second hole"},
    }
    async with family(tmp_path, waking(), **says) as household:
        await household.ask()
        await household.over()
        assert household.kinds("wake") == [("wake", "ok"), ("wake", "ok")]
        await told_once(household, "first hole", "second hole")
        assert (await texts_of(household.gateway))[-1] == "that is all"


async def test_a_wake_that_fails_has_told_the_results_and_can_be_retried(tmp_path: Path) -> None:
    says: dict[str, Any] = {"person": [[spawn("dig")]], "wake": [ModelFailed("busy", retryable=False), "thanks"]}
    async with family(tmp_path, waking(), **says) as household:
        await household.ask()
        await household.over()
        assert household.kinds("wake") == [("wake", "error")]
        await told_once(household, "the hole is dug")
        wake = await household.run_of("wake")
        await household.gateway.store.retry_run(wake.id)
        assert (await household.ended(wake.id)).reply == "thanks"
        await told_once(household, "the hole is dug")


# A deadline


async def test_after_the_deadline_the_requester_is_woken_with_what_there_is_and_once_more_with_the_rest(
    tmp_path: Path,
) -> None:
    late = Gate()
    says: dict[str, Any] = {
        "person": [THREE],
        "task": {"one": "dug", "two": late.holds("two"), "three": late.holds("three")},
        "announce": {word: f"report {word}" for word in ("one", "two", "three")},
    }
    async with family(tmp_path, waking(wakeAfterSeconds=30), clock=StageClock(), **says) as household:
        await household.ask()
        await household.until("SELECT 1 FROM runs WHERE kind = 'wake' AND state = 'ok'")
        (first,) = await wakes(household)
        assert "report one" in first and "report t" not in first
        late.open()
        await household.over()
        _, second = await wakes(household)
        assert "report two" in second and "report three" in second
        assert household.kinds("wake") == [("wake", "ok")] * 2
        await told_once(household, "report one", "report two", "report three")


async def test_the_deadline_counts_from_the_end_of_the_run_that_spawned(tmp_path: Path) -> None:
    late, mine, clock = Gate(), Gate(), StageClock()
    says: dict[str, Any] = {
        "person": [[spawn("quick"), spawn("late")]],
        "result": mine.holds("on it"),
        "task": {"quick": "dug", "late": late.holds("late")},
    }
    async with family(tmp_path, waking(wakeAfterSeconds=30), clock=clock, **says) as household:
        run = await household.gateway.submit(MAIN, "go")
        await mine.reached()
        await household.until("SELECT 1 FROM spawns WHERE state = 'done'")
        clock.move_on(1_000)
        assert not household.rows("SELECT 1 FROM timers WHERE kind = 'barrier'")
        assert household.kinds("wake") == []
        mine.open()
        await household.ended(run.id)
        await household.until("SELECT 1 FROM runs WHERE kind = 'wake' AND state = 'ok'")
        late.open()
        await household.over()
        assert household.kinds("wake") == [("wake", "ok")] * 2


async def test_a_deadline_that_fell_due_while_no_gateway_ran_is_kept_at_the_next_start(tmp_path: Path) -> None:
    late, clock = Gate(), StageClock.held()
    settings = waking(wakeAfterSeconds=30)
    says: dict[str, Any] = {"task": {"quick": "dug", "late": late.holds("late")}}
    calls = [[spawn("quick"), spawn("late")]]
    async with family(tmp_path, settings, clock=clock, person=calls, **says) as household:
        await household.ask()
        await household.until("SELECT 1 FROM spawns WHERE state = 'done'")
        assert household.kinds("wake") == []
    clock.move_on(31)
    async with family(tmp_path, settings, clock=clock, **says) as household:
        await household.until("SELECT 1 FROM runs WHERE kind = 'wake' AND state = 'ok'")
        late.open()
        await household.over()
        assert household.kinds("wake") == [("wake", "ok")] * 2


# Somebody talks in between


def quick_and(late: Gate) -> dict[str, Any]:
    """Let two sub-agents be started, of which one is held back."""
    return {
        "person": [[spawn("quick"), spawn("late")], "so far one"],
        "task": {"quick": "dug", "late": late.holds("late")},
        "announce": {"quick": "the quick hole", "late": "the late hole"},
    }


async def test_a_person_who_talks_in_between_has_the_held_results_told_and_the_wake_only_names_them(
    tmp_path: Path,
) -> None:
    late = Gate()
    async with family(tmp_path, waking(), **quick_and(late)) as household:
        await household.ask()
        await household.until("SELECT 1 FROM spawns WHERE state = 'done'")
        assert await household.ask("how far are you?") == "so far one"
        assert "the quick hole" in household.cast.prompts("person")[-1]
        late.open()
        await household.over()
        (text,) = await wakes(household)
        assert "the late hole" in text
        assert "the quick hole" not in text
        assert 'task "quick": its result is above already' in text
        await told_once(household, "the quick hole", "the late hole")


async def test_a_requester_that_was_told_everything_is_still_woken(tmp_path: Path) -> None:
    """The run that spawned is at work: what it is told comes with the next run, which is the person's."""
    mine = Gate()
    says: dict[str, Any] = {"person": [[spawn("dig")], "I know"], "result": mine.holds("on it")}
    async with family(tmp_path, waking(), **says) as household:
        run = await household.gateway.submit(MAIN, "go")
        await mine.reached()
        await household.until("SELECT 1 FROM spawns WHERE state = 'done'")
        waiting = await household.gateway.submit(MAIN, "done?")
        mine.open()
        await household.ended(run.id)
        assert (await household.ended(waiting.id)).reply == "I know"
        await household.over()
        assert household.kinds("wake") == [("wake", "ok")]
        await told_once(household, "the hole is dug")


# Stopped, reset, deleted


async def test_results_that_are_held_when_the_requester_is_stopped_become_notes(tmp_path: Path) -> None:
    late = Gate()
    says: dict[str, Any] = {
        "person": [[spawn("quick"), spawn("late")], "hello"],
        "task": {"quick": "dug", "late": late.holds("half")},
    }
    async with family(tmp_path, waking(), **says) as household:
        await household.ask()
        await household.until("SELECT 1 FROM spawns WHERE state = 'done'")
        assert await household.stop() == "Stopped 1 sub-agent."
        await household.over()
        assert household.kinds("wake") == []
        assert [message.text[:12] for message in await household.told()] == ["Status: succ", "[1 sub-agent"]
        await told_once(household, "the hole is dug")
        assert await household.ask("and?") == "hello"


async def test_a_wake_that_is_stopped_in_the_queue_leaves_its_results_as_a_note_and_can_be_retried(
    tmp_path: Path,
) -> None:
    busy, gate = Gate(), Gate()
    says: dict[str, Any] = {"person": [[spawn("dig")], busy.holds("half a word"), "thanks"], "wake": "thanks"}
    async with family(tmp_path, waking(), task=gate.holds("dug"), **says) as household:
        await household.ask()
        await gate.reached()
        talking = await household.gateway.submit(MAIN, "talk to me")
        await busy.reached()
        gate.open()
        await household.until("SELECT 1 FROM runs WHERE kind = 'wake'")
        assert await household.stop() == "Stopped 2 runs."
        await household.ended(talking.id)
        await household.over()
        assert household.kinds("wake") == [("wake", "aborted")]
        assert household.cast.requests("wake") == []
        await told_once(household, "the hole is dug")
        wake = await household.run_of("wake")
        await household.gateway.store.retry_run(wake.id)
        assert (await household.ended(wake.id)).reply == "thanks"
        await told_once(household, "the hole is dug")


async def test_a_wake_of_a_deleted_session_can_be_retried_when_the_session_is_used_again(tmp_path: Path) -> None:
    side, busy, gate = "agent:main:side", Gate(), Gate()
    says: dict[str, Any] = {"person": [[spawn("dig")], busy.holds("half a word"), "back again"], "wake": "thanks"}
    async with family(tmp_path, waking(), task=gate.holds("dug"), **says) as household:
        await household.ask(key=side)
        await gate.reached()
        await household.gateway.submit(side, "talk to me")
        await busy.reached()
        gate.open()
        await household.until("SELECT 1 FROM runs WHERE kind = 'wake'")
        await household.gateway.runtime.delete(household.gateway.key(side))
        await household.over()
        assert await household.ask("hello", key=side) == "back again"
        wake = await household.run_of("wake")
        await household.gateway.store.retry_run(wake.id)
        assert (await household.ended(wake.id)).reply == "thanks"
        (asked,) = household.cast.requests("wake")
        assert "the hole is dug" in asked.messages[-1].text


async def test_a_wake_in_the_queue_outlives_a_reset(tmp_path: Path) -> None:
    busy, gate = Gate(), Gate()
    says: dict[str, Any] = {"person": [[spawn("dig")], busy.holds("half")], "task": gate.holds("dug")}
    async with family(tmp_path, waking(), **says) as household:
        await household.ask()
        await gate.reached()
        await household.gateway.submit(MAIN, "talk to me")
        await busy.reached()
        gate.open()
        await household.until("SELECT 1 FROM runs WHERE kind = 'wake'")
        await household.gateway.store.reset_session(household.gateway.key(MAIN))
        await household.over()
        assert household.kinds("wake") == [("wake", "ok")]
        assert len(await wakes(household)) == 1
        await told_once(household, "the hole is dug")


@pytest.mark.parametrize("told", [False, True])
async def test_a_requester_that_was_reset_meanwhile_is_woken_with_everything(tmp_path: Path, told: bool) -> None:
    late = Gate()
    async with family(tmp_path, waking(), **quick_and(late)) as household:
        await household.ask()
        await household.until("SELECT 1 FROM spawns WHERE state = 'done'")
        if told:
            await household.ask("how far are you?")
        await household.gateway.store.reset_session(household.gateway.key(MAIN))
        late.open()
        await household.over()
        (text,) = await wakes(household)
        assert "the quick hole" in text and "the late hole" in text
        await told_once(household, "the quick hole", "the late hole")


async def test_a_requester_that_is_deleted_is_not_woken(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "state")
    shelf.session(SIDE, "hello")
    late = Gate()
    says: dict[str, Any] = {
        "person": [[spawn("quick"), spawn("late")]],
        "task": {"quick": "dug", "late": late.holds("half")},
    }
    async with family(shelf.state, waking(), **says) as household:
        await household.ask("go", SIDE)
        await household.until("SELECT 1 FROM spawns WHERE state = 'done'")
        await household.gateway.runtime.delete(household.gateway.key(SIDE))
        late.open()
        await household.over()
        assert household.kinds("wake") == []
        assert sorted(household.spawn_receipts()) == ["cancelled", "no_channel"]
        # Who writes to it later begins anew, and is told nothing of it.
        assert await household.ask("hello", SIDE) == "on it"
        await household.over()


async def test_a_run_that_is_retried_and_spawns_again_is_waited_for_again(tmp_path: Path) -> None:
    says: dict[str, Any] = {
        "person": [[spawn("first")]],
        "result": [ModelFailed("busy", retryable=False), [spawn("second")], "on it"],
        "announce": {"first": "first hole", "second": "second hole"},
    }
    async with family(tmp_path, waking(), **says) as household:
        run = await household.gateway.submit(MAIN, "go")
        assert (await household.ended(run.id)).state is RunState.ERROR
        await household.over()
        await household.gateway.store.retry_run(run.id)
        await household.over()
        assert household.kinds("wake") == [("wake", "ok"), ("wake", "ok")]
        await told_once(household, "first hole", "second hole")


# Crashes


async def test_a_process_that_dies_while_results_are_held_loses_none(tmp_path: Path) -> None:
    settings = waking(maxConcurrent=1)
    await die_when(tmp_path, "SELECT 1 FROM spawns WHERE state = 'done'", settings, person=[THREE])
    async with family(tmp_path, settings, announce={"one": "r1", "two": "r2", "three": "r3"}) as household:
        await household.ended("r")
        await household.over()
        text = "\n".join(await texts_of(household.gateway))
        assert text.count("Status: success") == 3
        assert household.kinds("wake") == [("wake", "ok")]


# Where its reply goes


async def test_the_wakes_reply_goes_where_the_spawns_were_asked_for(tmp_path: Path) -> None:
    gate = Gate()
    cast = Cast(person=[[spawn("dig")], "hello"], task=gate.holds("dug"), wake="I have it")
    agents = {
        "list": [{"id": "main", "model": "scripted/test"}],
        "defaults": {"subagents": {"announce": "wake"}},
    }
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=cast.model, agents=agents) as at:
        household = Family(at.gateway, cast, tmp_path / "backchannel.db")
        await at.say(text="go", messageId="1", chatId="Ann-1")
        await gate.reached()
        await far_end.took(1)
        moved = await at.say(text="hello", messageId="2", chatId="Bob-1", senderId="bob")
        await household.ended(moved["runId"])
        gate.open()
        await household.over()
        assert [(message.to, message.text[:9]) for message in far_end.messages] == [
            ("Ann-1", "on it"),
            ("Bob-1", "hello"),
            ("Ann-1", "Status: s"),
            ("Ann-1", "I have it"),
        ]
        (prompt,) = cast.prompts("wake")
        assert "posted to this session's chat" in prompt


async def test_a_child_that_ends_while_its_requester_calls_tools_tears_nothing_apart(tmp_path: Path) -> None:
    ended = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def look() -> str:
            async with asyncio.timeout(20):
                await ended.wait()
            return "seen"

    says: dict[str, Any] = {"person": [THREE], "result": [[call("look"), call("look")], "on it"]}
    async with family(tmp_path, waking(), equip=equip, **says) as household:
        run = await household.gateway.submit(MAIN, "go")
        await household.until("SELECT 1 WHERE (SELECT count(*) FROM spawns WHERE state = 'done') = 3")
        ended.set()
        await household.ended(run.id)
        await household.over()
        assert household.kinds("wake") == [("wake", "ok")]
        assert "\n".join(await wakes(household)).count("Status: success") == 3
