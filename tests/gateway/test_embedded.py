"""The gateway in a program: what those who embed it meet first."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import backchannel
from backchannel import FunctionContext, Gateway, RunFailed, ScriptedModel
from backchannel.core.sessions import SessionPatch
from backchannel.errors import ConfigError, SessionNotFound, Unavailable

pytestmark = pytest.mark.anyio
DEMO: dict[str, Any] = {"agents": {"list": [{"id": "main", "model": "builtin/demo"}]}}


async def test_a_gateway_that_was_not_entered_says_so() -> None:
    gateway = Gateway.open(DEMO)

    with pytest.raises(Unavailable, match="async with"):
        await gateway.ask("main", "hello")
    with pytest.raises(Unavailable, match="async with"):
        gateway.tools()


async def test_a_temporary_state_folder_goes_with_its_gateway() -> None:
    gateway = Gateway.open(DEMO)
    folder = gateway.config.state_dir
    async with gateway:
        await gateway.ask("main", "hello")
    assert folder.exists()

    del gateway
    gc.collect()

    assert not folder.exists()


async def test_a_state_folder_of_ones_own_stays(tmp_path: Path) -> None:
    gateway = Gateway.open(DEMO, state=tmp_path)
    async with gateway:
        await gateway.ask("main", "hello")

    del gateway
    gc.collect()

    assert (tmp_path / "backchannel.db").exists()


async def test_a_wait_that_ends_before_its_run_says_that_the_run_goes_on() -> None:
    gateway = Gateway.open(DEMO)
    finish = []

    @gateway.agent("slow")
    async def slow(run: FunctionContext) -> str:
        finish.append(run.run_id)
        return "done"

    async with gateway:
        with pytest.raises(RunFailed, match=r"still (queued|running): the wait ended first") as failed:
            await gateway.ask("agent:slow:main", "hello", timeout_s=0, run_id="r")
        assert not failed.value.run.is_finished
        assert await gateway.ask("agent:slow:main", "hello", run_id="r") == "done"
    assert finish == ["r"]


async def test_an_error_in_the_settings_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean `model`"):
        Gateway.open({"agents": {"list": [{"id": "main", "modle": "builtin/demo"}]}})


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ({}, {"weather_now", "weather_later", "post"}),
        ({"allow": ["weather_*"]}, {"weather_now", "weather_later"}),
        ({"allow": ["*"], "deny": ["*_now"]}, {"weather_later", "post"}),
        ({"deny": ["*"]}, set()),
        ({"allow": ["post"]}, {"post"}),
    ],
)
async def test_tools_are_allowed_and_denied_by_patterns(tools: dict[str, Any], expected: set[str]) -> None:
    model = ScriptedModel(replies=["ok"])
    gateway = Gateway.open({"agents": {"list": [{"id": "main", "model": "scripted/test", "tools": tools}]}})
    gateway.add_model(model)

    async def nothing() -> None: ...

    for name in ("weather_now", "weather_later", "post"):
        gateway.tool(name=name)(nothing)
    async with gateway:
        await gateway.ask("main", "hello")

    own = {tool.name for tool in model.requests[0].tools if not tool.name.startswith(("session", "agents"))}
    assert own == expected


async def _clerk(run: FunctionContext) -> str:
    return "yes"


class _Clerk:
    async def __call__(self, run: FunctionContext) -> str:
        return "an object says yes"


def test_an_agent_without_a_name_is_refused_where_it_is_defined() -> None:
    gateway = Gateway.open(DEMO)

    with pytest.raises(TypeError, match=r'write @gateway\.agent\("clerk"\)'):
        gateway.agent(_clerk)  # type: ignore[arg-type]  # what people write


def test_a_tool_without_parentheses_is_refused_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match=r"write .* or @gateway\.tool\(\), not @gateway\.tool alone"):
        Gateway.open(DEMO).tool(_clerk)  # type: ignore[arg-type]  # what people write


def test_a_plain_function_is_refused_as_an_agent_where_it_is_defined() -> None:
    gateway = Gateway.open(DEMO)

    with pytest.raises(TypeError, match="an agent is an `async def`"):

        @gateway.agent("clerk")
        def clerk(run: FunctionContext) -> str:
            return "no"

    assert "clerk" not in gateway.agents.ids()


async def test_an_object_that_is_called_like_an_async_function_is_an_agent() -> None:
    gateway = Gateway.open(DEMO)
    gateway.add_agent("clerk", _Clerk())

    async with gateway:
        assert await gateway.ask("agent:clerk:main", "well?") == "an object says yes"


def test_two_functions_are_not_the_agent_of_one_name() -> None:
    gateway = Gateway.open(DEMO)
    gateway.add_agent("Clerk", _clerk)
    gateway.add_agent("clerk", _clerk)  # the same one again, as a module that is imported twice brings it

    with pytest.raises(ValueError, match="a function is the agent 'clerk' already"):
        gateway.add_agent("clerk", _Clerk())


@pytest.mark.parametrize("effects", ["nonee", "session"])
def test_effects_that_are_no_such_word_are_refused_with_those_that_are(effects: str) -> None:
    gateway = Gateway.open(DEMO)

    with pytest.raises(ValueError, match=f'effects: got \'{effects}\', expected "none" or "outside"'):
        gateway.tool(effects=effects)  # type: ignore[arg-type]  # what people write


def test_errors_that_a_program_catches_are_public() -> None:
    assert issubclass(backchannel.ConfigError, backchannel.StartupError)
    assert issubclass(backchannel.IdempotencyConflict, backchannel.GatewayError)


async def test_a_word_alone_means_what_it_means_on_the_command_line() -> None:
    gateway = Gateway.open(DEMO)

    @gateway.agent("critic")
    async def critic(run: FunctionContext) -> str:
        return f"{run.session_key}: no"

    async with gateway:
        assert await gateway.ask("Critic", "is it good?") == "agent:critic:main: no"
        assert (await gateway.submit("critic", "and that?")).session_key == "agent:critic:main"
        assert gateway.key("critic") == gateway.key("agent:critic:main")
        with pytest.raises(SessionNotFound, match=r"no agent has this id \(agent:main:<name> begins one\)"):
            await gateway.ask("crtic", "hello?")
        await gateway.ask("agent:main:notes", "hello")
        await gateway.store.patch_session(gateway.key("agent:critic:main"), SessionPatch(label="the critic"))
        assert (await gateway.submit("notes", "hello")).session_key == "agent:main:notes"
        assert (await gateway.submit("the critic", "hello")).session_key == "agent:critic:main"
        session = await gateway.store.session("agent:critic:main")
        assert session is not None
        assert (await gateway.submit(session.session_id, "hello")).session_key == "agent:critic:main"
