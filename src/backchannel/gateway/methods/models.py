"""Models: the list of those that can be asked."""

from __future__ import annotations

import asyncio

from backchannel.agents.models import ModelInfo
from backchannel.core.contracts import Price
from backchannel.gateway.addressing import known_agent
from backchannel.gateway.calls import Call, method
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import ModelLeftAlone
from backchannel.wire.shapes import Answer, SharedParams


class ModelDetails(Answer, frozen=True, kw_only=True):
    """The part of a model that OpenClaw's answer has no place for."""

    ref: str
    """The name of the model in requests: `provider/model`."""
    cost: Price | None = None
    left_alone: ModelLeftAlone | None = None
    """Why it is not asked for a while, and until when."""


class ModelListed(Answer, frozen=True, kw_only=True):
    """A model that agents can use."""

    id: str
    name: str
    provider: str
    available: bool
    unavailable_reason: str | None = None
    """Why it cannot be asked; only with the view `all`."""
    context_window: int | None = None
    tags: tuple[str, ...] = ()
    """`default` marks the model of the agent."""
    backchannel: ModelDetails


class ModelsListed(Answer, frozen=True, kw_only=True):
    models: list[ModelListed]


class ModelsListParams(SharedParams, frozen=True, kw_only=True):
    agent_id: str | None = None
    provider: str | None = None
    view: str = "default"
    """`all` also lists models that cannot be asked here."""


@method("models.list", TokenScope.READ)
async def models_list(call: Call, params: ModelsListParams) -> ModelsListed:
    """Lists the models that can be asked, of all providers or of one.

    The model of the agent named, else of the default agent, is always in the list.
    """
    parts = call.parts
    agent_id = parts.agents.default_id if params.agent_id is None else known_agent(parts, params.agent_id)
    default = None if parts.agents.is_function(agent_id) else parts.agents.get(agent_id).model
    down = {each.model: each for each in parts.runtime.model_calls.all_down()}
    return ModelsListed(
        models=[
            _show_model(model, down.get(model.ref), is_default=model.ref == default)
            for model in await known_models(call)
            if params.provider in (None, model.provider)
            and (params.view == "all" or model.usable or model.ref == default)
        ]
    )


async def known_models(call: Call) -> list[ModelInfo]:
    """List every model that is known by name."""
    return await asyncio.to_thread(call.parts.models.list)  # the published catalogue is read at its first use


def _show_model(model: ModelInfo, down: ModelLeftAlone | None, *, is_default: bool) -> ModelListed:
    return ModelListed(
        id=model.id,
        name=model.id,
        provider=model.provider,
        available=model.usable,
        unavailable_reason=None if model.usable else "missing-auth",
        context_window=model.context_window,
        tags=("default",) if is_default else (),
        backchannel=ModelDetails(ref=model.ref, cost=model.price, left_alone=down),
    )
