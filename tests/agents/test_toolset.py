"""The tools of an agent in a session, and the setting that decides."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.sandboxes import Sandboxes
from backchannel.agents.toolset import Tools
from backchannel.config import config_from
from backchannel.core.contracts import Effects, Tool, ToolContext, ToolOutput
from backchannel.core.keys import SessionKey
from backchannel.core.messages import text_content

pytestmark = pytest.mark.anyio
MAIN = "agent:main:main"


async def answer(context: ToolContext, arguments: dict[str, Any]) -> ToolOutput:
    return ToolOutput(text_content("done"))


def tool(name: str, effects: Effects = Effects.OUTSIDE, **more: Any) -> Tool:
    return Tool(name=name, description="", parameters={}, effects=effects, call=answer, **more)


READ = tool("read", Effects.NONE, group="fs", is_opt_in=True)
WRITE = tool("write", group="fs", is_opt_in=True, keeps_to_sandbox=True)
PLAIN = tool("post")


class Far:
    """A source whose tools are known when somebody has asked for them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    async def ready(self, allowed: Sequence[str], session_key: str) -> None:
        self.asked.append(tuple(allowed))

    def why_unknown(self, name: str, allowed: Sequence[str], session_key: str) -> str | None:
        return None

    def tools(self, session_key: str | None = None) -> Mapping[str, Tool]:
        return {"far__look": tool("far__look", group="mcp:far", is_opt_in=True)} if self.asked else {}


def toolset(tmp_path: Path, *tools: Tool, **config: Any) -> Tools:
    settings = config_from(config, os.environ, state=tmp_path)
    made = Tools(Agents(settings), settings.key_scheme, settings.tools.subagents.tools)
    for each in tools or (READ, WRITE, PLAIN):
        made.register(each)
    return made


def names(tools: Tools, key: str = MAIN) -> set[str]:
    return set(tools.of(SessionKey.stored(key).agent, key))


def test_a_tool_that_has_to_be_named_is_off_until_it_is(tmp_path: Path) -> None:
    tools = toolset(tmp_path)
    assert names(tools) == {"post"}
    assert tools.why_not(SessionKey.stored(MAIN), "read").startswith("it is off unless tools.allow names it")


@pytest.mark.parametrize(
    ("allow", "has"),
    [
        (["read"], {"read"}),
        (["group:fs"], {"read", "write"}),
        (["wr*", "post"], {"write", "post"}),
        (["*"], {"post"}),
        (["*", "group:fs"], {"read", "write", "post"}),
        (["group:mcp:fs"], set()),
        (["group:*"], set()),
    ],
)
def test_tools_are_named_alone_by_a_pattern_or_by_their_group(tmp_path: Path, allow: list[str], has: set[str]) -> None:
    assert names(toolset(tmp_path, tools={"allow": allow})) == has


def test_a_group_is_denied_as_it_is_allowed(tmp_path: Path) -> None:
    tools = toolset(tmp_path, tools={"allow": ["*", "group:fs"], "deny": ["group:fs"]})
    assert names(tools) == {"post"}
    assert tools.why_not(SessionKey.stored(MAIN), "write") == "tools.deny names it"


def test_a_sandboxed_session_has_of_the_tools_that_reach_outside_those_that_keep_to_its_sandbox(tmp_path: Path) -> None:
    tools = toolset(tmp_path, tools={"allow": ["*", "group:fs"]}, agents={"defaults": {"sandbox": {"mode": "all"}}})
    assert names(tools) == {"read", "write"}
    assert "sandboxed" in tools.why_not(SessionKey.stored(MAIN), "post")


async def test_a_source_is_asked_with_the_words_of_the_agent_and_brings_its_tools(tmp_path: Path) -> None:
    tools, far = toolset(tmp_path, tools={"allow": ["post", "group:mcp:far"]}), Far()
    tools.add_source(far)
    assert names(tools) == {"post"}
    await tools.ready("main", MAIN)
    assert far.asked == [("post", "group:mcp:far")]
    assert names(tools) == {"post", "far__look"}


async def test_a_source_is_not_asked_for_an_agent_that_names_no_tools(tmp_path: Path) -> None:
    tools, far = toolset(tmp_path), Far()
    tools.add_source(far)
    await tools.ready("main", MAIN)
    assert far.asked == []


async def test_a_registered_tool_keeps_its_name_from_those_of_a_source(tmp_path: Path) -> None:
    own = tool("far__look", Effects.NONE)
    tools, far = toolset(tmp_path, own, tools={"allow": ["*"]}), Far()
    tools.add_source(far)
    await tools.ready("main", MAIN)
    assert tools.of("main", MAIN)["far__look"] is own


def test_without_a_sandbox_on_this_machine_a_sandboxed_session_has_no_tool_that_reaches_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = config_from(
        {"tools": {"allow": ["*", "group:fs"]}, "agents": {"defaults": {"sandbox": {"mode": "all"}}}},
        {},
        state=tmp_path,
    )
    agents = Agents(settings)
    sandboxes = Sandboxes(agents, settings.key_scheme, tmp_path)
    tools = Tools(agents, settings.key_scheme, settings.tools.subagents.tools, sandboxes)
    for each in (READ, WRITE, PLAIN):
        tools.register(each)
    assert names(tools) == {"read"}
    assert "the package bubblewrap is not installed" in tools.why_not(SessionKey.stored(MAIN), "write")
