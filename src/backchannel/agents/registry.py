"""The agents of a gateway: configured agents, and functions registered from Python.

An agent that once was a function stays one: its messages are for the program that brings the function. A process
without that function knows the agent as *awaited*, and lets its runs wait. A function gets a `FunctionContext`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Any, Protocol

from backchannel.config.agents import AgentSettings, agent
from backchannel.config.schema import Config
from backchannel.core.keys import normalise_agent_id
from backchannel.core.messages import Message
from backchannel.core.text import nearest
from backchannel.errors import UnknownAgent


class FunctionContext(Protocol):
    """What a function agent gets."""

    @property
    def text(self) -> str:
        """The message to answer."""
        ...

    @property
    def message(self) -> Message: ...

    @property
    def instructions(self) -> str | None:
        """What the caller wants observed for this message only, where its door takes such: OpenAI's `system`."""
        ...

    @property
    def session_key(self) -> str: ...

    @property
    def agent_id(self) -> str: ...

    @property
    def run_id(self) -> str: ...

    async def history(self, limit: int = 50) -> list[Message]:
        """Read the newest messages of the session, oldest first, this one included."""
        ...

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call one of the agent's tools; done once, however often the function is run again.

        Raises:
            ToolFailed: the tool answered with an error.
        """
        ...


class ToolFailed(Exception):
    """A tool that a function agent called answered with an error; the text is the tool's."""


AgentFunction = Callable[[FunctionContext], Awaitable[str | None]]


class MissingAgent(StrEnum):
    """What the runs of an agent wait for."""

    FUNCTION = "function"
    """The program whose function the agent is."""
    AGENT = "agent"
    """A gateway that has the agent."""


class Agents:
    """Looks agents up by id."""

    def __init__(self, config: Config) -> None:
        self.default_id = config.default_agent
        self._settings = {entry.id: agent(config, entry.id) for entry in config.agents.list}
        self._configured = frozenset(self._settings)
        self._functions: dict[str, AgentFunction] = {}
        self._brought_before: set[str] = set()
        self.elsewhere: Collection[str] = ()
        """The agents that other gateways on the same database have."""

    def ids(self) -> list[str]:
        return list(self._settings)

    def models(self) -> list[str]:
        """Name the models of the agents that no function answers for, each once."""
        asked = [settings for id, settings in self._settings.items() if not self.is_function(id)]
        return list(dict.fromkeys(ref for settings in asked for ref in settings.row.refs))

    def models_of(self, agent_id: str) -> list[str]:
        """Name the models that an agent, its sub-agents and its summaries may ask; none for a function."""
        if self.is_function(agent_id):
            return []
        own = self._settings[agent_id]
        rows = (own.row, own.subagent_row, own.summary_row)
        return list(dict.fromkeys(ref for row in rows if row is not None for ref in row.refs))

    def count(self) -> int:
        return len(self._settings)

    def get(self, agent_id: str) -> AgentSettings:
        """Look up an agent.

        Raises:
            UnknownAgent: the message names the nearest, and all there are.
        """
        found = self._settings.get(agent_id)
        if found is None:
            raise _unknown(agent_id, self._settings)
        return found

    def configured(self, agent_id: str) -> AgentSettings:
        """Look up an agent that the configuration names.

        Raises:
            UnknownAgent
        """
        if agent_id not in self._configured:
            raise _unknown(agent_id, self._configured)
        return self._settings[agent_id]

    def function(self, agent_id: str) -> AgentFunction | None:
        """Give the function that is this agent, if it is one and is here."""
        return self._functions.get(agent_id)

    def functions(self) -> list[str]:
        """Name the agents that are functions of this process."""
        return list(self._functions)

    def is_function(self, agent_id: str) -> bool:
        """Whether a function answers for this agent, be it here or awaited."""
        return agent_id in self._functions or agent_id in self._brought_before

    def is_awaited(self, agent_id: str) -> bool:
        """Whether this agent is a function of a program that this process is not: nothing answers in its place."""
        return agent_id in self._brought_before and agent_id not in self._functions

    def is_here(self, agent_id: str) -> bool:
        """Whether this process carries out runs of this agent."""
        return agent_id in self._settings and not self.is_awaited(agent_id)

    def ids_here(self) -> set[str]:
        """Name the agents whose runs this process can carry out."""
        return {id for id in self._settings if self.is_here(id)}

    def note_elsewhere(self, agent_ids: Collection[str]) -> None:
        """Remember the agents that other gateways have."""
        self.elsewhere = agent_ids

    def missing(self, agent_id: str) -> MissingAgent | None:
        """Tell why no gateway at work carries out runs of this agent; None if one does."""
        if self.is_here(agent_id) or agent_id in self.elsewhere:
            return None
        return MissingAgent.FUNCTION if self.is_awaited(agent_id) else MissingAgent.AGENT

    def remember(self, agent_ids: Iterable[str]) -> None:
        """Say which agents programs have brought as functions before: messages for them are accepted, and wait."""
        for agent_id in agent_ids:
            self._brought_before.add(agent_id)
            self._add(agent_id)

    def forget(self, agent_id: str) -> None:
        """Let an agent be what the configuration says, once its function is gone for good."""
        self._brought_before.discard(agent_id)

    def register(self, name: str, function: AgentFunction) -> None:
        """Make a function an agent, under its own id or in place of a configured agent's model.

        Raises:
            TypeError: it is no `async def`.
            ValueError: another function is the agent of this name; the same one may come again.
        """
        if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
            raise TypeError(f"an agent is an `async def`; {function!r} is not")
        agent_id = normalise_agent_id(name)
        if _definition(self._functions.get(agent_id, function)) != _definition(function):
            raise ValueError(f"a function is the agent {agent_id!r} already: give this one another name")
        self._add(agent_id)
        self._functions[agent_id] = function

    def _add(self, agent_id: str) -> None:
        """Give an agent that only a program brings the settings that hold for all."""
        if agent_id not in self._settings:
            default = self._settings[self.default_id]
            self._settings[agent_id] = replace(
                default, id=agent_id, is_default=False, name=None, instructions=None, workspace=None
            )


def _unknown(agent_id: str, known: Iterable[str]) -> UnknownAgent:
    near = nearest(agent_id, known)
    hint = f"did you mean {near!r}? " if near else ""
    return UnknownAgent(
        f"no agent {agent_id!r} is configured: {hint}the agents are {', '.join(sorted(known))}", agentId=agent_id
    )


def _definition(function: AgentFunction) -> object:
    """Where a function is defined: each call of what defines it makes another object, and so does a reload."""
    return getattr(function, "__code__", function)
