"""Rows of models on real wires: one conversation with two providers, broken answers, and time limits."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.endpoints import Endpoint
from backchannel.agents.providers import Connection, ProviderModel
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from backchannel.runtime.events import ReplyGrew
from backchannel.storage.files.media import MediaFolder
from tests.support.clocks import StageClock
from tests.support.gateways import Heard, running, stored, texts_of, transcript_of
from tests.support.stub_provider import WIRES, Answer, Call, Fault, Hang, StubProvider, Told, whole_stream

from .test_model_waits import TurnedClock
from .test_pictures import PNG, ask

pytestmark = pytest.mark.anyio

APIS = pytest.mark.parametrize("api", ["openai", "anthropic"])
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
LOOK = (Call("look", {}),)


def provider(stub: StubProvider, api: str, **more: Any) -> dict[str, Any]:
    return {"api": api, "baseUrl": stub.base_url, **more}


def settings(model: str, *fallbacks: str, **providers: dict[str, Any]) -> dict[str, Any]:
    row = {"primary": model, "fallbacks": list(fallbacks)}
    return {"models": {"providers": providers}, "agents": {"list": [{"id": "main", "model": row, "thinking": "high"}]}}


def registered(stub: StubProvider, kind: str) -> ProviderModel:
    """Make a model of a second provider that sees no pictures."""
    endpoint = Endpoint("second", kind, stub.base_url, "sk-second")
    return ProviderModel(Connection(endpoint), "gpt-5.4", context_window=200_000, sees_images=False)


# --- One conversation, two providers ---


@pytest.mark.parametrize("kind", ["openai-compatible", "openai"])
async def test_two_providers_take_turns_in_one_run_and_each_gets_what_it_takes(tmp_path: Path, kind: str) -> None:
    clock, looks = TurnedClock.held("2026-05-04T12:00:00"), list[int]()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def look() -> str:
            looks.append(len(looks))
            clock.move_on(11 if len(looks) == 2 else 0)  # the first provider is tried again after ten seconds
            return "nothing there"

    picture = MediaFolder(tmp_path / "media").store(PNG, "image/png")
    async with StubProvider() as first, StubProvider() as second:
        config = settings("first/m", "second/gpt-5.4", first=provider(first, "anthropic"))
        first.then(Answer(thinking="hm", calls=LOOK), *[Fault(529)] * 5, Answer(text="seen by the first"))
        second.then(Answer(thinking="so", text="I look.", calls=LOOK * 2))
        async with running(tmp_path, registered(second, kind), config=config, clock=clock, equip=equip) as gateway:
            assert await ask(gateway, "look at this", picture) == "seen by the first"
            said = await transcript_of(gateway)
            first.then(*[Fault(500)] * 5)
            assert await gateway.ask("main", "and now?") == "ok"
    replies = [(m.model or "").partition("/")[0] for m in said if m.role is Role.ASSISTANT]
    assert replies == ["first", "second", "first"]
    assert second.refused == []
    [refused] = first.refused  # a model that thinks wants its own thinking before calls: it is asked without
    assert "Expected `thinking`" in refused
    _check_sent(first, second)


def _check_sent(first: StubProvider, second: StubProvider) -> None:
    """See that each provider gets its own thinking, and pictures only if it sees."""
    shown = base64.b64encode(PNG).decode()
    to_first, to_second = (json.dumps([asked.messages for asked in stub.requests]) for stub in (first, second))
    assert shown in to_first and shown not in to_second and "cannot see" in to_second
    assert '"thinking": "hm"' in to_first and '"so"' not in to_first and "gAAAA" not in to_first
    assert "hm" not in to_second and "signature" not in to_second
    assert ["thinking" in asked.body for asked in first.requests[-7:-5]] == [True, False], (
        "only that request is without"
    )


async def test_a_picture_that_was_left_out_for_a_failing_model_is_shown_to_the_next(tmp_path: Path) -> None:
    picture = MediaFolder(tmp_path / "media").store(PNG, "image/png")
    async with StubProvider(reply=lambda asked: Fault(529)) as first, StubProvider() as second:
        config = settings("first/m", "second/m", first=provider(first, "anthropic"), second=provider(second, "openai"))
        async with running(tmp_path, config=config, clock=StageClock()) as gateway:
            assert await ask(gateway, "look", picture) == "ok"
    assert base64.b64encode(PNG).decode() in json.dumps(second.requests[0].messages)


# --- An hour down ---


@pytest.mark.parametrize("apis", [("anthropic", "openai"), ("openai", "anthropic")], ids="-".join)
async def test_a_fallback_answers_for_an_hour_once_each_and_is_named_until_the_first_is_back(
    tmp_path: Path, apis: tuple[str, str]
) -> None:
    clock = TurnedClock.held("2026-05-04T12:00:00")
    async with StubProvider() as first, StubProvider() as second:
        config = settings("first/m", "second/m", first=provider(first, apis[0]), second=provider(second, apis[1]))
        first.reply = lambda asked: Fault(529, "overloaded")
        second.reply = lambda asked: Answer(text=f"second {len(second.requests)}")
        async with running(tmp_path, config=config, clock=clock) as gateway:
            for minute in range(60):
                assert (
                    await gateway.ask("main", f"at {minute}", run_id=f"r{minute}", timeout_s=60)
                    == f"second {minute + 1}"
                )
                clock.move_on(60)
            assert len(second.requests) == 60
            assert len(first.requests) < 20, "a provider that is down is asked little"
            await _check_named(gateway)
            first.reply = lambda asked: Answer(text="back")
            clock.move_on(600)
            assert await gateway.ask("main", "and now?") == "back"
            texts = await texts_of(gateway)
            assert texts[:4] == ["at 0", "second 1", "at 1", "second 2"] and texts[-2:] == ["and now?", "back"]
    assert (first.refused, second.refused) == ([], [])


async def _check_named(gateway: Gateway) -> None:
    """See the model that answered wherever it is named, and why it was another."""
    assert (await stored(gateway, "r0")).answered_by == "second/m"
    replies = [message for message in await transcript_of(gateway) if message.role is Role.ASSISTANT]
    assert {message.model for message in replies} == {"second/m"}
    entries = (await gateway.store.timeline("r0")).timeline.entries
    assert [entry.model for entry in entries if entry.kind == "model"] == ["second/m"]
    [moved] = [entry.error for entry in entries if entry.kind == "retry" and "is asked" in (entry.error or "")]
    assert moved is not None and moved.startswith("first/m failed, and second/m is asked: ") and "overloaded" in moved


# --- Broken answers ---


@APIS
async def test_an_answer_that_breaks_at_any_byte_is_asked_for_again_and_kept_once(tmp_path: Path, api: str) -> None:
    good = Answer(text=("one ", "two ", "three"))
    length = len(whole_stream(WIRES[PATHS[api]], {"model": "m"}, good))
    async with StubProvider(reply=lambda asked: good) as stub:
        config = settings("acme/m", acme=provider(stub, api))
        async with running(tmp_path, config=config, clock=StageClock()) as gateway:
            heard = Heard(gateway)
            for place in range(0, length, 11):
                stub.then(Answer(text=good.text, breaks_at=place))
                key = f"agent:main:cut{place}"
                assert await gateway.ask(key, "count", timeout_s=60) == "one two three", place
                assert await texts_of(gateway, key) == ["count", "one two three"], place
                stub.forget()
            _check_drafts(heard.of(ReplyGrew))
            assert len(stub.requests) > 1.5 * len(range(0, length, 11)), "most of them were asked again"
    assert stub.refused == []


def _check_drafts(grew: list[ReplyGrew]) -> None:
    """See that what grows goes on, or starts over: it never has the text of two attempts."""
    shown: dict[str, str] = {}
    starts = 0
    for event in grew:
        before = shown.get(event.run.id, "")
        starts += bool(before) and event.text == event.delta
        assert event.text in (before + event.delta, event.delta)
        assert "one two three".startswith(event.text)
        shown[event.run.id] = event.text
    assert set(shown.values()) == {"one two three"} and starts > 5


# --- Time limits ---


@asynccontextmanager
async def impatient(state: Path, stub: StubProvider, api: str, **timeouts: float) -> AsyncIterator[Gateway]:
    config = settings("acme/m", acme=provider(stub, api, timeouts=timeouts))
    async with running(state, config=config, clock=StageClock()) as gateway:
        yield gateway


@APIS
@pytest.mark.parametrize(
    ("limit", "told", "words"),
    [
        ("firstByteSeconds", Hang, "acme did not begin to answer within 1 s"),
        (
            "idleSeconds",
            lambda: Answer(text=("half ", "never"), gate=asyncio.Event(), held_at=1),
            "acme stopped in the middle of its answer for 1 s",
        ),
    ],
    ids=["says nothing", "stops in the middle"],
)
async def test_a_provider_that_is_silent_for_too_long_is_asked_again(
    tmp_path: Path, api: str, limit: str, told: Callable[[], Told], words: str
) -> None:
    async with StubProvider() as stub, impatient(tmp_path, stub, api, **{limit: 1}) as gateway:
        stub.then(told())
        assert await gateway.ask("main", "hi", run_id="r", timeout_s=60) == "ok"
        async with asyncio.timeout(20):
            await stub.requests[0].gone.wait()
        assert await texts_of(gateway) == ["hi", "ok"]
        entries = (await gateway.store.timeline("r")).timeline.entries
        assert next(entry.error for entry in entries if entry.kind == "retry") == words
    assert stub.refused == []
