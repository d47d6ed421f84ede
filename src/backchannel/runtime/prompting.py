"""The prompt of a run: its system text and its tools, and what they cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from backchannel.agents.prompts import system_prompt, with_instructions
from backchannel.core.budget import text_tokens
from backchannel.core.caller_keys import CallerKeys
from backchannel.core.contracts import Tool, ToolSpec
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.shape import digest
from backchannel.runtime.active import ActiveRun, RunSetup

_MOST_TOOL_SETS = 64


class RunPrompt(msgspec.Struct, frozen=True):
    """All that a request has besides messages."""

    system: str
    system_digest: str
    tools: ShownTools
    tokens: int


class ShownTools(msgspec.Struct, frozen=True):
    """A set of tools as models see it."""

    tools: tuple[Tool, ...]
    """Kept, so that no other tool gets the identity of one of them."""
    specs: tuple[ToolSpec, ...]
    digest: str
    tokens: int


class Prompts:
    """Makes the prompts of runs; those of the same session and tools are made once."""

    def __init__(self, scheme: KeyScheme) -> None:
        self._scheme = scheme
        self._shown: OrderedDict[tuple[int, ...], ShownTools] = OrderedDict()

    def prompt(self, active: ActiveRun, setup: RunSetup, mark: str) -> RunPrompt:
        key = SessionKey.stored(active.run.session_key)
        tools = self._tools(setup.shown_tools)
        system = system_prompt(
            agent_id=setup.agent.id,
            session_key_shown=CallerKeys(self._scheme, key).show(key),
            kind=setup.session.kind,
            mark=mark,
            agent_name=setup.agent.name,
            instructions=setup.agent.instructions,
            channel=setup.session.channel,
            tools=tuple(setup.shown_tools),
            is_subagent=key.is_subagent,
        )
        system = with_instructions(system, active.run.instructions, mark)
        return RunPrompt(system, digest(system), tools, text_tokens(system) + tools.tokens)

    def _tools(self, tools: Mapping[str, Tool]) -> ShownTools:
        identity = tuple(map(id, tools.values()))
        shown = self._shown.get(identity)
        if shown is None:
            shown = self._shown[identity] = _shown(tuple(tools.values()))
            if len(self._shown) > _MOST_TOOL_SETS:
                self._shown.popitem(last=False)
        return shown


def _shown(tools: tuple[Tool, ...]) -> ShownTools:
    specs = tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in tools)
    tokens = sum(text_tokens(f"{spec.description}{spec.parameters}") for spec in specs)
    return ShownTools(tools, specs, digest(msgspec.json.encode(specs)), tokens)
