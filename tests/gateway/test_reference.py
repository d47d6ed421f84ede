"""The method table and the reference that is made from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docs.build.reference import render_methods, render_protocol

from backchannel.gateway.methods import METHODS
from backchannel.gateway.protocol import EVENTS, WITHOUT_EFFECT

from .client import Client

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
HOW = "run `make reference`"


def test_the_page_is_current() -> None:
    assert (REFERENCE / "methods.md").read_text(encoding="utf-8") == render_methods(), HOW


def test_the_machine_readable_copy_is_current() -> None:
    assert (REFERENCE / "protocol.json").read_text(encoding="utf-8") == render_protocol(), HOW


def test_every_method_is_described() -> None:
    shown = json.loads(render_protocol())["methods"]
    assert set(shown) == set(METHODS)
    for name, method in METHODS.items():
        assert method.doc.endswith("."), name
        assert method.answer.startswith("`{"), name
        assert f"### `{name}`" in render_methods()


def test_every_event_is_on_the_page() -> None:
    for event in EVENTS:
        assert f"| `{event}` |" in render_methods()


def test_fields_without_effect_belong_to_methods_there_are() -> None:
    assert WITHOUT_EFFECT.keys() <= METHODS.keys()


@pytest.mark.anyio
async def test_the_catalogue_lists_agents_and_models(client: Client) -> None:
    agents = await client.ask("agents.list")
    assert agents["defaultId"] == "main" and agents["mainKey"] == "main" and agents["scope"] == "per-sender"
    assert agents["agents"][0] == {"id": "main", "model": {"primary": "builtin/demo"}}
    assert {"id": "echo"} in agents["agents"]
    models = {model["ref"]: model for model in (await client.ask("models.list"))["models"]}
    assert models["test/speaker"]["contextWindow"] == 1000
    assert models["test/speaker"]["provider"] == "test" and models["test/speaker"]["id"] == "speaker"


@pytest.mark.anyio
async def test_status_tells_what_there_is_to_do(client: Client) -> None:
    status = await client.ask("status")
    assert status["runs"] == {"queued": 0, "running": 0, "failed": 0, "setAside": 0}
    assert status["deliveries"] == {"waiting": 0, "failed": 0, "uncertain": 0}
    assert status["connections"] == 1 and "echo" in status["agents"]
