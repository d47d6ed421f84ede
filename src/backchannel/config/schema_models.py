"""Settings of models: rows and time limits."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from backchannel.core.contracts import ModelTimeouts
from backchannel.core.settings import Seconds, Settings, setting


class ModelRowSettings(Settings, frozen=True, kw_only=True):
    """A model, and the models that are asked when it fails."""

    primary: Annotated[str, setting("The model that is asked first, as `provider/model`.")]
    fallbacks: Annotated[
        tuple[str, ...] | None,
        setting("The models that are asked next, in this order. Unset: those that hold here anyway. `[]`: none."),
    ] = None


ModelSetting: TypeAlias = str | ModelRowSettings
"""A model alone, or with its fallbacks. A model alone keeps the fallbacks that hold there anyway."""


def primary_of(given: ModelSetting | None) -> str | None:
    """Give the first model of a setting."""
    return given.primary if isinstance(given, ModelRowSettings) else given


def fallbacks_of(given: ModelSetting | None) -> tuple[str, ...] | None:
    """Give the fallbacks that a setting names; None if it names none."""
    return given.fallbacks if isinstance(given, ModelRowSettings) else None


class ModelTimeoutSettings(Settings, frozen=True, kw_only=True):
    """How long a model may take. A limit that passes is a failure that may pass: the model is asked again."""

    first_byte_seconds: Annotated[
        Seconds | None, setting("Until the first piece of its answer. Unset everywhere: 120.")
    ] = None
    idle_seconds: Annotated[Seconds | None, setting("Between two pieces of its answer. Unset everywhere: 120.")] = None
    total_seconds: Annotated[Seconds | None, setting("For the whole answer. Unset everywhere: 600.")] = None


def timeouts_of(usual: ModelTimeoutSettings, own: ModelTimeoutSettings | None) -> ModelTimeouts:
    """Merge the limits of a provider with those of all."""
    given = [settings for settings in (own, usual) if settings is not None]

    def chosen(name: str) -> float | None:
        return next((value for settings in given if (value := getattr(settings, name)) is not None), None)

    named = {name: chosen(f"{name}econds") for name in ModelTimeouts.__struct_fields__}
    return ModelTimeouts(**{name: value for name, value in named.items() if value is not None})
