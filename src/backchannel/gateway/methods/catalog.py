"""The catalogue: the agents, models and chat commands there are, and whole ids by their beginnings."""

from __future__ import annotations

import asyncio
from typing import Any

from backchannel.agents.models import ModelInfo
from backchannel.agents.sandbox.sandboxes import workspace_of
from backchannel.core.commands.commands import COMMANDS as CHAT_COMMANDS
from backchannel.core.commands.commands import CommandForm, CommandSpec
from backchannel.core.contracts import Price
from backchannel.core.keys import normalise_agent_id
from backchannel.core.short_ids import IdKind, choose_id, parse_written_id
from backchannel.errors import UnknownModel
from backchannel.gateway.addressing import known_agent
from backchannel.gateway.condition import named_models
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.answers import NAMED_PER_AGENT, AgentForgotten, AgentsListed, IdFound
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.rows import AgentDetails, AgentModel, AgentShown, AgentSubagents, AgentTool
from backchannel.wire.shapes import Answer, Params, SharedParams
from backchannel.workspace.tools import COMMANDS, FILES


class ModelDetails(Answer, frozen=True, kw_only=True):
    """What OpenClaw's clients do not know of a model."""

    ref: str
    cost: Price | None = None


class ModelListed(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    provider: str
    available: bool
    unavailable_reason: str | None = None
    context_window: int | None = None
    tags: tuple[str, ...] = ()
    backchannel: ModelDetails


class ModelsListed(Answer, frozen=True, kw_only=True):
    models: list[ModelListed]


class ModelsListParams(SharedParams, frozen=True, kw_only=True):
    agent_id: str | None = None
    provider: str | None = None
    view: str = "default"
    """`all` lists those too that nobody can ask here; all other words of OpenClaw's mean the same."""


class ProviderAuth(Answer, frozen=True, kw_only=True):
    provider: str
    display_name: str
    status: str
    profiles: tuple[()]


class AuthStatus(Answer, frozen=True, kw_only=True):
    ts: int
    providers: list[ProviderAuth]


async def agents_list(call: Call, params: SharedNoParams) -> AgentsListed:
    """Lists the agents, the default one first."""
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
        model=None if is_function else AgentModel(primary=settings.model),
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
    """Show which tools an agent has in its main session, and why it lacks the others."""
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
    """Tell where an agent's workspace is, if it has a tool that works there."""
    has = parts.toolset.of(agent_id, str(parts.scheme.main(agent_id))).values()
    if not any(tool.group in (FILES, COMMANDS) for tool in has):
        return None
    return str(workspace_of(parts.agents.get(agent_id), parts.config.state_dir))


async def models_list(call: Call, params: ModelsListParams) -> ModelsListed:
    """Lists the models that can be asked, of all providers or of one; `ref` is how requests name one.

    The agent's own is among them in any case, and with the view `all` every model that is known by name.
    """
    parts = call.parts
    agent_id = parts.agents.default_id if params.agent_id is None else known_agent(parts, params.agent_id)
    default = None if parts.agents.is_function(agent_id) else parts.agents.get(agent_id).model
    return ModelsListed(
        models=[
            _show_model(model, is_default=model.ref == default)
            for model in await _known_models(call)
            if params.provider in (None, model.provider)
            and (params.view == "all" or model.usable or model.ref == default)
        ]
    )


async def _known_models(call: Call) -> list[ModelInfo]:
    return await asyncio.to_thread(call.parts.models.list)  # the published catalogue is read at its first use


def _show_model(model: ModelInfo, *, is_default: bool) -> ModelListed:
    return ModelListed(
        id=model.id,
        name=model.id,
        provider=model.provider,
        available=model.usable,
        unavailable_reason=None if model.usable else "missing-auth",
        context_window=model.context_window,
        tags=("default",) if is_default else (),
        backchannel=ModelDetails(ref=model.ref, cost=model.price),
    )


async def models_auth_status(call: Call, params: SharedNoParams) -> AuthStatus:
    """Tells of each provider that is used, configured or has a key whether it can be asked.

    Keys are read at the start, and are never shown. Providers that nobody here names are left out: clients take one
    without a key for one that is broken.
    """
    usable = {model.provider for model in await _known_models(call) if model.usable}
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


class AgentForgetParams(Params, frozen=True, kw_only=True):
    agent_id: str


async def agents_forget(call: Call, params: AgentForgetParams) -> AgentForgotten:
    """Lets an agent's model answer that was a function of a program which will not come back."""
    agent_id = normalise_agent_id(params.agent_id)
    await call.parts.runtime.forget_agent(agent_id)
    return AgentForgotten(ok=True, agent_id=agent_id)


class IdsResolveParams(Params, frozen=True, kw_only=True):
    kind: IdKind
    id: str


async def ids_resolve(call: Call, params: IdsResolveParams) -> IdFound:
    """Finds the whole id by its beginning, of at least 4 characters; `…` stands for what is left out before its end.

    Every other method takes whole ids only, so that a program's `order-1` never means `order-10`.
    """
    written = parse_written_id(params.id)
    if params.kind is IdKind.SLOT:
        found = [use.id for use in call.parts.gates.uses() if use.id and written.fits(use.id)]
    else:
        found = await call.parts.store.matching_ids(params.kind, written)
    return IdFound(kind=params.kind.value, id=choose_id(params.kind, written, found))


class CommandDetails(Answer, frozen=True, kw_only=True):
    """What OpenClaw's clients do not know of a command."""

    usage: str
    needs: str


class CommandShown(Answer, frozen=True, kw_only=True, omit_defaults=False):
    name: str
    description: str
    source: str = "native"
    scope: str = "text"
    accepts_args: bool
    text_aliases: tuple[str, ...]
    backchannel: CommandDetails


class CommandsListed(Answer, frozen=True, kw_only=True):
    commands: list[CommandShown]


async def commands_list(call: Call, params: SharedNoParams) -> CommandsListed:
    """Lists the chat commands, and who may use each."""
    return CommandsListed(commands=[_show_command(spec) for spec in CHAT_COMMANDS])


def _show_command(spec: CommandSpec) -> CommandShown:
    return CommandShown(
        name=spec.name.value,
        description=spec.summary,
        accepts_args=spec.forms != (CommandForm(),),
        text_aliases=(f"/{spec.name}",),
        backchannel=CommandDetails(usage=spec.usage, needs=spec.needs.name.lower()),
    )


METHODS: tuple[Method[Any], ...] = (
    Method(
        "agents.list",
        SharedNoParams,
        TokenScope.READ,
        agents_list,
        "`{defaultId, mainKey, scope, agents: [{id, name?, model? {primary}, thinkingDefault?, backchannel {model?, "
        "tools: [{name, allowed, because?}], subagents {allowAgents, model, maxChildren}, isFunction, workspace?, "
        "waitsFor?}}]}`; the tools are those of the agent's main session",
    ),
    Method("agents.forget", AgentForgetParams, TokenScope.ADMIN, agents_forget, "`{ok, agentId}`"),
    Method(
        "models.list",
        ModelsListParams,
        TokenScope.READ,
        models_list,
        "`{models: [{id, name, provider, available, unavailableReason?, contextWindow?, tags?, backchannel {ref, cost? "
        "{input, output}}}]}`; the tag `default` marks the model of the agent named, else of the default one. "
        "With the view `all` there are those too that cannot be asked, with the reason",
    ),
    Method(
        "models.authStatus",
        SharedNoParams,
        TokenScope.READ,
        models_auth_status,
        "`{ts, providers: [{provider, displayName, status: static | missing, profiles}]}`; there are no profiles here",
    ),
    Method("ids.resolve", IdsResolveParams, TokenScope.READ, ids_resolve, "`{kind, id}`"),
    Method(
        "commands.list",
        SharedNoParams,
        TokenScope.READ,
        commands_list,
        "`{commands: [{name, description, source, scope, acceptsArgs, textAliases, backchannel {usage, "
        "needs: authorised | owner}}]}`",
    ),
)
