"""The agents of a gateway: those of the configuration, and functions registered from Python."""

from __future__ import annotations

import difflib
from dataclasses import replace

from backchannel.agents.functions import AgentFunction
from backchannel.config.agents import AgentSettings, agent
from backchannel.config.schema import Config
from backchannel.core.keys import normalise_agent_id
from backchannel.errors import UnknownAgent


class Agents:
    """Looks agents up by id."""

    def __init__(self, config: Config) -> None:
        self.default_id = config.default_agent
        self._settings = {entry.id: agent(config, entry.id) for entry in config.agents.list}
        self._functions: dict[str, AgentFunction] = {}

    def ids(self) -> list[str]:
        return list(self._settings)

    def get(self, agent_id: str) -> AgentSettings:
        """Look up an agent.

        Raises:
            UnknownAgent: the message names the nearest, and all there are.
        """
        found = self._settings.get(agent_id)
        if found is None:
            near = difflib.get_close_matches(agent_id, self._settings, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownAgent(
                f"no agent {agent_id!r} is configured: {hint}the agents are {', '.join(sorted(self._settings))}",
                agentId=agent_id,
            )
        return found

    def function(self, agent_id: str) -> AgentFunction | None:
        """Give the function that is this agent, if it is one."""
        return self._functions.get(agent_id)

    def register(self, name: str, function: AgentFunction) -> None:
        """Make a function an agent, under its own id or in place of a configured agent's model."""
        agent_id = normalise_agent_id(name)
        if agent_id not in self._settings:
            default = self._settings[self.default_id]
            self._settings[agent_id] = replace(default, id=agent_id, is_default=False, name=None, instructions=None)
        self._functions[agent_id] = function
