"""The runner: the loop of model calls and rounds of tool calls that carries out one run."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backchannel.agents.registry import FunctionContext, ToolFailed
from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.core.contracts import (
    ModelEvent,
    ModelFailed,
    ModelReply,
    ModelRequest,
    Price,
    ToolContext,
    ToolOutput,
    ToolSpec,
)
from backchannel.core.keys import SessionKey
from backchannel.core.messages import ImageBlock, Message, Role, ThinkingBlock, Usage, text_content
from backchannel.core.runs import RunState
from backchannel.core.sessions import SessionPatch
from backchannel.gateway.app import Gateway, RunFailed
from backchannel.runtime import active, asking
from backchannel.runtime.events import ReplyGrew, ThinkingGrew, ToolEnded, ToolStarted
from tests.support.clocks import StageClock
from tests.support.gateways import (
    CONFIG,
    MAIN,
    Heard,
    dying,
    ended,
    held,
    request,
    running,
    session_of,
    stored,
    texts_of,
    transcript_of,
    with_defaults,
)
from tests.support.remembering import is_summary

pytestmark = pytest.mark.anyio
MAIN_KEY = SessionKey.parse(MAIN)


def add_tools(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look(place: str) -> str:
        """Look somewhere."""
        return f"nothing in {place}"

    @gateway.tool(effects="outside")
    async def post(text: str, context: ToolContext) -> dict[str, str]:
        return {"posted": text, "as": context.call_id}

    @gateway.tool(effects="none")
    async def fail(how: str = "badly") -> str:
        raise ValueError(f"it went {how}")


def results_in(messages: list[Message]) -> list[tuple[str | None, str, bool | None]]:
    return [(m.tool_call_id, m.text, m.is_error) for m in messages if m.role is Role.TOOL_RESULT]


def own_tools(request: ModelRequest) -> list[ToolSpec]:
    """Name the tools of these tests that a model is offered; the gateway's own stand beside them."""
    return [tool for tool in request.tools if tool.name in ("look", "post", "fail")]


def name_own(request: ModelRequest) -> str:
    return ",".join(tool.name for tool in own_tools(request))


# --- Replies ---


async def test_a_message_gets_a_reply(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["hello"])) as gateway:
        run = await ended(gateway, (await gateway.submit("main", "hi")).id)
        assert (run.state, run.reply, run.answered_by, run.step) == (RunState.OK, "hello", "scripted/test", 1)
        user, reply = await transcript_of(gateway)
        assert (user.role, user.text, user.run_id) == (Role.USER, "hi", run.id)
        assert (reply.role, reply.text, reply.run_id) == (Role.ASSISTANT, "hello", run.id)
        assert (reply.model, reply.stop_reason) == ("scripted/test", "stop")


async def test_an_empty_reply_ends_the_run_and_the_next_request_is_a_good_sequence(tmp_path: Path) -> None:
    model = ScriptedModel(replies=["", Reply(thinking="hm"), Reply(text=(" ",)), "there"])
    async with running(tmp_path, model) as gateway:
        assert [await gateway.ask("main", text) for text in "abc"] == ["", "", " "]
        assert await gateway.ask("main", "d") == "there"
    assert not model.refused
    (asked,) = model.requests[-1].messages
    said = [line for line in asked.text.splitlines() if len(line) == 1]
    assert said == list("abcd") and asked.text.count("was not answered") == 3


async def test_a_message_that_failed_is_not_glued_to_the_next_one_and_the_transcript_stays_as_it_was(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(replies=[ModelFailed("no", retryable=False), "hi"])
    async with running(tmp_path, model) as gateway:
        with pytest.raises(RunFailed):
            await gateway.ask("main", "hello")
        await gateway.ask("main", "are you there?")
        assert await texts_of(gateway) == ["hello", "are you there?", "hi"]
    lines = model.requests[-1].messages[-1].text.splitlines()
    assert (lines[0], lines[-1]) == ("hello", "are you there?")
    assert any(line.startswith("The message above was not answered") for line in lines)


async def test_what_no_longer_fits_the_window_is_left_out_and_the_model_told(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: "" if is_summary(request) else "word " * 300, context_window=4_000)
    async with running(tmp_path, model) as gateway:
        for n in range(20):
            await gateway.ask("main", f"question {n}")
        assert len(await transcript_of(gateway)) == 40
    last = next(request.messages for request in reversed(model.requests) if not is_summary(request))
    assert "left out" in last[0].text
    assert last[-1].text.endswith("question 19")
    assert "question 0" not in "".join(message.text for message in last)
    assert not model.refused


async def test_one_message_larger_than_the_window_is_answered(tmp_path: Path) -> None:
    model = ScriptedModel(replies=["long", "short"], context_window=4_000)
    async with running(tmp_path, model) as gateway:
        assert await gateway.ask("main", "x" * 200_000) == "long"
        assert await gateway.ask("main", "and now?") == "short"
    assert len(model.requests[0].messages[0].text) < 20_000


async def test_a_deep_transcript_is_not_read_whole(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: "y" * 2_000, context_window=2_000)
    async with running(tmp_path, model) as gateway:
        for n in range(120):
            await gateway.ask("main", f"q{n} " + "x" * 2_000)
    assert not model.refused
    last = next(request for request in reversed(model.requests) if not is_summary(request))
    assert "left out" in last.messages[0].text


# --- Tools ---


async def test_a_run_goes_through_rounds_of_tools(tmp_path: Path) -> None:
    model = ScriptedModel(
        replies=[
            Reply(text="looking", calls=(call("look", place="box"),)),
            [call("post", text="x"), call("look", place="bag")],
            "done",
        ]
    )
    async with running(tmp_path, model, equip=add_tools) as gateway:
        assert await gateway.ask("main", "go", run_id="r") == "done"
        messages = await transcript_of(gateway)
        assert [m.role for m in messages] == [
            Role.USER,
            Role.ASSISTANT,
            Role.TOOL_RESULT,
            Role.ASSISTANT,
            Role.TOOL_RESULT,
            Role.TOOL_RESULT,
            Role.ASSISTANT,
        ]
        assert [block.id for message in messages for block in message.tool_calls] == ["r/0/0", "r/1/0", "r/1/1"]
        assert sorted(results_in(messages)) == [
            ("r/0/0", "nothing in box", False),
            ("r/1/0", '{"posted":"x","as":"r/1/0"}', False),
            ("r/1/1", "nothing in bag", False),
        ]
        assert (await stored(gateway, "r")).step == 3
        assert await gateway.store.open_calls("r") == []
    assert not model.refused


async def test_the_model_gets_the_results_in_the_order_of_its_calls(tmp_path: Path) -> None:
    second = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def wait() -> str:
            await second.wait()
            return "first"

        @gateway.tool(effects="none")
        async def go() -> str:
            second.set()
            return "second"

    model = ScriptedModel(replies=[[call("wait"), call("go")], "done"])
    async with running(tmp_path, model, equip=equip) as gateway:
        assert await gateway.ask("main", "both", timeout_s=20) == "done"
    assert [m.text for m in model.requests[1].messages if m.role is Role.TOOL_RESULT] == ["first", "second"]


async def test_calls_of_one_reply_run_at_the_same_time(tmp_path: Path) -> None:
    everybody = asyncio.Barrier(3)

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def meet() -> str:
            async with asyncio.timeout(20):
                await everybody.wait()
            return "met"

    model = ScriptedModel(replies=[[call("meet"), call("meet"), call("meet")], "done"])
    async with running(tmp_path, model, equip=equip) as gateway:
        assert await gateway.ask("main", "go", timeout_s=20) == "done"
        assert {text for _, text, _ in results_in(await transcript_of(gateway))} == {"met"}


async def test_a_tool_that_does_not_exist_is_an_error_result_that_names_those_there_are(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("lok", place="box")], "sorry"])
    async with running(tmp_path, model, equip=add_tools) as gateway:
        assert await gateway.ask("main", "go", run_id="r") == "sorry"
        [(call_id, text, is_error)] = results_in(await transcript_of(gateway))
        assert (call_id, is_error) == ("r/0/0", True)
        assert "'lok'" in text and "look, post, fail" in text


@pytest.mark.parametrize("arguments", ["box", ["box"], 7, True, "{not json", ""])
async def test_arguments_that_are_not_an_object_are_an_error_result(tmp_path: Path, arguments: Any) -> None:
    model = ScriptedModel(replies=[[call("look", arguments)], "sorry"])
    async with running(tmp_path, model, equip=add_tools) as gateway:
        assert await gateway.ask("main", "go") == "sorry"
        [(_, text, is_error)] = results_in(await transcript_of(gateway))
        assert is_error and "not a JSON object" in text
    assert not model.refused


@pytest.mark.parametrize(
    ("arguments", "names"),
    [({}, "place"), ({"place": 7}, "place"), ({"place": "box", "deep": True}, "deep"), ({"place": None}, "place")],
)
async def test_arguments_that_do_not_fit_are_an_error_result_that_says_which(
    tmp_path: Path, arguments: dict[str, Any], names: str
) -> None:
    model = ScriptedModel(replies=[[call("look", arguments)], "sorry"])
    async with running(tmp_path, model, equip=add_tools) as gateway:
        assert await gateway.ask("main", "go") == "sorry"
        [(_, text, is_error)] = results_in(await transcript_of(gateway))
        assert is_error and names in text


async def test_a_tool_that_raises_is_an_error_result_with_its_words(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("fail"), call("look", place="box")], "sorry"])
    async with running(tmp_path, model, equip=add_tools) as gateway:
        assert await gateway.ask("main", "go", run_id="r") == "sorry"
        assert sorted(results_in(await transcript_of(gateway))) == [
            ("r/0/0", "ValueError: it went badly", True),
            ("r/0/1", "nothing in box", False),
        ]


async def test_a_tool_that_takes_too_long_is_stopped_with_an_error_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "TOOL_CALL_LIMIT_S", 0.02)

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def sleep() -> str:
            await asyncio.Event().wait()
            return "never"

    model = ScriptedModel(replies=[[call("sleep")], "sorry"])
    async with running(tmp_path, model, equip=equip) as gateway:
        assert await gateway.ask("main", "go") == "sorry"
        [(_, text, is_error)] = results_in(await transcript_of(gateway))
        assert is_error and "longer than 0.02 s" in text and "unknown" in text


async def test_a_time_limit_inside_a_tool_is_the_tools_own_error(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def ask() -> str:
            raise TimeoutError("the printer did not answer")

    model = ScriptedModel(replies=[[call("ask")], "sorry"])
    async with running(tmp_path, model, equip=equip) as gateway:
        assert await gateway.ask("main", "go") == "sorry"
        [(_, text, is_error)] = results_in(await transcript_of(gateway))
        assert (text, is_error) == ("TimeoutError: the printer did not answer", True)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_tool_whose_own_work_was_cancelled_is_an_error_result(tmp_path: Path, count: int) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def give_up() -> str:
            work = asyncio.ensure_future(asyncio.Event().wait())
            work.cancel()
            return str(await work)

    model = ScriptedModel(replies=[[call("give_up")] * count, "sorry", "again"])
    async with running(tmp_path, model, equip=equip) as gateway:
        assert await gateway.ask("main", "go", timeout_s=20) == "sorry"
        results = results_in(await transcript_of(gateway))
        assert [is_error for _, _, is_error in results] == [True] * count
        assert await gateway.ask("main", "next", timeout_s=20) == "again"
    assert not model.refused


async def test_a_tool_may_answer_with_blocks_an_object_or_nothing(tmp_path: Path) -> None:
    image = ImageBlock(mime_type="image/png", data="aaaa")

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def show() -> ToolOutput:
            return ToolOutput((*text_content("here"), image))

        @gateway.tool(effects="none")
        async def nothing() -> None: ...

        @gateway.tool(effects="none")
        async def empty() -> str:
            return ""

        @gateway.tool(effects="none")
        async def odd() -> object:
            return object()

    model = ScriptedModel(replies=[[call("show"), call("nothing"), call("empty"), call("odd")], "done"])
    async with running(tmp_path, model, equip=equip) as gateway:
        assert await gateway.ask("main", "go", run_id="r") == "done"
        shown, nothing, empty, odd = sorted(results_in(await transcript_of(gateway)))
        assert shown[1:] == ("here", False)
        assert nothing[1:] == ("null", False)
        assert empty[1:] == ("", False)
        assert odd[2] and "TypeError" in odd[1]
    assert image in model.requests[1].messages[2].content
    assert not model.refused


@pytest.mark.parametrize(
    "text", ["lone \ud800 half", "\udc80\udcff", "pair \ud83d\ude00"], ids=["lone", "halves", "pair"]
)
async def test_text_that_is_not_unicode_does_not_end_a_run(tmp_path: Path, text: str) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def names() -> str:
            return text

    model = ScriptedModel(replies=[Reply(text=text, calls=(call("names", {}),)), text, "next"])
    async with running(tmp_path, model, equip=equip) as gateway:
        run = await ended(gateway, (await gateway.submit("main", "go")).id)
        assert run.state is RunState.OK, run.error
        assert await gateway.ask("main", "and") == "next"
        for message in await transcript_of(gateway):
            message.text.encode()


async def test_an_agent_has_the_tools_it_is_allowed_and_not_denied(tmp_path: Path) -> None:
    config = {
        "tools": {"deny": ["fail"]},
        "agents": {
            "list": [
                {"id": "main", "model": "scripted/test"},
                {"id": "careful", "model": "scripted/test", "tools": {"allow": ["look", "fail"]}},
                {"id": "deaf", "model": "scripted/test", "tools": {"deny": ["look"]}},
            ]
        },
    }
    model = ScriptedModel(replies=name_own)
    async with running(tmp_path, model, equip=add_tools, config=config) as gateway:
        assert await gateway.ask("main", "tools?") == "look,post"
        assert await gateway.ask("agent:careful:main", "tools?") == "look"
        assert await gateway.ask("agent:deaf:main", "tools?") == "post"


async def test_a_tool_that_is_denied_cannot_be_called_either(tmp_path: Path) -> None:
    config = {"tools": {"deny": ["post"]}, **CONFIG}
    model = ScriptedModel(replies=[[call("post", text="x")], "sorry"])
    async with running(tmp_path, model, equip=add_tools, config=config) as gateway:
        assert await gateway.ask("main", "go") == "sorry"
        [(_, text, is_error)] = results_in(await transcript_of(gateway))
        assert is_error and text == "post is not among your tools: tools.deny names it"


ALL, SAFE = "look,post,fail", "look,fail"


@pytest.mark.parametrize(
    ("mode", "on_main", "elsewhere"), [("off", ALL, ALL), ("non-main", ALL, SAFE), ("all", SAFE, SAFE)]
)
async def test_a_sandboxed_session_has_no_tools_with_outside_effects(
    tmp_path: Path, mode: str, on_main: str, elsewhere: str
) -> None:
    config = {"agents": {**CONFIG["agents"], "defaults": {"sandbox": {"mode": mode}}}}
    model = ScriptedModel(replies=name_own)
    async with running(tmp_path, model, equip=add_tools, config=config) as gateway:
        assert await gateway.ask("main", "tools?") == on_main
        assert await gateway.ask("agent:main:cron:nightly", "tools?") == elsewhere


async def test_a_tool_tells_the_model_its_name_its_words_and_its_parameters(tmp_path: Path) -> None:
    model = ScriptedModel(replies=["ok"])
    async with running(tmp_path, model, equip=add_tools) as gateway:
        await gateway.ask("main", "hi")
    look, post, _ = own_tools(model.requests[0])
    assert (look.name, look.description) == ("look", "Look somewhere.")
    assert look.parameters == {
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
        "additionalProperties": False,
    }
    assert set(post.parameters["properties"]) == {"text"}


# --- Failures of the model ---


async def test_a_failure_that_may_pass_is_tried_again_later_each_time(tmp_path: Path) -> None:
    busy = ModelFailed("busy", retryable=True)
    model, clock = ScriptedModel(replies=[busy, busy, busy, "at last"]), StageClock()
    async with running(tmp_path, model, clock=clock) as gateway:
        assert await gateway.ask("main", "hi") == "at last"
        assert await texts_of(gateway) == ["hi", "at last"]
    assert clock.slept == [0.5, 1.0, 2.0]
    assert len({tuple(request.messages) for request in model.requests}) == 1


async def test_a_failure_that_does_not_pass_ends_the_run_with_the_providers_words(tmp_path: Path) -> None:
    model, clock = ScriptedModel(replies=[ModelFailed("busy", retryable=True)] * 5 + ["fine"]), StageClock()
    async with running(tmp_path, model, clock=clock, config=with_defaults(retryForHours=0)) as gateway:
        run = await ended(gateway, (await gateway.submit("main", "hi")).id)
        assert (run.state, run.error_code, run.error) == (RunState.ERROR, "model_failed", "busy")
        assert len(model.requests) == asking.ATTEMPTS == 5
        clock.move_on(11)
        assert await gateway.ask("main", "again") == "fine"
    assert not model.refused


async def test_a_failure_for_good_is_not_tried_again(tmp_path: Path) -> None:
    model, clock = ScriptedModel(replies=[ModelFailed("no credit left", retryable=False)]), StageClock()
    async with running(tmp_path, model, clock=clock) as gateway:
        with pytest.raises(RunFailed, match="no credit left"):
            await gateway.ask("main", "hi")
    assert (len(model.requests), clock.slept) == (1, [])


@pytest.mark.parametrize(("asked_s", "waited_s"), [(7.0, 7.0), (0.0, 0.5), (-3.0, 0.5), (math.nan, 0.5)])
async def test_the_wait_that_a_provider_asks_for_is_kept(tmp_path: Path, asked_s: float, waited_s: float) -> None:
    failed = ModelFailed("slow down", retryable=True, retry_after_s=asked_s)
    model, clock = ScriptedModel(replies=[failed, "ok"]), StageClock()
    async with running(tmp_path, model, clock=clock) as gateway:
        assert await gateway.ask("main", "hi") == "ok"
    assert clock.slept == [waited_s]


@pytest.mark.parametrize("retryable", [True, False])
async def test_nothing_of_a_reply_that_broke_off_is_kept(tmp_path: Path, retryable: bool) -> None:
    broken = Reply(text=("half of ", "it"), error=ModelFailed("gone", retryable=retryable))
    model = ScriptedModel(replies=[broken] * (5 if retryable else 1) + ["whole"])
    clock, config = StageClock(), with_defaults(retryForHours=0)
    async with running(tmp_path, model, clock=clock, config=config) as gateway:
        run = await ended(gateway, (await gateway.submit("main", "hi")).id)
        assert (run.state, run.error, run.reply) == (RunState.ERROR, "gone", None)
        assert await texts_of(gateway) == ["hi"]
        clock.move_on(11)
        assert await gateway.ask("main", "again") == "whole"


async def test_a_retry_starts_the_reply_over(tmp_path: Path) -> None:
    broken = Reply(text=("half of ", "it"), error=ModelFailed("gone", retryable=True))
    async with running(tmp_path, ScriptedModel(replies=[broken, "whole"]), clock=StageClock()) as gateway:
        heard = Heard(gateway)
        assert await gateway.ask("main", "hi") == "whole"
        assert await texts_of(gateway) == ["hi", "whole"]
        assert heard.of(ReplyGrew)[-1].text == "whole"


async def test_a_failure_in_a_later_step_keeps_the_steps_before_it(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("look", place="box")], ModelFailed("gone", retryable=False), "next"])
    async with running(tmp_path, model, equip=add_tools) as gateway:
        run = await ended(gateway, (await gateway.submit("main", "go")).id)
        assert (run.state, run.step) == (RunState.ERROR, 1)
        assert await texts_of(gateway) == ["go", "", "nothing in box"]
        assert await gateway.ask("main", "again") == "next"
    assert not model.refused


class Broken:
    """A model that does not keep to its contract."""

    ref = "scripted/test"
    context_window = 10_000
    price: Price | None = None

    def __init__(self, *does: BaseException | ModelReply | None) -> None:
        self._does = list(does)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        what = self._does.pop(0)
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            yield what


FINE = ModelReply(content=text_content("fine"), usage=Usage(), model="scripted/test")


async def test_a_stream_without_an_end_is_a_failure_that_may_pass(tmp_path: Path) -> None:
    clock = StageClock()
    async with running(tmp_path, Broken(None, FINE), clock=clock) as gateway:
        assert await gateway.ask("main", "hi") == "fine"
    assert clock.slept == [0.5]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("odd"), "RuntimeError: odd"),
        (TimeoutError("no line"), "TimeoutError: no line"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_whatever_a_model_raises_ends_the_run_and_not_the_lane(
    tmp_path: Path, error: BaseException, told: str
) -> None:
    async with running(tmp_path, Broken(error, FINE), clock=StageClock()) as gateway:
        run = await ended(gateway, (await gateway.submit("main", "hi")).id)
        assert run.state is RunState.ERROR
        assert told in (run.error or "")
        assert await gateway.ask("main", "again", timeout_s=20) == "fine"


async def test_a_model_that_never_answers_is_asked_again(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[Reply(text="never", gate=asyncio.Event()), "fine"])
    config = {**CONFIG, "models": {"timeouts": {"totalSeconds": 0.02}}}
    async with running(tmp_path, model, config=config, clock=StageClock()) as gateway:
        assert await gateway.ask("main", "hi") == "fine"
        assert await texts_of(gateway) == ["hi", "fine"]


# --- Which model, and how ---


def say_ref(ref: str) -> ScriptedModel:
    return ScriptedModel(ref, replies=lambda request: f"{ref} {request.thinking}")


async def test_the_model_is_the_runs_else_the_sessions_else_the_agents(tmp_path: Path) -> None:
    async with running(tmp_path, say_ref("scripted/test"), say_ref("a/session"), say_ref("a/run")) as gateway:
        assert await gateway.ask("main", "hi") == "scripted/test None"
        await gateway.store.patch_session(MAIN_KEY, SessionPatch(model="a/session", thinking_level="low"))
        assert await gateway.ask("main", "hi") == "a/session low"
        run = (await gateway.runtime.submit(request(MAIN, "hi", model="a/run", thinking="high"))).run
        assert (await ended(gateway, run.id)).reply == "a/run high"
        assert await gateway.ask("main", "hi") == "a/session low"
        await gateway.store.patch_session(MAIN_KEY, SessionPatch(model=None, thinking_level=None))
        assert await gateway.ask("main", "hi") == "scripted/test None"


async def test_the_agents_own_thinking_level_is_passed_on(tmp_path: Path) -> None:
    config = {"agents": {"list": [{"id": "main", "model": "scripted/test", "thinking": "medium"}]}}
    async with running(tmp_path, say_ref("scripted/test"), config=config) as gateway:
        assert await gateway.ask("main", "hi") == "scripted/test medium"


async def test_a_model_that_is_gone_is_a_clear_error_and_another_choice_works(tmp_path: Path) -> None:
    async with running(tmp_path, say_ref("scripted/test"), say_ref("a/old")) as gateway:
        await gateway.store.patch_session(MAIN_KEY, SessionPatch(model="a/old"))
        assert await gateway.ask("main", "hi") == "a/old None"
    async with running(tmp_path, say_ref("scripted/test")) as gateway:
        run = await ended(gateway, (await gateway.submit("main", "hi")).id)
        assert (run.state, run.error_code) == (RunState.ERROR, "unknown_model")
        assert "a/old" in (run.error or "")
        await gateway.store.patch_session(MAIN_KEY, SessionPatch(model=None))
        assert await gateway.ask("main", "hi") == "scripted/test None"


# --- What is counted and told ---


async def test_what_was_used_is_on_the_run_and_the_session(tmp_path: Path) -> None:
    model = ScriptedModel(
        replies=[
            Reply(calls=(call("look", place="box"),), usage=Usage(input=100, output=10)),
            Reply(text="done", usage=Usage(input=200, output=20)),
            Reply(text="more", usage=Usage(input=300, output=30)),
        ],
        price=Price(1.0, 10.0),
        context_window=8_000,
    )
    async with running(tmp_path, model, equip=add_tools) as gateway:
        before = await gateway.store.patch_session(MAIN_KEY, SessionPatch(label="x"))
        assert (before.system_sent, before.total_tokens, before.cost) == (False, None, None)
        await gateway.ask("main", "go", run_id="r")
        run = await stored(gateway, "r")
        assert (run.tokens_in, run.tokens_out) == (300, 30)
        assert run.cost == pytest.approx(0.0006)
        await gateway.ask("main", "more")
        session = await session_of(gateway)
        assert (session.tokens_in, session.tokens_out) == (600, 60)
        assert session.cost == pytest.approx(0.0012)
        assert (session.total_tokens, session.context_tokens, session.system_sent) == (330, 8_000, True)
        replies = [message.usage for message in await transcript_of(gateway) if message.role is Role.ASSISTANT]
        assert [usage and usage.total for usage in replies] == [110, 220, 330]


async def test_a_model_without_a_price_costs_nothing_known(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["hi"])) as gateway:
        await gateway.ask("main", "hi", run_id="r")
        assert (await stored(gateway, "r")).cost is None
        assert (await session_of(gateway)).cost is None


async def test_deltas_carry_the_whole_text_so_far(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[Reply(thinking="hm.", text=("one ", "two ", "three."))])
    async with running(tmp_path, model, clock=StageClock(ticks_s=1)) as gateway:
        heard = Heard(gateway)
        await gateway.ask("main", "count")
        grown = heard.of(ReplyGrew)
        assert [event.text for event in grown] == ["one ", "one two ", "one two three."]
        assert [event.delta for event in grown] == ["one ", "two ", "three."]
        assert [event.delta for event in heard.of(ThinkingGrew)] == ["hm."]


async def test_what_ends_like_the_beginning_of_the_mark_is_told_whole(tmp_path: Path) -> None:
    said = []

    async def alike(request: ModelRequest) -> Scripted:
        marks = re.findall(r"[A-Z2-7]{16}", request.system)
        said.append(f"take {marks[0][:3]}")
        return Reply(thinking=said[0], text=said[0])

    async with running(tmp_path, ScriptedModel(replies=alike), clock=StageClock(ticks_s=1)) as gateway:
        heard = Heard(gateway)
        await gateway.ask("main", "count")
        assert "".join(event.delta for event in heard.of(ThinkingGrew)) == said[0]
        assert "".join(event.delta for event in heard.of(ReplyGrew)) == said[0]


async def test_deltas_that_come_fast_are_told_together_and_none_is_lost(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[Reply(text=tuple(str(n % 10) for n in range(1_000)))])
    async with running(tmp_path, model) as gateway:
        heard = Heard(gateway)
        reply = await gateway.ask("main", "count")
        grown = heard.of(ReplyGrew)
        assert grown[-1].text == reply
        assert "".join(event.delta for event in grown) == reply
        assert len(grown) < 200


async def test_tools_are_told_as_they_start_and_end(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("look", place="box")], [call("fail")], "done"])
    async with running(tmp_path, model, equip=add_tools) as gateway:
        heard = Heard(gateway)
        await gateway.ask("main", "go", run_id="r")
        assert [(e.call_id, e.name, e.arguments) for e in heard.of(ToolStarted)] == [
            ("r/0/0", "look", {"place": "box"}),
            ("r/1/0", "fail", {}),
        ]
        assert [(e.call_id, e.is_error) for e in heard.of(ToolEnded)] == [("r/0/0", False), ("r/1/0", True)]
        assert heard.states("r") == [RunState.RUNNING, RunState.OK]


async def test_thinking_is_kept_in_the_transcript_and_given_back(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[Reply(thinking="let me see", text="there"), "again"])
    async with running(tmp_path, model) as gateway:
        await gateway.ask("main", "where?")
        await gateway.ask("main", "sure?")
        assert (await transcript_of(gateway))[1].content[0] == ThinkingBlock(thinking="let me see")
    assert ThinkingBlock(thinking="let me see") in model.requests[1].messages[1].content


# --- Function agents ---


async def test_a_function_agent_answers_and_calls_tools(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        add_tools(gateway)

        @gateway.agent("Help Desk")
        async def desk(context: FunctionContext) -> str:
            posted = await context.call("post", text=context.text)
            with pytest.raises(ToolFailed, match="it went wrong"):
                await context.call("fail", how="wrong")
            with pytest.raises(ToolFailed, match="no tool 'nope'"):
                await context.call("nope")
            said = [message.text for message in await context.history()]
            return f"{posted['as']} {context.agent_id} {context.session_key} {said} {context.run_id}"

    async with running(tmp_path, equip=equip) as gateway:
        reply = await gateway.ask("agent:help-desk:main", "hi", run_id="r")
        assert reply == "r/f/1 help-desk agent:help-desk:main ['hi'] r"
        assert (await transcript_of(gateway, "agent:help-desk:main"))[1].model == "function/help-desk"
        assert await gateway.store.open_calls("r") == []


@pytest.mark.parametrize(("value", "reply"), [(None, ""), ("", ""), ("hi", "hi")])
async def test_a_function_agent_may_have_nothing_to_say(tmp_path: Path, value: str | None, reply: str) -> None:
    async def quiet(context: FunctionContext) -> str | None:
        return value

    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("quiet", quiet)) as gateway:
        assert await gateway.ask("agent:quiet:main", "hi") == reply


@pytest.mark.parametrize("value", [42, {"text": "hi"}, ["a"], b"bytes"])
async def test_a_function_agent_that_returns_no_text_fails_with_a_clear_error(tmp_path: Path, value: Any) -> None:
    async def odd(context: FunctionContext) -> Any:
        return value

    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("odd", odd)) as gateway:
        run = await ended(gateway, (await gateway.submit("agent:odd:main", "hi")).id)
        assert run.state is RunState.ERROR
        assert f"returned {type(value).__name__}" in (run.error or "")


async def test_calls_that_a_function_agent_did_not_wait_for_are_closed_with_its_run(tmp_path: Path) -> None:
    begun = asyncio.Event()
    forgotten: list[asyncio.Task[Any]] = []

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def hang() -> str:
            begun.set()
            await asyncio.Event().wait()
            return "never"

        @gateway.agent("hasty")
        async def hasty(context: FunctionContext) -> str:
            forgotten.append(asyncio.ensure_future(context.call("hang")))
            await begun.wait()
            return "done"

    async with running(tmp_path, equip=equip) as gateway:
        assert await gateway.ask("agent:hasty:main", "go", run_id="r") == "done"
        assert await gateway.store.open_calls("r") == []
        forgotten[0].cancel()
        await asyncio.gather(*forgotten, return_exceptions=True)


async def test_the_request_is_a_plain_value(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("look", place="box")], "done"])
    async with running(tmp_path, model, equip=add_tools) as gateway:
        await gateway.ask("main", "go")
    for asked in model.requests:
        assert msgspec.json.decode(msgspec.json.encode(asked.messages), type=tuple[Message, ...]) == asked.messages


async def test_instructions_for_one_run_are_still_there_when_it_goes_on_after_a_crash(tmp_path: Path) -> None:
    reached = asyncio.Event()
    model = ScriptedModel(replies=[held("half", reached=reached)])
    async with dying(tmp_path, model) as gateway:
        asked = request("agent:main:main", "hello", id="r", instructions="Answer in French.")
        await gateway.runtime.submit(asked)
        await reached.wait()
    model = ScriptedModel(replies=["bonjour", "hello again"])
    async with running(tmp_path, model) as gateway:
        await ended(gateway, "r")
        await gateway.ask("main", "and now?")
    first, second = model.requests
    assert "# For this request\n\nAnswer in French." in first.system
    assert "French" not in second.system


async def test_a_function_agent_sees_the_instructions_for_its_run(tmp_path: Path) -> None:
    async def told(context: FunctionContext) -> str:
        return str(context.instructions)

    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("told", told)) as gateway:
        await gateway.runtime.submit(request("agent:told:main", "hi", id="r", instructions="be brief"))
        assert (await ended(gateway, "r")).reply == "be brief"
        assert await gateway.ask("agent:told:main", "hi") == "None"
