"""The MCP inspector's command line, over both transports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from backchannel.tools.registry import SESSION_TOOLS
from tests.cli.program import Program

from .conftest import Node

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = Program(tmp_path_factory.mktemp("running"))
    with program.up():
        program.answer("chat", "hello")
        yield program


def inspect(node: Node, *words: str) -> Any:
    program = node.folder / "node_modules" / ".bin" / "mcp-inspector"
    return json.loads(node.run(str(program), "--cli", *words))


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_the_inspector_lists_and_calls_the_tools(running: Program, node: Node, transport: str) -> None:
    address = (running.state / "address").read_text().strip()
    target = {
        "http": [f"{address}/mcp", "--transport", "http", "--header", f"Authorization: Bearer {running.token}"],
        "stdio": running.command("mcp"),
    }[transport]
    listed = inspect(node, *target, "--method", "tools/list")
    called = inspect(node, *target, "--method", "tools/call", "--tool-name", "sessions_list", "--tool-arg", "limit=1")

    assert [tool["name"] for tool in listed["tools"]] == [tool.name for tool in SESSION_TOOLS]
    assert called["structuredContent"]["count"] == 1
