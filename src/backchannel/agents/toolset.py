"""The tools of a gateway: registered functions, and the tools of each agent."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.sandboxes import Sandboxes
from backchannel.config.schema_agents import ToolNameSettings
from backchannel.core.contracts import Effects, Tool, ToolContext, ToolOutput, ToolSource
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.mcp_names import names_all
from backchannel.core.messages import text_content
from backchannel.core.policy.visibility import is_sandboxed
from backchannel.core.text import ANY, matches, quoted
from backchannel.errors import InvalidRequest
from backchannel.wire.shapes import params_schema

GROUP = "group:"
SESSION_TOOL_GROUP = f"{GROUP}sessions"
NEVER_FOR_SUBAGENTS = "sessions_spawn"

ToolFunction = Callable[..., Awaitable[Any]]
ToolEffects = Literal["none", "outside"]


class Tools:
    """All registered tools; `of` names those that one agent has in one session."""

    def __init__(
        self,
        agents: Agents,
        scheme: KeyScheme,
        for_subagents: ToolNameSettings,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        self._agents = agents
        self._sandboxes = sandboxes
        self._scheme = scheme
        self._for_subagents = for_subagents
        self._registered: dict[str, Tool] = {}
        self._sources: list[ToolSource] = []

    def register(self, tool: Tool) -> None:
        if tool.name in self._registered:
            raise ValueError(f"a tool named {tool.name!r} is registered already: give this one another name")
        self._registered[tool.name] = tool

    def add_source(self, source: ToolSource) -> None:
        """Have the tools of a source too; where a name is registered, the registered tool has it."""
        self._sources.append(source)

    def all(self) -> list[Tool]:
        return list(self._known(None).values())

    def _known(self, session_key: str | None) -> Mapping[str, Tool]:
        if not self._sources:
            return self._registered
        known: dict[str, Tool] = {}
        for source in self._sources:
            known |= source.tools(session_key)
        return known | self._registered

    async def ready(self, agent_id: str, session_key: str) -> None:
        """Let the sources find out which tools they have, if this agent may have some of them in this session."""
        if self._sources and (allowed := self._words_for(agent_id, session_key)):
            await asyncio.gather(*(source.ready(allowed, session_key) for source in self._sources))

    def _words_for(self, agent_id: str, session_key: str) -> tuple[str, ...]:
        words = self._agents.get(agent_id).allow_tools or ()
        return (*words, *self._for_subagents.allow) if SessionKey.stored(session_key).is_subagent else words

    def of(self, agent_id: str, session_key: str) -> Mapping[str, Tool]:
        """Name the tools that this agent has in this session: allowed, not denied, and safe if it is sandboxed."""
        settings, key, tools = self._agents.get(agent_id), SessionKey.stored(session_key), self._known(session_key)
        allowed = _allowed(tools, (ANY,) if settings.allow_tools is None else settings.allow_tools)
        denied = _named(tools, settings.deny_tools)
        if key.is_subagent:
            allowed |= _allowed(tools, self._for_subagents.allow)
            denied |= self._denied_to_subagents(tools)
        if is_sandboxed(key, self._scheme, settings.sandbox_mode):
            problem, network = self._sandbox_problem(key), self._has_network(key)
            denied |= {name for name, tool in tools.items() if _escapes(tool, problem, network)}
        return {name: tool for name, tool in tools.items() if name in allowed and name not in denied}

    def refusal(self, session_key: str, name: str, has: Iterable[str]) -> str:
        """Say why a run that has other tools does not have this one, as the result of a call of it."""
        key, tool = SessionKey.stored(session_key), self._known(session_key).get(name)
        if tool is None or name in self.of(key.agent, session_key):  # an announce step has none
            why = self._why_unknown(key, name) if tool is None else None
            return f"there is no tool {quoted(name, 64)} here{why or ''}; you have: {', '.join(has) or 'none'}"
        reason = self.why_not(key, name)
        if name == NEVER_FOR_SUBAGENTS and key.is_subagent:
            return msgspec.json.encode({"status": "forbidden", "error": reason}).decode()  # as at every door
        return f"{name} is not among your tools: {reason}"

    def _why_unknown(self, key: SessionKey, name: str) -> str | None:
        words = self._words_for(key.agent, str(key))
        reasons = (source.why_unknown(name, words, str(key)) for source in self._sources)
        return next((f": {reason}" for reason in reasons if reason is not None), None)

    def why_not(self, key: SessionKey, name: str) -> str:
        """Say which setting keeps a tool from a session that does not have it, and what would give it."""
        settings, tools = self._agents.get(key.agent), self._known(str(key))
        if key.is_subagent and name == NEVER_FOR_SUBAGENTS:
            return "a sub-agent may not spawn another"
        if key.is_subagent and name in _named(tools, self._for_subagents.deny):
            return "tools.subagents.tools.deny names it"
        for setting, names in settings.deny_settings:
            if name in _named(tools, names):
                return f"{setting} names it"
        if key.is_subagent and name in self._denied_to_subagents(tools):
            return "a sub-agent has no session tools (tools.subagents.tools.allow can give it back)"
        words = (ANY,) if settings.allow_tools is None else settings.allow_tools
        if name not in _allowed(tools, words):
            if any(map(names_all, words)):
                return f"it is off unless {settings.allow_setting} names it, or its group, which `*` does not"
            return f"{settings.allow_setting} does not name it"
        if name in tools and tools[name].needs_network and not self._has_network(key):
            return "the session runs sandboxed (sandbox.mode), and its sandbox has no network (sandbox.network)"
        problem = self._sandbox_problem(key)
        if problem is not None and name in tools and tools[name].keeps_to_sandbox:
            return f"the session runs sandboxed (sandbox.mode), and there is no sandbox here: {problem}"
        return "the session runs sandboxed (sandbox.mode), and the tool reaches outside"

    def _sandbox_problem(self, key: SessionKey) -> str | None:
        """Say why programs of a session cannot run in the sandbox that it should have."""
        sandbox = None if self._sandboxes is None else self._sandboxes.of(key.agent, str(key))
        return None if sandbox is None else sandbox.problem

    def _has_network(self, key: SessionKey) -> bool:
        """Whether the sandbox of a session has the network."""
        sandbox = None if self._sandboxes is None else self._sandboxes.of(key.agent, str(key))
        return sandbox is not None and sandbox.rules.network

    def _denied_to_subagents(self, tools: Mapping[str, Tool]) -> set[str]:
        """Session tools are not for sub-agents, unless given back; spawning never is, and what is denied stays so."""
        given_back = _named(tools, self._for_subagents.allow) - {NEVER_FOR_SUBAGENTS}
        denied = (_named(tools, (SESSION_TOOL_GROUP,)) - given_back) | _named(tools, self._for_subagents.deny)
        return denied | {NEVER_FOR_SUBAGENTS}


def _allowed(tools: Mapping[str, Tool], words: Iterable[str]) -> set[str]:
    """Name the tools that words give: `*` gives all, but for those that have to be named themselves."""
    names: set[str] = set()
    for word in words:
        if names_all(word):
            names.update([name for name, tool in tools.items() if not tool.is_opt_in])
        else:
            names |= _named(tools, (word,))
    return names


def _named(tools: Mapping[str, Tool], words: Iterable[str]) -> set[str]:
    """Name the tools that words of a setting mean: a group's, or those of a pattern."""
    names: set[str] = set()
    for word in words:
        if names_all(word):
            names.update(tools)
        elif word == SESSION_TOOL_GROUP:
            names.update(name for name, tool in tools.items() if tool.effects is Effects.SESSION)
        elif word.startswith(GROUP):
            names.update(name for name, tool in tools.items() if tool.group == word.removeprefix(GROUP))
        else:
            names.update(name for name in tools if matches(word, name))
    return names


def _escapes(tool: Tool, problem: str | None, network: bool) -> bool:
    if tool.needs_network and not network:
        return True
    return tool.effects is Effects.OUTSIDE and (problem is not None or not tool.keeps_to_sandbox)


def tool_from(function: ToolFunction, *, name: str | None, description: str | None, effects: Effects) -> Tool:
    """Make a tool of an `async def`: its name, docstring and annotations are what the model is told.

    A parameter annotated with `ToolContext` is filled in by the gateway and not shown to the model.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"a tool is an `async def`; {function!r} is not")
    hints = typing.get_type_hints(function, include_extras=True)
    context_name = next((param for param, hint in hints.items() if hint is ToolContext), None)
    arguments = _arguments_of(function, hints)

    async def call(context: ToolContext, given: dict[str, Any]) -> ToolOutput:
        values = msgspec.structs.asdict(_read(arguments, given))
        if context_name is not None:
            values[context_name] = context
        return _output(await function(**values))

    return Tool(
        name=name or function.__name__,
        description=description or inspect.getdoc(function) or "",
        parameters=params_schema(arguments),
        effects=effects,
        call=call,
    )


def _arguments_of(function: ToolFunction, hints: Mapping[str, Any]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for param in inspect.signature(function).parameters.values():
        hint = hints.get(param.name, Any)
        if hint is ToolContext:
            continue
        if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD, param.POSITIONAL_ONLY):
            raise TypeError(f"{function.__name__}: a tool's parameters are named; {param} is not")
        known = param.default is not param.empty
        fields.append((param.name, hint, param.default) if known else (param.name, hint))
    return msgspec.defstruct(function.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _read(arguments: type[msgspec.Struct], given: dict[str, Any]) -> msgspec.Struct:
    try:
        return msgspec.convert(given, arguments)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the arguments do not fit: {error}") from error


def _output(value: Any) -> ToolOutput:
    if isinstance(value, ToolOutput):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return ToolOutput(text_content(text))
