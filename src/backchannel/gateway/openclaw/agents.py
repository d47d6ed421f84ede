"""Agents, their tools and their providers, as OpenClaw's clients ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, UnsetType

from backchannel.agents.sandbox.sandboxes import workspace_of
from backchannel.core.contracts import Tool
from backchannel.errors import UnknownModel
from backchannel.gateway.addressing import address_for_message, known_agent
from backchannel.gateway.calls import Call, method
from backchannel.gateway.condition import named_models
from backchannel.gateway.methods.models import known_models
from backchannel.gateway.parts import GatewayParts
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams


class OfAgentParams(SharedParams, frozen=True, kw_only=True):
    agent_id: str | None = None
    session_key: str | None = None


class AgentIdentity(Answer, frozen=True, kw_only=True):
    agent_id: str
    name: str | None = None


class AgentFiles(Answer, frozen=True, kw_only=True):
    agent_id: str
    workspace: str
    files: tuple[()]


class ToolListed(Answer, frozen=True, kw_only=True):
    id: str
    label: str
    description: str
    source: str
    default_profiles: tuple[()] | UnsetType = UNSET
    raw_description: str | UnsetType = UNSET


class ToolGroup(Answer, frozen=True, kw_only=True):
    id: str
    label: str
    source: str
    tools: list[ToolListed]


class ToolsCatalog(Answer, frozen=True, kw_only=True):
    agent_id: str
    profiles: tuple[()]
    groups: list[ToolGroup]


class ToolsEffective(Answer, frozen=True, kw_only=True):
    agent_id: str
    profile: str
    groups: list[ToolGroup]


class ProviderAuth(Answer, frozen=True, kw_only=True):
    provider: str
    display_name: str
    status: str
    """`static` if it can be asked, else `missing`."""
    profiles: tuple[()]


class AuthStatus(Answer, frozen=True, kw_only=True):
    ts: int
    providers: list[ProviderAuth]


@method("agent.identity.get", TokenScope.READ)
async def agent_identity_get(call: Call, params: OfAgentParams) -> AgentIdentity:
    """Shows the name of an agent."""
    agent_id = await _agent_of(call, params)
    return AgentIdentity(agent_id=agent_id, name=call.parts.agents.get(agent_id).name)


@method("agents.files.list", TokenScope.READ)
async def agents_files_list(call: Call, params: OfAgentParams) -> AgentFiles:
    """Shows the workspace of an agent; no file in it is part of its instructions."""
    agent_id = await _agent_of(call, params)
    workspace = workspace_of(call.parts.agents.get(agent_id), call.parts.config.state_dir)
    return AgentFiles(agent_id=agent_id, workspace=str(workspace), files=())


@method("tools.catalog", TokenScope.READ)
async def tools_catalog(call: Call, params: OfAgentParams) -> ToolsCatalog:
    """Lists all tools by group; `agents.list` says which tools an agent has, and why not the others."""
    return ToolsCatalog(
        agent_id=await _agent_of(call, params),
        profiles=(),
        groups=[
            ToolGroup(
                id=group,
                label=group,
                source="core",
                tools=[_listed(tool, default_profiles=()) for tool in tools],
            )
            for group, tools in _grouped(call.parts.toolset.all()).items()
        ],
    )


@method("tools.effective", TokenScope.READ)
async def tools_effective(call: Call, params: OfAgentParams) -> ToolsEffective:
    """Lists the tools of an agent in a session, by default its main session."""
    parts = call.parts
    key = (await address_for_message(parts, params.session_key or "main", params.agent_id)).key
    tools = sorted(parts.toolset.of(key.agent, str(key)).values(), key=lambda tool: tool.name)
    shown = [_listed(tool, raw_description=tool.description) for tool in tools]
    return ToolsEffective(
        agent_id=key.agent,
        profile="backchannel",
        groups=[ToolGroup(id="core", label="Tools", source="core", tools=shown)] if shown else [],
    )


def _listed(tool: Tool, **more: Any) -> ToolListed:
    return ToolListed(id=tool.name, label=tool.name, description=tool.description, source="core", **more)


def _grouped(tools: Iterable[Tool]) -> dict[str, list[Tool]]:
    groups: dict[str, list[Tool]] = {}
    for tool in sorted(tools, key=lambda tool: tool.name):
        groups.setdefault(tool.group or "own", []).append(tool)
    return groups


async def _agent_of(call: Call, params: OfAgentParams) -> str:
    if params.session_key is not None:
        return (await address_for_message(call.parts, params.session_key, params.agent_id)).key.agent
    return call.parts.agents.default_id if params.agent_id is None else known_agent(call.parts, params.agent_id)


@method("models.authStatus", TokenScope.READ)
async def models_auth_status(call: Call, params: SharedNoParams) -> AuthStatus:
    """Reports for each provider that is used, configured or has a key whether it can be asked.

    Keys are read at start and never shown. Providers that nothing here names are left out, since clients treat a
    provider without a key as broken.
    """
    usable = {model.provider for model in await known_models(call) if model.usable}
    states = dict.fromkeys([*call.parts.config.models.providers, *usable], "static")
    for _, ref in named_models(call.parts):
        states.setdefault(ref.partition("/")[0], "static" if _can_ask(call.parts, ref) else "missing")
    return AuthStatus(
        ts=call.parts.clock.now_ms(),
        providers=[
            ProviderAuth(provider=name, display_name=name, status=status, profiles=())
            for name, status in sorted(states.items())
        ],
    )


def _can_ask(parts: GatewayParts, ref: str) -> bool:
    try:
        parts.models.check(ref)
    except UnknownModel:
        return False
    return True
