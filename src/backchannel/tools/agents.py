"""`agents_list`: the agents under which the caller may spawn."""

from __future__ import annotations

from backchannel.config.agents import ANY_AGENT
from backchannel.tools.base import Caller, SessionTool
from backchannel.tools.spawn import stays_in_sandbox
from backchannel.wire.shapes import Answer, Params


class AgentsParams(Params, frozen=True, kw_only=True):
    pass


class SpawnableAgent(Answer, frozen=True, kw_only=True):
    id: str
    configured: bool
    name: str | None = None
    model: str | None = None


class SpawnableAgents(Answer, frozen=True, kw_only=True):
    requester: str
    allow_any: bool
    agents: list[SpawnableAgent]


class AgentsList(SessionTool):
    """Lists agents."""

    name = "agents_list"
    description = (
        "List the agents that you may name as `agentId` when you spawn a sub-agent with sessions_spawn; your own agent "
        "comes first."
    )
    params = AgentsParams
    scope = "read"
    outcomes = (("always", "`{requester, allowAny, agents: [{id, configured, name?, model?}]}`"),)
    examples = (("all of them", {}),)

    async def run(self, caller: Caller, params: AgentsParams) -> SpawnableAgents:
        agents = self._parts.agents
        requester = agents.default_id if caller.key is None else caller.key.agent
        allowed = agents.get(requester).spawns_under
        others = [
            name
            for name in (agents.ids() if ANY_AGENT in allowed else allowed)
            if stays_in_sandbox(self._parts, caller, name)
        ]
        ids = [requester, *sorted({*others} - {requester, ANY_AGENT})]
        return SpawnableAgents(
            requester=requester, allow_any=ANY_AGENT in allowed, agents=[self._show(name) for name in ids]
        )

    def _show(self, agent_id: str) -> SpawnableAgent:
        agents = self._parts.agents
        if agent_id not in agents.ids():
            return SpawnableAgent(id=agent_id, configured=False)
        settings = agents.get(agent_id)
        model = None if agents.is_function(agent_id) else settings.model
        return SpawnableAgent(id=agent_id, configured=True, name=settings.name, model=model)
