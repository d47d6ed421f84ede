"""Backchannel: a gateway and library for agent sessions.

The public names are loaded when they are used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from backchannel.version import __version__

if TYPE_CHECKING:
    from backchannel.agents.registry import FunctionContext as FunctionContext
    from backchannel.agents.registry import ToolFailed as ToolFailed
    from backchannel.agents.scripted import ScriptedModel as ScriptedModel
    from backchannel.core.contracts import ToolContext as ToolContext
    from backchannel.errors import ConfigError as ConfigError
    from backchannel.errors import GatewayError as GatewayError
    from backchannel.errors import IdempotencyConflict as IdempotencyConflict
    from backchannel.errors import StartupError as StartupError
    from backchannel.gateway.app import Gateway as Gateway
    from backchannel.gateway.app import RunFailed as RunFailed

_HOMES = {
    "ConfigError": "backchannel.errors",
    "FunctionContext": "backchannel.agents.registry",
    "Gateway": "backchannel.gateway.app",
    "GatewayError": "backchannel.errors",
    "IdempotencyConflict": "backchannel.errors",
    "RunFailed": "backchannel.gateway.app",
    "ScriptedModel": "backchannel.agents.scripted",
    "StartupError": "backchannel.errors",
    "ToolContext": "backchannel.core.contracts",
    "ToolFailed": "backchannel.agents.registry",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'backchannel' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
