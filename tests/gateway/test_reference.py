"""The method table and the reference that is made from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docs.build.answers import Shapes, paragraphs, show_value
from docs.build.methods import render_methods, render_protocol

from backchannel.gateway.table import EVENTS, METHODS
from backchannel.wire.answers import ChatStarted, RunShown, TokenRevoked
from backchannel.wire.rows import RunRow

from .client import Client
from .conftest import MakeWorld

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
HOW = "run `make reference`"


def test_the_page_is_current() -> None:
    assert (REFERENCE / "methods.md").read_text(encoding="utf-8") == render_methods(), HOW


def test_the_machine_readable_copy_is_current() -> None:
    assert (REFERENCE / "protocol.json").read_text(encoding="utf-8") == render_protocol(), HOW


def test_every_method_is_described() -> None:
    shown, page = json.loads(render_protocol())["methods"], render_methods()
    assert set(shown) == set(METHODS)
    for name, method in METHODS.items():
        assert paragraphs(method.doc)[0].endswith("."), name
        assert f"### `{name}`" in page


def test_an_answer_is_written_from_its_type() -> None:
    shapes = Shapes([TokenRevoked, list[RunShown]], always=[RunRow])
    assert shapes.show(TokenRevoked) == "{ok, id}"
    assert shapes.show(list[RunShown]) == "[{run: RunRow}]" and shapes.links(list[RunShown]) == ["RunRow"]
    assert shapes.show(ChatStarted) == "{runId, status, reply?}"
    assert shapes.notes(ChatStarted)[0] == "- `status`: `started` or `queued`; `ok` for a chat command."


def test_an_empty_answer_is_written_from_its_value() -> None:
    assert show_value({"a": [], "b": {"c": None, "d": False}, "e": "x"}) == "{a: [], b: {c: null, d: false}, e}"


def test_every_event_is_on_the_page() -> None:
    page = render_methods()
    for event in EVENTS:
        assert f"| `{event}` |" in page


@pytest.mark.anyio
async def test_the_catalogue_lists_agents_and_models(client: Client) -> None:
    agents = await client.ask("agents.list")
    assert agents["defaultId"] == "main" and agents["mainKey"] == "main" and agents["scope"] == "per-sender"
    told = {agent["id"]: agent.pop("backchannel") for agent in agents["agents"]}
    assert agents["agents"][0] == {"id": "main", "model": {"primary": "builtin/demo"}}
    assert {"id": "echo"} in agents["agents"]
    assert (told["main"]["isFunction"], told["main"]["model"]) == (False, "builtin/demo")
    assert told["echo"]["isFunction"] is True and "model" not in told["echo"]
    assert told["main"]["subagents"] == {"allowAgents": [], "model": "builtin/demo", "maxChildren": 20}
    models = {model["backchannel"]["ref"]: model for model in (await client.ask("models.list"))["models"]}
    assert models["test/speaker"]["contextWindow"] == 1000
    assert models["test/speaker"]["provider"] == "test" and models["test/speaker"]["id"] == "speaker"
    assert models["test/speaker"]["available"] is True
    assert [ref for ref, model in models.items() if "default" in model.get("tags", [])] == ["builtin/demo"]


@pytest.mark.anyio
async def test_models_that_nobody_can_ask_are_listed_only_when_all_are_asked_for(client: Client) -> None:
    listed = {view: (await client.ask("models.list", view=view))["models"] for view in ("default", "all")}
    assert {model["available"] for model in listed["default"]} == {True}
    assert [model for model in listed["all"] if model["available"]] == listed["default"]
    without = [model for model in listed["all"] if model["provider"] == "openai"]
    assert without and {model["unavailableReason"] for model in without} == {"missing-auth"}


@pytest.mark.anyio
async def test_models_are_listed_of_one_provider_and_for_one_agent(client: Client) -> None:
    listed = (await client.ask("models.list", provider="test", agentId="speaker"))["models"]
    assert {model["provider"] for model in listed} == {"test"}
    assert [model["id"] for model in listed if model.get("tags")] == ["speaker"]
    told = (await client.ask("models.authStatus"))["providers"]
    assert {"provider": "test", "displayName": "test", "status": "static", "profiles": []} in told
    assert (await client.refused("models.list", {"agentId": "nobody"}))["details"]["code"] == "unknown_agent"


@pytest.mark.anyio
async def test_a_provider_without_a_key_is_told_of_only_where_somebody_names_it(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    agents = [{"id": "main", "model": "anthropic/claude-sonnet-5-5"}, {"id": "home", "model": "ollama/llama"}]
    desk = {"baseUrl": "http://127.0.0.1:9/v1", "api": "openai"}
    config = {"agents": {"list": agents}, "models": {"providers": {"desk": desk}}}
    async with make_world(config) as world, world.client() as client:
        told = {each["provider"]: each["status"] for each in (await client.ask("models.authStatus"))["providers"]}
        assert told["anthropic"] == "missing" and "openai" not in told
        assert told["desk"] == told["ollama"] == told["builtin"] == "static"


@pytest.mark.anyio
async def test_status_tells_what_there_is_to_do(client: Client) -> None:
    status = await client.ask("status")
    assert status["runs"] == {"queued": 0, "running": 0, "failed": 0, "setAside": 0, "waiting": 0}
    assert status["deliveries"] == {"waiting": 0, "failed": 0, "uncertain": 0}
    assert status["connections"] == 1 and "echo" in status["agents"]
