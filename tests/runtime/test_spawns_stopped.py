"""Sub-agents whose requester is stopped, reset or deleted, or whose spawning run is aborted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import call
from backchannel.core.contracts import ToolContext
from backchannel.core.keys import SessionKey
from backchannel.core.messages import ProvenanceKind
from backchannel.gateway.app import Gateway
from backchannel.tools.base import Caller
from backchannel.tools.registry import invoke
from tests.support.children import Family, Gate, config, family, spawn
from tests.support.gateways import MAIN, session_of, texts_of, transcript_of
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

SIDE = "agent:main:side"
"""Not the main session, which cannot be deleted."""
STATES = ("queued", "running", "announcing")


async def stopped_note(household: Family, key: str = MAIN) -> str:
    """Read the only thing that the requester was told."""
    (note,) = await household.told(key)
    assert note.provenance is not None
    assert note.provenance.kind is ProvenanceKind.INTERNAL_SYSTEM
    return note.text


def says(gate: Gate, state: str) -> dict[str, Any]:
    """Make a sub-agent that stands still in a state; a queued one waits for another that does."""
    if state == "announcing":
        return {"task": "dug", "announce": gate.holds("half a report")}
    return {"task": gate.holds("half a hole")}


async def one_in(household: Family, gate: Gate, state: str, key: str = MAIN) -> str:
    """Start a sub-agent, and let it come to a state; returns its key."""
    if state == "queued":  # the only slot is taken by somebody else's
        await household.spawned("dig", key="agent:main:other")
        await gate.reached()
        return str((await household.spawned("dig", key=key, label="digger"))["childSessionKey"])
    result = await household.spawned("dig", key=key, label="digger")
    await gate.reached()
    return str(result["childSessionKey"])


def shelf_with_sessions(tmp_path: Path) -> Path:
    shelf = Shelf(tmp_path / "state")
    shelf.session(SIDE, "hello")
    shelf.session("agent:main:other", "hello")
    return shelf.state


# /stop


@pytest.mark.parametrize("announce", ["post", "wake"])
@pytest.mark.parametrize("state", STATES)
async def test_stop_aborts_a_child_in_any_state_and_tells_once(tmp_path: Path, state: str, announce: str) -> None:
    gate, root = Gate(), shelf_with_sessions(tmp_path)
    settings = config(maxConcurrent=1, announce=announce)
    async with family(root, settings, **says(gate, state)) as household:
        child = await one_in(household, gate, state)
        assert await household.stop() == "Stopped 1 sub-agent."
        gate.open()
        await household.over()
        note = await stopped_note(household)
        assert note.startswith("[1 sub-agent stopped]")
        assert '"digger"' in note and child in note
        receipts = dict(household.rows("SELECT session_key, state FROM deliveries"))
        assert receipts[MAIN] == "cancelled"
        assert household.rows("SELECT text FROM deliveries WHERE session_key = ?", MAIN) == [(None,)]
        runs = [run for run in household.runs() if run[0] == child]
        assert runs[-1][2] == "aborted"
        assert len(runs) == (2 if state == "announcing" else 1)
        assert household.rows("SELECT state FROM spawns WHERE child_key = ?", child) == [("done",)]
        assert not household.rows("SELECT 1 FROM barriers WHERE state = 'open' AND session_key = ?", MAIN)
        assert (await session_of(household.gateway)).held_posts == 0
        # Somebody else's child is not touched, and a second time there is nothing to stop and nothing to tell.
        assert household.rows("SELECT 1 FROM runs WHERE session_key <> ? AND state = 'aborted'", child) == []
        assert await household.stop() == "Nothing is running here."
        assert len(await household.told()) == 1


async def test_stop_aborts_the_run_and_all_its_children_and_says_how_many(tmp_path: Path) -> None:
    gate, mine = Gate(), Gate()
    lines: dict[str, Any] = {
        "person": [[spawn("dig one"), spawn("dig two"), spawn("dig three")], "what next?"],
        "result": mine.holds("I wait"),
        "task": gate.holds("half a hole"),
    }
    async with family(tmp_path, config(maxConcurrent=2), **lines) as household:
        run = await household.gateway.submit(MAIN, "go")
        await mine.reached()
        await gate.reached()
        waiting = await household.gateway.submit(MAIN, "a person's message")
        assert await household.stop() == "Stopped 1 run and 3 sub-agents."
        await household.over()
        assert (await household.ended(run.id)).state.value == "aborted"
        assert household.kinds("child") == [("child", "aborted")] * 3
        assert household.spawn_receipts() == ["cancelled"] * 3
        note = await stopped_note(household)
        assert note.startswith("[3 sub-agents stopped]")
        assert all(task in note for task in ("dig one", "dig two", "dig three"))
        # What people wrote stays and is answered; it knows that the children are gone.
        assert (await household.ended(waiting.id)).reply == "what next?"
        assert "[3 sub-agents stopped]" in household.cast.prompts("person")[-1]


async def test_stop_leaves_children_that_have_ended_alone(tmp_path: Path) -> None:
    async with family(tmp_path) as household:
        await household.spawned("dig")
        await household.over()
        before = household.counts()
        assert await household.stop() == "Nothing is running here."
        assert household.counts() == before
        assert len(await household.posts()) == 1
        assert household.spawn_receipts() == ["no_channel"]


async def test_stop_ends_what_a_child_does_and_leaves_what_people_asked_it(tmp_path: Path) -> None:
    gate = Gate()
    async with family(tmp_path, task=[gate.holds("half a hole"), "about the hole"]) as household:
        result = await household.spawned("dig")
        await gate.reached()
        asked = await household.gateway.submit(result["childSessionKey"], "how is it going?")
        assert await household.stop() == "Stopped 1 sub-agent."
        assert (await household.ended(asked.id)).reply == "about the hole"
        await household.over()
        assert household.kinds() == [("child", "aborted"), ("message", "ok")]
        assert len(await household.told()) == 1


async def test_stop_in_another_session_does_nothing_to_them(tmp_path: Path) -> None:
    gate, root = Gate(), shelf_with_sessions(tmp_path)
    async with family(root, task=gate.holds("dug")) as household:
        await household.spawned("dig", key=SIDE)
        await gate.reached()
        assert await household.stop("agent:main:other") == "Nothing is running here."
        gate.open()
        await household.over()
        assert len(await household.posts(SIDE)) == 1


async def test_a_spawn_that_comes_after_the_stop_is_refused(tmp_path: Path) -> None:
    """A tool that does not let itself be stopped goes on to spawn in the name of the run."""
    begun, refused = asyncio.Event(), asyncio.get_running_loop().create_future()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def stubborn(context: ToolContext) -> str:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                caller = Caller(SessionKey.parse(MAIN), "r/0/9", run_id=context.run_id)
                refused.set_result(await invoke(gateway.parts, caller, "sessions_spawn", {"task": "dig"}))
            return "here anyway"

    async with family(tmp_path, equip=equip, person=[[call("stubborn")]]) as household:
        await household.gateway.submit(MAIN, "go", run_id="r")
        await begun.wait()
        assert await household.stop() == "Stopped 1 run."
        await household.over()
        answer = await refused
        assert (answer.status, "being stopped" in answer.error) == ("forbidden", True)
        caller = Caller(SessionKey.parse(MAIN), "r/0/8", run_id="r")  # and so it is once the run has ended
        late = await invoke(household.gateway.parts, caller, "sessions_spawn", {"task": "dig"})
        assert getattr(late, "status", None) == "forbidden"
        assert household.counts()["spawns"] == 0


async def test_spawns_and_a_stop_at_the_same_time_leave_no_child_behind(tmp_path: Path) -> None:
    """Whichever comes first, nothing goes on after the stop was answered."""
    gate = Gate()
    calls = [[spawn(f"dig {n}") for n in range(6)]]
    async with family(tmp_path, config(maxConcurrent=2), person=calls, task=gate.holds("half")) as household:
        await household.gateway.submit(MAIN, "go", run_id="r")
        await household.until("SELECT 1 FROM tool_calls")
        await household.stop()
        await household.over()
        assert all(state == "aborted" for _, state in household.kinds())
        assert all(state == "cancelled" for state in household.spawn_receipts())
        told = [message.text for message in await household.told()]
        count = len(household.spawns())
        assert [text.split("]")[0] for text in told] == ([] if not count else [_stopped(count)])


def _stopped(count: int) -> str:
    return f"[{count} sub-agent{'' if count == 1 else 's'} stopped"


# Delete, reset, abort


@pytest.mark.parametrize("announce", ["post", "wake"])
@pytest.mark.parametrize("state", STATES)
async def test_deleting_the_requester_aborts_its_children_in_silence(tmp_path: Path, state: str, announce: str) -> None:
    gate, root = Gate(), shelf_with_sessions(tmp_path)
    settings = config(maxConcurrent=1, announce=announce)
    async with family(root, settings, **says(gate, state)) as household:
        child = await one_in(household, gate, state, SIDE)
        session_id = (await session_of(household.gateway, SIDE)).session_id
        await household.gateway.runtime.delete(household.gateway.key(SIDE))
        gate.open()
        await household.over()
        assert household.rows("SELECT state FROM deliveries WHERE session_key = ?", SIDE) == [("cancelled",)]
        assert [run[2] for run in household.runs() if run[0] == child][-1] == "aborted"
        said = (await household.gateway.store.history(session_id, limit=50)).messages
        assert [message.text for message in said] == ["hello"]
        assert household.rows("SELECT 1 FROM inbox") == []


@pytest.mark.parametrize("state", STATES)
async def test_resetting_the_requester_lets_its_children_go_on(tmp_path: Path, state: str) -> None:
    gate, root = Gate(), shelf_with_sessions(tmp_path)
    async with family(root, config(maxConcurrent=1), **says(gate, state)) as household:
        await one_in(household, gate, state, SIDE)
        old = (await session_of(household.gateway, SIDE)).session_id
        await household.gateway.store.reset_session(household.gateway.key(SIDE))
        gate.open()
        await household.over()
        (post,) = await household.posts(SIDE)
        assert post["Status"] == "success"
        assert (await session_of(household.gateway, SIDE)).session_id != old
        assert [m.text for m in (await household.gateway.store.history(old, limit=9)).messages] == ["hello"]
        assert household.rows("SELECT state FROM deliveries WHERE session_key = ?", SIDE) == [("no_channel",)]


@pytest.mark.parametrize("announce", ["post", "wake"])
async def test_aborting_the_run_that_spawned_lets_its_children_go_on(tmp_path: Path, announce: str) -> None:
    gate, mine = Gate(), Gate()
    lines: dict[str, Any] = {"person": [[spawn("dig")]], "result": mine.holds("I wait"), "task": gate.holds("dug")}
    async with family(tmp_path, config(announce=announce), **lines) as household:
        run = await household.gateway.submit(MAIN, "go")
        await mine.reached()
        await gate.reached()
        assert await household.gateway.runtime.abort(MAIN, run.id) == [run.id]
        await household.ended(run.id)
        gate.open()
        await household.over()
        assert household.kinds("child", "announce") == [("child", "ok"), ("announce", "ok")]
        assert household.spawn_receipts() == ["no_channel"]
        assert household.kinds("wake") == ([] if announce == "post" else [("wake", "ok")])
        text = "\n".join(await texts_of(household.gateway))
        assert text.count("Status: success") == 1


async def test_a_requester_that_is_reset_while_it_works_gets_the_result_in_its_new_transcript(tmp_path: Path) -> None:
    gate, mine = Gate(), Gate()
    lines: dict[str, Any] = {"person": [[spawn("dig")]], "result": mine.holds("I wait"), "task": gate.holds("dug")}
    async with family(tmp_path, **lines) as household:
        run = await household.gateway.submit(MAIN, "go")
        await mine.reached()
        await gate.reached()
        await household.gateway.store.reset_session(household.gateway.key(MAIN))
        await household.ended(run.id)
        gate.open()
        await household.over()
        (message,) = await transcript_of(household.gateway)
        assert message.text.startswith("Status: success")
