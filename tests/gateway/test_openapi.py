"""The description of the HTTP doors: it tells of all that is served, and what it says is so."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema_rs import Draft202012Validator
from starlette.routing import Route

from backchannel.config.load import config_from
from backchannel.gateway.app import Gateway
from backchannel.gateway.openapi import build_document
from backchannel.gateway.server import ListeningServer, listening
from backchannel.gateway.ws import throttling
from backchannel.tools.registry import SESSION_TOOLS
from tests.support.far_end import signed
from tests.support.schemathesis_hooks import HOOK, OPERATOR, SECRET

pytestmark = pytest.mark.anyio

SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "20"))
"""How long other people's program looks for something that is not as described."""
NOT_DESCRIBED = ("/mcp", "/.well-known", "/page/")
"""What other specifications describe, and what only the page at `/` asks for."""

EVERYTHING: dict[str, Any] = {
    "gateway": {"http": {"chatCompletions": True}},
    "hooks": {"enabled": True, "token": HOOK, "allowDeliver": ["desk", "webchat"]},
    "channels": {
        "desk": {"adapter": "bridge", "url": "http://127.0.0.1:9/", "secret": SECRET, "allowFrom": ["*"]},
    },
}


@asynccontextmanager
async def served(state: Path, **config: Any) -> AsyncIterator[tuple[Gateway, ListeningServer]]:
    doors = {"port": 0, "auth": {"token": OPERATOR}, **config.pop("gateway", {})}
    agents = {"list": [{"id": "main", "model": "builtin/demo"}, {"id": "other", "model": "builtin/demo"}]}
    gateway = Gateway(config_from({"agents": agents, "gateway": doors, **config}, {}, state=state))
    async with gateway, listening(gateway, OPERATOR) as at:
        yield gateway, at


async def test_the_description_is_for_those_who_may_read(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (gateway, at),
        httpx.AsyncClient(trust_env=False, base_url=at.url, timeout=20) as client,
    ):
        assert (await client.get("/openapi.json")).status_code == 401
        answer = await client.get("/openapi.json", headers={"Authorization": f"Bearer {OPERATOR}"})
        assert answer.json() == json.loads(json.dumps(build_document(gateway.parts)))
        assert answer.json()["openapi"] == "3.1.0"


@pytest.mark.parametrize("config", [EVERYTHING, {}], ids=["everything", "nothing"])
async def test_it_tells_of_every_route_that_is_served_and_no_other(tmp_path: Path, config: dict[str, Any]) -> None:
    async with served(tmp_path, **config) as (gateway, at):
        described = {
            (path, method.upper()) for path, known in build_document(gateway.parts)["paths"].items() for method in known
        }
        hidden = NOT_DESCRIBED if config else (*NOT_DESCRIBED, "/channels")  # which is served, and knows of none
        routes = [route for route in at.web.routes if not route.path.startswith(hidden)]
        assert described >= {(_plain(route), method) for route in routes for method in _methods(route)}
        open_doors = {path for path, _ in described}
        assert bool(config) == any(path.startswith("/channels") for path in open_doors)
        assert ("/v1/models" in open_doors, "/hooks/wake" in open_doors) == (bool(config), bool(config))


def _plain(route: Route) -> str:
    return route.path.replace("{id:path}", "{id}")


def _methods(route: Route) -> set[str]:
    only_refused = {"DELETE"} if route.path == "/v1/responses/{id:path}" else set()  # answered to say why it is kept
    return (route.methods or set()) - {"HEAD"} - only_refused


async def test_every_tool_is_described_with_its_own_arguments(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, _):
        schemas = build_document(gateway.parts)["components"]["schemas"]
    for tool in SESSION_TOOLS:
        call = schemas[f"Call_{tool.name}"]
        assert call["properties"]["tool"] == {"const": tool.name}
        arguments = schemas[call["properties"]["args"]["$ref"].rpartition("/")[2]]
        assert arguments["properties"].keys() == tool.schema()["properties"].keys()


async def test_every_default_is_what_its_own_schema_allows(tmp_path: Path) -> None:
    async with served(tmp_path, **EVERYTHING) as (gateway, _):
        document = json.loads(json.dumps(build_document(gateway.parts)))
    defaults = list(_with_default(document["components"]["schemas"]))
    assert len(defaults) > 20
    assert [each for each in defaults if not _allows(document, each, each["default"])] == []


def _with_default(node: Any) -> Iterator[Any]:
    """Find all schemas in a document that have a default."""
    if isinstance(node, dict):
        if "default" in node and not isinstance(node["default"], dict):
            yield node
        node = list(node.values())
    for each in node if isinstance(node, list) else ():
        yield from _with_default(each)


def _allows(document: Any, schema: Any, value: Any) -> bool:
    validator = Draft202012Validator({**schema, "components": document["components"]})
    return bool(validator.is_valid(value))


ASKED = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
INBOUND = "/channels/{name}/inbound"
WRITTEN = {"chatType": "direct", "chatId": "C-1", "senderId": "ann", "messageId": "1", "text": "hello"}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/tools/invoke", {"tool": "sessions_send", "args": {"message": "hello"}}),
    ("/tools/invoke", {"tool": "sessions_send", "args": {"message": "hello", "sessionKey": None}}),
    ("/tools/invoke", {"tool": "sessions_send", "args": {"message": "hello", "sessionKey": "main", "label": "a"}}),
    ("/tools/invoke", {"tool": "sessions_send", "args": {"message": "hello", "sessionKey": "main", "agentId": "main"}}),
    ("/tools/invoke", {"tool": "sessions_send", "args": {"message": " ", "sessionKey": "main"}}),
    ("/tools/invoke", {"tool": "sessions_spawn", "args": {"task": " "}}),
    ("/tools/invoke", {"tool": "sessions_history", "args": {"sessionKey": "main", "offset": 1}}),
    ("/hooks/agent", {"message": ""}),
    ("/hooks/agent", {"message": "hello", "deliver": True, "threadId": "1"}),
    ("/hooks/agent", {"message": "hello", "deliver": True, "channel": None, "to": "C-1"}),
    ("/hooks/agent", {"message": "hello", "deliver": True, "channel": "desk"}),
    ("/hooks/agent", {"message": "hello", "channel": "desk", "to": "C-1"}),
    ("/hooks/agent", {"message": "hello", "thinking": "loudly"}),
    (INBOUND, {**WRITTEN, "ts": 0}),
    ("/hooks/wake", {"text": " "}),
    ("/v1/chat/completions", {**ASKED, "web_search_options": {}}),
    ("/v1/chat/completions", {**ASKED, "n": True}),
    ("/v1/responses", {"model": "main", "input": "hello", "prompt": {}}),
    ("/v1/responses", {"model": "main", "input": "hello", "text": {"format": {"type": "json_object"}}}),
]
TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("/tools/invoke", {"tool": "sessions_send", "args": {"message": "hello", "sessionKey": "main"}}),
    ("/tools/invoke", {"tool": "sessions_send", "args": {"message": "hello", "label": "a", "agentId": "main"}}),
    ("/tools/invoke", {"tool": "sessions_history", "args": {"sessionKey": "main", "offset": None}}),
    ("/hooks/agent", {"message": "hello", "channel": None, "to": None}),
    ("/hooks/agent", {"message": "hello", "deliver": True, "channel": "desk", "to": "C-1", "threadId": "1"}),
    ("/hooks/agent", {"message": "hello", "deliver": True, "channel": "webchat"}),
    (INBOUND, {**WRITTEN, "ts": None}),
    ("/v1/chat/completions", {**ASKED, "web_search_options": None, "n": 1.0, "logprobs": False}),
    ("/v1/responses", {"model": "main", "input": "hello", "text": {"verbosity": "low"}, "tools": []}),
]


async def test_what_a_schema_allows_is_taken_and_what_is_refused_it_refuses(tmp_path: Path) -> None:
    async with (
        served(tmp_path, **EVERYTHING) as (gateway, at),
        httpx.AsyncClient(trust_env=False, base_url=at.url, timeout=20) as client,
    ):
        document = json.loads(json.dumps(build_document(gateway.parts)))
        for path, body in REFUSED + TAKEN:
            content, headers = signed(body, SECRET)
            headers["Authorization"] = f"Bearer {HOOK if path.startswith('/hooks') else OPERATOR}"
            answer = await client.post(path.format(name="desk"), content=content, headers=headers)
            said = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            is_taken = (path, body) in TAKEN
            assert answer.is_success if is_taken else answer.status_code == 400, (path, body, answer.text)
            assert _allows(document, said, body) == is_taken, (path, body)


@pytest.mark.timeout(SECONDS + 60)
async def test_another_program_finds_nothing_that_is_not_as_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("ADDRESS_FAILURES", "CREDENTIAL_FAILURES"):  # it comes with many wrong tokens, and wants a 401 each
        monkeypatch.setattr(throttling, limit, 1_000_000)
    async with served(tmp_path / "state", **EVERYTHING) as (gateway, at):
        description = tmp_path / "openapi.json"
        description.write_text(json.dumps(build_document(gateway.parts)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", str(description), "--url", at.url),
            *("--max-time", str(SECONDS), "--request-timeout", "10", "--suppress-health-check", "all"),
            # What is valid by its types may break a rule that no schema can say, and is refused then.
            *("--exclude-checks", "positive_data_acceptance"),
            cwd=tmp_path,
            env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks", "PYTHONPATH": str(Path.cwd())},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        runs = await gateway.store.runs(limit=1000)
    assert process.returncode == 0, said.decode()
    assert any(":openai:" in run.session_key for run in runs), "it never got to ask an agent"
