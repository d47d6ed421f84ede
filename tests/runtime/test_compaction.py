"""Long conversations: their older part becomes a summary, in one commit, and nobody loses a word by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backchannel.agents.scripted import Reply, Scripted, call
from backchannel.core.compaction.entry import compaction_line
from backchannel.core.compaction.values import CompactionState
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.cut import NO_CUT, Cut, read_cut
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, Usage, text_content
from backchannel.core.runs import RunState
from backchannel.gateway.app import Gateway
from backchannel.runtime.compaction import MOST_AT_ONCE, CompactionResult, _asked_job
from backchannel.storage.units.imports import Batch, MessageOffered
from tests.support.clocks import AheadClock
from tests.support.gateways import CONFIG, MAIN, ended, running, session_of, transcript_of
from tests.support.remembering import Remembering, is_summary

pytestmark = pytest.mark.anyio

FILLER = "we talk about the weather for a while, and nothing of it matters. " * 12
SETTINGS: dict[str, Any] = {**CONFIG, "tools": {"deny": ["*"]}}


async def say(gateway: Gateway, *texts: str) -> list[str]:
    """Say something, one message after the other; returns the replies."""
    return [await gateway.ask("main", text) for text in texts]


async def settled(gateway: Gateway) -> None:
    """Wait for all summaries that are being made beside the lanes."""
    compaction = gateway.runtime.compaction
    while waiting := [*compaction._tasks.values(), *compaction._asked]:
        await asyncio.gather(*waiting, return_exceptions=True)


async def cut_of(gateway: Gateway) -> Cut:
    session = await session_of(gateway)
    return read_cut((await gateway.store.context(session.session_id, max_bytes=1)).head.cut)


async def spent_by_day(gateway: Gateway) -> list[float]:
    """Add up the usage of all days: tokens in and out, and cost."""
    days = (await gateway.store.spending(since=0, until=1 << 60)).days
    return [sum(day.tokens_in for day in days), sum(day.tokens_out for day in days), sum(day.cost for day in days)]


def entries(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.compaction is not None]


async def grown(gateway: Gateway, turns: int = 26) -> None:
    """Let the conversation grow above the mark."""
    for n in range(turns):
        await say(gateway, f"message {n}: {FILLER}")
        await settled(gateway)


async def begun(gateway: Gateway, reached: asyncio.Event) -> None:
    """Let the conversation grow until its summary is being made."""
    while not gateway.runtime.compaction._tasks:
        await say(gateway, f"and then: {FILLER}")
    await reached.wait()


async def test_a_fact_told_long_ago_is_answered_from_the_summary(tmp_path: Path) -> None:
    scene = Remembering()
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, "fact harbour is Varna")
        await grown(gateway)
        assert await say(gateway, "what is harbour?") == ["Varna"]
        transcript = await transcript_of(gateway)
        (entry, *_) = entries(transcript)
        assert entry.role is Role.SYSTEM and entry.compaction is not None
        assert entry.compaction.messages >= 10 and entry.compaction.model == "scripted/test"
        assert entry.compaction.tokens_after < entry.compaction.tokens_before
        assert "fact harbour is Varna" in entry.text
        assert "compacted" in compaction_line(entry.compaction)
        compaction = gateway.runtime.compaction
        assert not (compaction._ends or compaction._ready or compaction._making), "nothing is kept of it"
        last = scene.asked[-1].messages[0].text
        assert "summary of" in last and "message 0:" not in last
        assert any(message.text.startswith("message 0:") for message in transcript)
        assert not scene.model.refused


async def test_what_a_summary_used_counts_for_its_session_and_its_day_cached_tokens_too(tmp_path: Path) -> None:
    used = Usage(input=10, output=7, cache_read=200, cache_write=3, cost=0.5)
    scene = Remembering(summary=lambda request: Reply(text="all of it", usage=used))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, *(f"{n}: {FILLER}" for n in range(6)))
        before, spent = await session_of(gateway), await spent_by_day(gateway)
        assert (await gateway.runtime.compaction.asked(before, None)).entry is not None
        after, spent_then = await session_of(gateway), await spent_by_day(gateway)
    assert (after.tokens_in - before.tokens_in, after.tokens_out - before.tokens_out) == (213, 7)
    assert (after.cost or 0) - (before.cost or 0) == pytest.approx(0.5)
    assert [now - then for now, then in zip(spent_then, spent, strict=True)] == pytest.approx([213, 7, 0.5])


async def test_nobody_waits_for_a_summary_below_the_hard_mark(tmp_path: Path) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    scene = Remembering(summary=lambda request: Reply(text="all of it", gate=gate, reached=reached))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await begun(gateway, reached)
        assert (await say(gateway, "short")) == ["noted"]
        assert not entries(await transcript_of(gateway))
        gate.set()
        await settled(gateway)
        assert len(entries(await transcript_of(gateway))) == 1


async def test_a_run_above_the_hard_mark_waits_for_the_summary_and_goes_on_from_it(tmp_path: Path) -> None:
    scene = Remembering()
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, "fact ship is Ada", *(f"{n}: {FILLER}" for n in range(22)))
        assert not scene.summaries
        assert await say(gateway, f"what is ship? {FILLER * 16}") == ["Ada"]
        assert scene.summaries
        (entry,) = entries(await transcript_of(gateway))
        asked, told = (await transcript_of(gateway))[-3], (await transcript_of(gateway))[-1]
        assert asked.role is Role.USER and told.text == "Ada"
        assert told.moved == "the older part was summarised"
        assert not scene.model.refused and entry.usage is not None


async def test_a_summary_that_fails_is_tried_once_in_a_run_and_the_oldest_is_left_out(tmp_path: Path) -> None:
    scene = Remembering(summary=lambda request: ModelFailed("no quota", retryable=False))
    tools: list[str] = []

    def reply(request: ModelRequest) -> Scripted | None:
        return [call("look", n=len(tools))] if len(tools) < 3 and "please look" in str(request.messages) else None

    scene._reply = reply
    config = {**CONFIG, "tools": {"allow": ["look"]}}

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def look(n: int) -> str:
            tools.append("looked")
            return FILLER * 3

    async with running(tmp_path, scene.model, config=config, equip=equip) as gateway:
        await say(gateway, *(f"{n}: {FILLER}" for n in range(22)))
        run = await gateway.submit("main", f"please look {FILLER * 16}")
        await ended(gateway, run.id)
        await settled(gateway)
        assert tools == ["looked"] * 3
        assert 1 <= len(scene.summaries) <= 2  # once in the way, and once beside when the run had ended
        replies = [message.moved or "" for message in await transcript_of(gateway) if message.role is Role.ASSISTANT]
        assert any("left out" in moved and "no quota" in moved for moved in replies)
        assert "no quota" in (gateway.runtime.compaction.health()["compaction"].error or "")
        assert not scene.model.refused


@pytest.mark.parametrize("nothing", ["", "NO_REPLY", "x" * 60_000])
async def test_a_summary_that_says_nothing_or_too_much_is_no_summary(tmp_path: Path, nothing: str) -> None:
    scene = Remembering(summary=lambda request: nothing or Reply(text=""))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await grown(gateway)
        assert scene.summaries and not entries(await transcript_of(gateway))


async def test_nothing_is_written_between_a_call_and_its_result(tmp_path: Path) -> None:
    calling, go = asyncio.Event(), asyncio.Event()
    gate, reached = asyncio.Event(), asyncio.Event()
    scene = Remembering(summary=lambda request: Reply(text="fact a is b", gate=gate, reached=reached))
    scene._reply = lambda request: (
        [call("wait")] if request.messages[-1].text == "use the tool" else None  # the result is not a question
    )

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def wait() -> str:
            calling.set()
            await go.wait()
            return "waited"

    config = {**CONFIG, "tools": {"allow": ["wait"]}}
    async with running(tmp_path, scene.model, config=config, equip=equip) as gateway:
        await begun(gateway, reached)
        run = await gateway.submit("main", "use the tool")
        await calling.wait()
        gate.set()
        session = await session_of(gateway)
        await gateway.runtime.compaction._begun(session.session_id)
        assert not entries(await transcript_of(gateway))
        go.set()
        await ended(gateway, run.id)
        await settled(gateway)
        roles = [message.role for message in (await transcript_of(gateway))[-5:]]
        assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.SYSTEM, Role.ASSISTANT]
        assert not scene.model.refused


async def test_a_reset_meanwhile_drops_the_summary_quietly(tmp_path: Path) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    scene = Remembering(summary=lambda request: Reply(text="old things", gate=gate, reached=reached))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await begun(gateway, reached)
        await gateway.store.reset_session(SessionKey.parse(MAIN))
        gate.set()
        await settled(gateway)
        assert not entries(await transcript_of(gateway))
        assert await cut_of(gateway) == Cut()
        assert await say(gateway, "hello") == ["noted"]


async def test_an_undone_summary_gives_the_view_back_and_says_so(tmp_path: Path) -> None:
    scene = Remembering()
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, "fact harbour is Varna")
        await grown(gateway)
        assert (await cut_of(gateway)).summary_id is not None
        undone = await gateway.runtime.compaction.undo(MAIN)
        assert undone.state is CompactionState.DONE and undone.entry is not None
        assert (await session_of(gateway)).total_tokens == undone.entry.tokens_before
        cut = await cut_of(gateway)
        assert (cut.summary_id, cut.from_seq, cut.is_undone) == (None, 0, True)
        made = len(scene.summaries)
        await say(gateway, "what is harbour?")
        await settled(gateway)
        assert len(scene.summaries) == made, "a person took it back: it is not made again below the hard mark"
        assert "fact harbour is Varna" in scene.asked[-1].messages[0].text
        kept = entries(await transcript_of(gateway))
        assert [entry.compaction.undoes for entry in kept if entry.compaction] == [None, kept[0].id]
        assert (await gateway.runtime.compaction.undo(MAIN)).state is CompactionState.GONE
        assert not scene.model.refused


async def test_a_request_that_the_provider_finds_too_long_is_sent_again_shorter(tmp_path: Path) -> None:
    scene = Remembering(window=100_000)

    def too_long(request: ModelRequest) -> Scripted | None:
        size = sum(len(message.text) for message in request.messages) // 4
        told = f"maximum context length is 4000 tokens, you sent {size}"
        return ModelFailed(told, retryable=False, is_too_long=True, limit_tokens=4000) if size > 3000 else None

    scene._reply = too_long
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, "fact ship is Ada", *(f"{n}: {FILLER}" for n in range(20)))
        assert await say(gateway, "what is ship?") == ["Ada"]
        cut = await cut_of(gateway)
        assert cut.window is not None and cut.window <= 4000 and cut.window_of == "scripted/test"
        assert not scene.model.refused


async def test_a_model_that_finds_every_request_too_long_ends_the_run_with_a_clear_error(tmp_path: Path) -> None:
    scene = Remembering(window=100_000)
    scene._reply = lambda request: ModelFailed("too long", retryable=False, is_too_long=True)
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        run = await gateway.submit("main", FILLER * 40)
        failed = await ended(gateway, run.id)
        assert failed.error_code == "model_failed" and "too long" in (failed.error or "")
        assert len(scene.asked) <= 5


async def test_a_window_that_a_provider_called_too_small_is_tried_whole_again_after_a_day(tmp_path: Path) -> None:
    scene = Remembering(window=100_000)
    is_wrong = True

    def wrong_once(request: ModelRequest) -> Scripted | None:
        nonlocal is_wrong
        fails, is_wrong = is_wrong and "wrong" in request.messages[-1].text, False
        return ModelFailed("too long", retryable=False, is_too_long=True, limit_tokens=2_000) if fails else None

    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, "fact ship is Ada", *(f"{n}: {FILLER}" for n in range(20)))
        scene._reply = wrong_once
        assert await say(gateway, "wrong: what is ship?") == ["Ada"]
        await settled(gateway)
        assert (await cut_of(gateway)).window == 2_000
    async with running(tmp_path, scene.model, config=SETTINGS, clock=AheadClock(25 * 3600)) as gateway:
        await say(gateway, "and now?")
        assert (await cut_of(gateway)).window is None
        assert (await transcript_of(gateway))[-1].moved == "the model's whole window is tried again"
        await say(gateway, "and now?")
        assert (await transcript_of(gateway))[-1].moved is None


async def test_a_provider_that_calls_a_short_request_too_long_narrows_nothing(tmp_path: Path) -> None:
    scene = Remembering(window=100_000)
    scene._reply = lambda request: ModelFailed("too long", retryable=False, is_too_long=True, limit_tokens=128_000)
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        failed = await ended(gateway, (await gateway.submit("main", "hello")).id)
        assert failed.error_code == "model_failed" and len(scene.asked) == 1
        assert await cut_of(gateway) == NO_CUT


async def test_a_summary_is_asked_for_with_the_model_of_the_settings(tmp_path: Path) -> None:
    scene, writer = Remembering(), Remembering(ref="scripted/cheap", window=4_000)
    config = {
        "agents": {**CONFIG["agents"], "defaults": {"context": {"model": "scripted/cheap"}}},
        "tools": {"deny": ["*"]},
    }
    async with running(tmp_path, scene.model, writer.model, config=config) as gateway:
        await say(gateway, "fact ship is Ada")
        await grown(gateway)
        assert not scene.summaries
        assert len(writer.summaries) > 1, "it does not fit the small window at once"
        assert all(is_summary(request) for request in writer.model.requests)
        assert await say(gateway, "what is ship?") == ["Ada"]


async def test_a_model_that_always_fails_is_asked_for_summaries_ever_more_seldom(tmp_path: Path) -> None:
    scene = Remembering(summary=lambda request: ModelFailed("no quota", retryable=False))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await grown(gateway, 70)
        assert 2 <= len(scene.summaries) <= 10
        assert not scene.model.refused


async def test_an_undo_during_a_run_is_carried_out_when_the_run_has_ended(tmp_path: Path) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    scene = Remembering()
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await grown(gateway)
        held = Reply(text="later", gate=gate, reached=reached)
        scene._reply = lambda request: held if request.messages[-1].text.endswith("wait") else None
        run = await gateway.submit("main", "wait")
        await reached.wait()
        assert (await gateway.runtime.compaction.undo(MAIN)).state is CompactionState.BUSY
        assert not (await cut_of(gateway)).is_undone
        gate.set()
        await ended(gateway, run.id)
        await settled(gateway)
        assert (await cut_of(gateway)).is_undone
        *_, last = entries(await transcript_of(gateway))
        assert last.compaction is not None and last.compaction.undoes is not None


async def test_a_summary_that_a_run_wrote_and_a_person_took_back_is_not_written_again(tmp_path: Path) -> None:
    scene = Remembering()
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, *(f"message {n}: {FILLER}" for n in range(6)))
        compaction, session = gateway.runtime.compaction, await session_of(gateway)
        agent = compaction._agents.get(session.agent_id)
        job = _asked_job(session, agent, compaction._models.get(agent.model), None)
        made = await compaction._summaries.make(job)
        assert await gateway.store.commit_compaction(made) is CompactionState.DONE
        assert (await compaction.undo(MAIN)).state is CompactionState.DONE
        result = await compaction._written(made)
        assert result.reason == "the conversation was changed meanwhile"
        assert (await cut_of(gateway)).is_undone


async def test_a_run_that_is_stopped_while_it_waits_for_a_summary_ends_and_writes_none(tmp_path: Path) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    scene = Remembering(summary=lambda request: Reply(text="all of it", gate=gate, reached=reached))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, *(f"{n}: {FILLER}" for n in range(22)))
        run = await gateway.submit("main", f"what now? {FILLER * 16}")
        await reached.wait()
        await gateway.runtime.abort(MAIN, run.id)
        assert (await ended(gateway, run.id)).state is RunState.ABORTED
        assert not entries(await transcript_of(gateway))
        gate.set()
        assert await say(gateway, "hello") == ["noted"]
        assert not scene.model.refused


async def test_an_undo_meanwhile_drops_the_summary_that_was_being_made(tmp_path: Path) -> None:
    scene = Remembering()
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await grown(gateway)
        gate, reached = asyncio.Event(), asyncio.Event()
        scene._summary = lambda request: Reply(text="of the second part", gate=gate, reached=reached)
        await begun(gateway, reached)
        assert (await gateway.runtime.compaction.undo(MAIN)).state is CompactionState.DONE
        gate.set()
        await settled(gateway)
        cut = await cut_of(gateway)
        assert cut.is_undone and cut.summary_id is None
        assert "of the second part" not in str(await transcript_of(gateway))
        assert not scene.model.refused


async def test_a_person_who_asked_is_answered_though_a_run_makes_the_summary_first(tmp_path: Path) -> None:
    gate = asyncio.Event()
    scene = Remembering(summary=lambda request: Reply(text="all of it", gate=gate))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        compaction, others = gateway.runtime.compaction, list[asyncio.Task[CompactionResult]]()
        for n in range(MOST_AT_ONCE):  # others take all places
            for text in ("one", "two", "three"):
                await gateway.ask(f"agent:main:other{n}", f"{text}: {FILLER}")
            other = await gateway.store.session(f"agent:main:other{n}")
            assert other is not None
            others.append(asyncio.create_task(compaction.asked(other, None)))
        await say(gateway, *(f"{n}: {FILLER}" for n in range(20)))
        asked = asyncio.create_task(compaction.asked(await session_of(gateway), None))
        await asyncio.sleep(0)  # it begins
        assert len(compaction._tasks) == MOST_AT_ONCE + 1
        run = await gateway.submit("main", f"and now? {FILLER * 16}")
        told = await asked
        assert told.entry is None and told.reason is not None and "a run of this session" in told.reason
        gate.set()
        await ended(gateway, run.id)
        assert len(entries(await transcript_of(gateway))) == 1
        await asyncio.gather(*others)


async def test_a_summary_that_was_asked_for_counts_the_prompt_as_the_last_request_did(tmp_path: Path) -> None:
    scene = Remembering()
    scene._reply = lambda request: Reply(text="noted", usage=Usage(input=5_000, output=100))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, *(f"{n}: {FILLER}" for n in range(8)))
        session = await session_of(gateway)
        made = await gateway.runtime.compaction.asked(session, None)
        assert made.entry is not None
        assert made.entry.tokens_before == session.total_tokens == 5_100
        assert 2_000 < made.entry.tokens_after < 5_100
        assert (await session_of(gateway)).total_tokens == made.entry.tokens_after


async def test_messages_that_an_import_adds_meanwhile_stand_behind_what_the_summary_covers(tmp_path: Path) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    scene = Remembering(summary=lambda request: Reply(text="fact ship is Ada", gate=gate, reached=reached))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, "fact ship is Ada", *(f"{n}: {FILLER}" for n in range(6)))
        session, here = await session_of(gateway), await transcript_of(gateway)
        asked = asyncio.create_task(gateway.runtime.compaction.asked(session, None))
        await reached.wait()
        new = [
            Message(id="n1", role=Role.USER, content=text_content("fact port is Oslo"), timestamp=here[-1].timestamp),
            Message(id="n2", role=Role.ASSISTANT, content=text_content("noted"), timestamp=here[-1].timestamp),
        ]
        offered = [MessageOffered(line, (each.id,), each) for line, each in enumerate([*here, *new])]
        taken = await gateway.store.take_session(session, Batch(0, offered, is_last=True))
        assert (taken.refusal, taken.written) == (None, 2)
        gate.set()
        entry = (await asked).entry
        cut, kept = await cut_of(gateway), await transcript_of(gateway)
        assert entry is not None and cut.covered <= len(here) and entry.through_message_id == kept[cut.covered - 1].id
        assert [message.id for message in kept[len(here) :]] == ["n1", "n2", cut.summary_id]
        assert await say(gateway, "what is ship?", "what is port?") == ["Ada", "Oslo"]
        assert not scene.model.refused


async def test_an_import_of_another_session_under_the_same_key_leaves_the_summary_alone(tmp_path: Path) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    scene = Remembering(summary=lambda request: Reply(text="fact ship is Ada", gate=gate, reached=reached))
    async with running(tmp_path, scene.model, config=SETTINGS) as gateway:
        await say(gateway, "fact ship is Ada", *(f"{n}: {FILLER}" for n in range(6)))
        session = await session_of(gateway)
        asked = asyncio.create_task(gateway.runtime.compaction.asked(session, None))
        await reached.wait()
        other = msgspec.structs.replace(session, session_id="0" * 32)
        said = Message(id="n1", role=Role.USER, content=text_content("hello"), timestamp=1)
        taken = await gateway.store.take_session(other, Batch(0, [MessageOffered(1, ("n1",), said)], is_last=True))
        assert taken.refusal is None and taken.key != MAIN
        gate.set()
        assert (await asked).entry is not None
        assert await say(gateway, "what is ship?") == ["Ada"]
        assert not scene.model.refused
