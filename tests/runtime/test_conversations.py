"""Requests that extend each other: what a model is sent, byte for byte, and why it moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backchannel.agents.scripted import Reply, Script, Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelEvent, ModelFailed, ModelRequest
from backchannel.core.cut import read_cut
from backchannel.core.keys import SessionKey
from backchannel.core.messages import ImageBlock, Message, Role, text_content
from backchannel.core.runs import RunState
from backchannel.core.sessions import SessionPatch
from backchannel.gateway.app import Gateway, RunFailed
from backchannel.runtime import kept
from backchannel.storage.files.media import MediaFolder
from tests.support.gateways import MAIN, dying, ended, held, request, running, session_of, transcript_of

pytestmark = pytest.mark.anyio


class PlainEncoder:
    """Writes messages as the transcript has them."""

    name = "plain"

    def encode(self, step: Sequence[Message], *, is_last: bool = False) -> bytes:
        return b",".join(map(msgspec.json.encode, step))


class EncodedModel(ScriptedModel):
    """A scripted model that takes bytes, and keeps what it was sent."""

    def __init__(self, *, replies: Script = (), context_window: int = 100_000, ref: str = "scripted/test") -> None:
        super().__init__(ref, replies=replies, context_window=context_window)
        self.bodies: list[bytes] = []

    async def encoder(self) -> PlainEncoder:
        return PlainEncoder()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if request.encoded is not None:  # else it is asked for a summary
            assert not request.messages
            self.bodies.append(b",".join(request.encoded))
            messages = msgspec.json.decode(b"[" + self.bodies[-1] + b"]", type=list[Message])
            request = msgspec.structs.replace(request, messages=messages, encoded=None)
        async for event in super().stream(request):
            yield event


def talk(request: ModelRequest) -> Reply | str:
    """Look something up first, then answer."""
    last = request.messages[-1]
    if last.role is Role.TOOL_RESULT or not last.text.endswith("look"):
        return f"answer to {last.text[-30:]}"
    return Reply(text="let me see", calls=(call("look", place="box"), call("look", place="bag")))


def wordy(request: ModelRequest) -> str:
    """Answer at length, and summarise in a few words."""
    return "y" * 300 if request.cache_key else "They asked much."


def unwilling(request: ModelRequest) -> str:
    """Answer at length, and write no summary."""
    if request.cache_key is None:
        raise ModelFailed("no summaries here", retryable=False)
    return "y" * 300


def add_tools(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look(place: str) -> str:
        """Look somewhere."""
        return f"nothing in {place}" * 20


def with_marks(**context: Any) -> dict[str, Any]:
    agents = {"list": [{"id": "main", "model": "scripted/test"}], "defaults": {"context": context}}
    return {"agents": agents, "tools": {"allow": ["look"]}}


def life(state: Path, model: ScriptedModel, **more: Any) -> AbstractAsyncContextManager[Gateway]:
    return running(state, model, config=with_marks(), equip=add_tools, **more)


def moves(bodies: Sequence[bytes]) -> list[int]:
    """Find the requests that do not begin with the whole request before them."""
    return [i + 1 for i, (before, after) in enumerate(pairwise(bodies)) if not after.startswith(before)]


async def reasons(gateway: Gateway) -> list[str]:
    return [message.moved for message in await transcript_of(gateway) if message.moved]


async def test_each_request_begins_with_the_whole_request_before_it_across_lives_and_notes(tmp_path: Path) -> None:
    model = EncodedModel(replies=talk)
    for n in range(4):
        world = dying if n % 2 else running
        async with world(tmp_path, model, config=with_marks(), equip=add_tools) as gateway:
            await gateway.ask("main", f"{n}: look")
            await gateway.runtime.inject(SessionKey.parse(MAIN), "it rains", None)
            await gateway.ask("main", f"{n}: and now")
            await gateway.ask("main", f"{n}: look")
            assert await reasons(gateway) == []
    assert len(model.bodies) == 20 and moves(model.bodies) == []
    assert not model.refused


async def test_what_is_kept_is_what_the_rows_give(tmp_path: Path) -> None:
    kept_model, fresh = EncodedModel(replies=talk), EncodedModel(replies=talk)
    async with life(tmp_path, kept_model) as gateway:
        for n in range(40):
            await gateway.ask("main", f"{n}: look" if n % 3 else f"{n}: hello")
    async with life(tmp_path, fresh) as gateway:
        await gateway.ask("main", "last")
    assert fresh.bodies[0].startswith(kept_model.bodies[-1])


async def test_a_conversation_that_was_not_kept_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_KEPT_BYTES", 1)
    model = EncodedModel(replies=talk)
    async with life(tmp_path, model) as gateway:
        for n in range(6):
            await gateway.ask("agent:main:one", f"{n}: look")
            await gateway.ask("agent:main:two", f"{n}: look")
    for session in ("one", "two"):
        assert moves([body for i, body in enumerate(model.bodies) if (i // 2) % 2 == (session == "two")]) == []


async def test_a_full_window_moves_the_cut_once_in_many_turns_and_the_reason_is_recorded(tmp_path: Path) -> None:
    model = EncodedModel(replies=wordy, context_window=8_000)
    async with running(tmp_path, model, config=with_marks()) as gateway:
        for n in range(150):
            await gateway.ask("main", f"question {n} " + "x" * 300)
        found = moves(model.bodies)
        assert 2 <= len(found) <= 12 and not model.refused
        assert await reasons(gateway) == ["the older part was summarised"] * len(found)
    again = EncodedModel(replies=wordy, context_window=8_000)
    async with running(tmp_path, again, config=with_marks()) as gateway:
        await gateway.ask("main", "after a restart")
        assert moves([model.bodies[-1], again.bodies[0]]) == [1] * (len(await reasons(gateway)) - len(found))


async def test_without_a_summary_the_oldest_messages_are_left_out_and_the_model_is_told(tmp_path: Path) -> None:
    model = EncodedModel(replies=unwilling, context_window=8_000)
    async with running(tmp_path, model, config=with_marks()) as gateway:
        for n in range(100):
            await gateway.ask("main", f"question {n} " + "x" * 300)
        found = moves(model.bodies)
        assert 1 <= len(found) <= 6 and not model.refused
        told = await reasons(gateway)
        assert len(told) == len(found) and all(why.startswith("the oldest messages were left out") for why in told)
        session = await session_of(gateway)
        part = await gateway.store.context(session.session_id, max_bytes=1_000_000)
        assert part.is_whole and read_cut(part.head.cut).is_short
    assert "no longer fit and are left out here" in model.requests[-1].messages[0].text


async def test_old_tool_results_are_cleared_before_anything_is_left_out(tmp_path: Path) -> None:
    def busy(request: ModelRequest) -> Reply | str:
        rounds = sum(message.role is Role.ASSISTANT for message in request.messages)
        return Reply(calls=(call("dig", at=rounds),)) if rounds < 14 else "done"

    def add(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def dig(at: int) -> str:
            """Dig."""
            return f"{at} " + "sand " * 500

    model = EncodedModel(replies=busy, context_window=8_000)
    config = {**with_marks(), "tools": {"allow": ["dig"]}}
    async with running(tmp_path, model, config=config, equip=add) as gateway:
        assert await gateway.ask("main", "dig deep") == "done"
        found = await reasons(gateway)
    last = model.requests[-1].messages
    assert last[0].text == "dig deep" and len(last) == 29
    assert "which is not shown again" in last[2].text and "sand" in last[-1].text
    assert set(found) == {"old tool results were cleared"} and len(found) == len(moves(model.bodies)) <= 4


async def test_another_model_another_prompt_and_other_tools_are_recorded_as_reasons(tmp_path: Path) -> None:
    first, second = EncodedModel(replies=talk), EncodedModel(replies=talk, ref="scripted/other")
    async with running(tmp_path, first, second, config=with_marks(), equip=add_tools) as gateway:
        await gateway.ask("main", "hello")
        await gateway.store.patch_session(SessionKey.parse(MAIN), SessionPatch(model="scripted/other"))
        await gateway.ask("main", "hello again")
        await gateway.ask("main", "and again")
        assert await reasons(gateway) == ["the model changed from scripted/test to scripted/other"]
    async with running(tmp_path, second, config=with_marks()) as gateway:
        await gateway.ask("main", "without tools")
        assert (await reasons(gateway))[1:] == ["the tools changed"]
    assert second.bodies[0].startswith(first.bodies[0])


async def test_pictures_stay_in_the_request_until_there_are_too_many(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "media")
    model = EncodedModel(replies=lambda asked: "I see")
    async with running(tmp_path, model, config=with_marks()) as gateway:
        for n in range(23):
            name = folder.store(b"\x89PNG\r\n\x1a\n" + bytes([n]), "image/png")
            content = (*text_content("look"), ImageBlock(mime_type="image/png", file=name))
            asked = msgspec.structs.replace(request(MAIN, "look"), content=content)
            await ended(gateway, (await gateway.runtime.submit(asked)).run.id)
        assert moves(model.bodies) == [20]
        assert await reasons(gateway) == ["earlier pictures are not shown again"]
    assert b"no longer there" not in model.bodies[-1]


async def test_a_run_that_failed_leaves_a_line_and_the_next_request_goes_on_from_it(tmp_path: Path) -> None:
    def moody(request: ModelRequest) -> str:
        if request.messages[-1].text.endswith("fail"):
            raise ModelFailed("no", retryable=False)
        return "fine"

    model = EncodedModel(replies=moody)
    async with running(tmp_path, model, config=with_marks()) as gateway:
        await gateway.ask("main", "hello")
        with pytest.raises(RunFailed):
            await gateway.ask("main", "fail")
        await gateway.ask("main", "so?")
    failed, after = (json.loads(b"[" + body + b"]") for body in model.bodies[1:])
    assert after[: len(failed) - 1] == failed[:-1]
    assert after[-1]["content"][0]["text"].startswith(failed[-1]["content"][0]["text"])
    assert "was not answered" in after[-1]["content"][0]["text"]


async def test_a_retried_run_is_asked_with_its_own_part_last_and_the_reason_is_recorded(tmp_path: Path) -> None:
    broken = True

    def moody(request: ModelRequest) -> str:
        if broken and request.messages[-1].text.endswith("first"):
            raise ModelFailed("no", retryable=False)
        return f"re: {request.messages[-1].text.splitlines()[-1]}"

    model = EncodedModel(replies=moody)
    async with running(tmp_path, model, config=with_marks()) as gateway:
        with pytest.raises(RunFailed):
            await gateway.ask("main", "first", run_id="r")
        await gateway.ask("main", "second")
        broken = False
        await gateway.store.retry_run("r")
        assert (await ended(gateway, "r")).reply == "re: first"
        assert await gateway.ask("main", "third") == "re: third"
        assert await reasons(gateway) == ["a run that others spoke after goes on"] * 2
    assert not model.refused
    texts = [message.text for message in model.requests[-1].messages]
    assert texts[0] == "second" and texts[2:] == ["first", "re: first", "third"]


async def test_after_a_retried_run_that_failed_again_the_next_reply_says_why_its_request_moved(tmp_path: Path) -> None:
    def moody(request: ModelRequest) -> str:
        if request.messages[-1].text.endswith("first"):
            raise ModelFailed("no", retryable=False)
        return "fine"

    model = EncodedModel(replies=moody)
    async with running(tmp_path, model, config=with_marks()) as gateway:
        with pytest.raises(RunFailed):
            await gateway.ask("main", "first", run_id="r")
        await gateway.ask("main", "second")
        await gateway.store.retry_run("r")
        assert (await ended(gateway, "r")).state is RunState.ERROR
        assert await reasons(gateway) == []
    async with running(tmp_path, model, config=with_marks()) as gateway:
        await gateway.ask("main", "third")
        assert moves(model.bodies[-2:]) == [1]
        assert await reasons(gateway) == ["the run that was asked before stood last, though others spoke after it"]
        await gateway.ask("main", "fourth")
        assert moves(model.bodies[-2:]) == [] and len(await reasons(gateway)) == 1
    assert not model.refused


async def test_a_run_whose_question_is_before_the_cut_still_has_it_after_a_crash_in_a_later_step(
    tmp_path: Path,
) -> None:
    reached = asyncio.Event()

    def moody(request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if last.role is Role.TOOL_RESULT:
            return held(reached=reached)
        if not last.text.endswith("what is in the box?"):
            return wordy(request)
        if len(request.messages) == 1:
            raise ModelFailed("no", retryable=False)
        return [call("look", place="box")]

    first = EncodedModel(replies=moody, context_window=8_000)
    async with dying(tmp_path, first, config=with_marks(), equip=add_tools) as gateway:
        with pytest.raises(RunFailed):
            await gateway.ask("main", "what is in the box?", run_id="r")
        for n in range(60):
            await gateway.ask("main", f"question {n} " + "x" * 300)
        session = await session_of(gateway)
        part = await gateway.store.context(session.session_id, max_bytes=1_000_000)
        assert read_cut(part.head.cut).from_seq > 1
        await gateway.store.retry_run("r")
        await asyncio.wait_for(reached.wait(), 20)
    again = EncodedModel(replies=["nothing"], context_window=8_000)
    async with life(tmp_path, again) as gateway:
        assert (await ended(gateway, "r")).reply == "nothing"
    *_, question, asked, result = again.requests[-1].messages
    assert question.text.endswith("what is in the box?")
    assert asked.tool_calls and result.role is Role.TOOL_RESULT and not again.refused
