"""Agents: the list of them, and forgetting a function."""

from __future__ import annotations

from backchannel.agents.sandbox.sandboxes import workspace_of
from backchannel.core.keys import normalise_agent_id
from backchannel.gateway.calls import Call, method
from backchannel.gateway.parts import GatewayParts
from backchannel.openclaw.words import NAMED_PER_AGENT
from backchannel.wire.answers import AgentForgotten, AgentsListed
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.rows import AgentDetails, AgentModel, AgentShown, AgentSubagents, AgentTool
from backchannel.wire.shapes import Params
from backchannel.workspace.tools import COMMANDS, FILES


class AgentForgetParams(Params, frozen=True, kw_only=True):
    agent_id: str


@method("agents.list", TokenScope.READ)
async def agents_list(call: Call, params: SharedNoParams) -> AgentsListed:
    """Lists the agents, the default agent first."""
    parts = call.parts
    ids = sorted(parts.agents.ids(), key=lambda id: (id != parts.agents.default_id, id))
    return AgentsListed(
        default_id=parts.agents.default_id,
        main_key=parts.scheme.main_key,
        scope=NAMED_PER_AGENT,
        agents=[_show_agent(call, id) for id in ids],
    )


def _show_agent(call: Call, agent_id: str) -> AgentShown:
    settings = call.parts.agents.get(agent_id)
    is_function = call.parts.agents.is_function(agent_id)
    return AgentShown(
        id=agent_id,
        name=settings.name,
        model=None if is_function else AgentModel(primary=settings.model, fallbacks=settings.row.refs[1:]),
        thinking_default=settings.thinking,
        backchannel=AgentDetails(
            model=None if is_function else settings.model,
            tools=_tools(call.parts, agent_id),
            workspace=_workspace(call.parts, agent_id),
            subagents=AgentSubagents(
                allow_agents=settings.spawns_under,
                model=settings.subagent_model,
                max_children=call.parts.config.agents.defaults.subagents.max_children,
            ),
            is_function=is_function,
            waits_for="function" if call.parts.agents.is_awaited(agent_id) else None,
        ),
    )


def _tools(parts: GatewayParts, agent_id: str) -> list[AgentTool]:
    """Show the tools of an agent's main session, and why it lacks the others."""
    key, toolset = parts.scheme.main(agent_id), parts.toolset
    allowed = toolset.of(agent_id, str(key))
    return [
        AgentTool(
            name=tool.name,
            allowed=tool.name in allowed,
            because=None if tool.name in allowed else toolset.why_not(key, tool.name),
        )
        for tool in sorted(toolset.all(), key=lambda tool: tool.name)
    ]


def _workspace(parts: GatewayParts, agent_id: str) -> str | None:
    """Find an agent's workspace; None without a tool that works there."""
    has = parts.toolset.of(agent_id, str(parts.scheme.main(agent_id))).values()
    if not any(tool.group in (FILES, COMMANDS) for tool in has):
        return None
    return str(workspace_of(parts.agents.get(agent_id), parts.config.state_dir))


@method("agents.forget", TokenScope.ADMIN)
async def agents_forget(call: Call, params: AgentForgetParams) -> AgentForgotten:
    """Forgets that an agent was a function of a program, so that its model answers."""
    agent_id = normalise_agent_id(params.agent_id)
    await call.parts.runtime.forget_agent(agent_id)
    return AgentForgotten(ok=True, agent_id=agent_id)
