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
    from backchannel.core.channels import Channel as Channel
    from backchannel.core.channels import ChannelBusy as ChannelBusy
    from backchannel.core.channels import ChannelHealth as ChannelHealth
    from backchannel.core.channels import ChannelMoved as ChannelMoved
    from backchannel.core.channels import ChannelRefused as ChannelRefused
    from backchannel.core.channels import ChannelSettings as ChannelSettings
    from backchannel.core.channels import ChannelSilent as ChannelSilent
    from backchannel.core.channels import ChannelUnusable as ChannelUnusable
    from backchannel.core.channels import Draft as Draft
    from backchannel.core.channels import DraftGone as DraftGone
    from backchannel.core.channels import FileKind as FileKind
    from backchannel.core.channels import InboundAnswer as InboundAnswer
    from backchannel.core.channels import InboundEvent as InboundEvent
    from backchannel.core.channels import InboundTaker as InboundTaker
    from backchannel.core.channels import IncomingFile as IncomingFile
    from backchannel.core.channels import OutboundPart as OutboundPart
    from backchannel.core.channels import Sent as Sent
    from backchannel.core.contracts import ToolContext as ToolContext
    from backchannel.core.keys import ChatType as ChatType
    from backchannel.errors import ConfigError as ConfigError
    from backchannel.errors import GatewayError as GatewayError
    from backchannel.errors import IdempotencyConflict as IdempotencyConflict
    from backchannel.errors import StartupError as StartupError
    from backchannel.gateway.app import Gateway as Gateway
    from backchannel.gateway.app import RunFailed as RunFailed

_HOMES = {
    "Channel": "backchannel.core.channels",
    "ChannelBusy": "backchannel.core.channels",
    "ChannelHealth": "backchannel.core.channels",
    "ChannelMoved": "backchannel.core.channels",
    "ChannelRefused": "backchannel.core.channels",
    "ChannelSettings": "backchannel.core.channels",
    "ChannelSilent": "backchannel.core.channels",
    "ChannelUnusable": "backchannel.core.channels",
    "ChatType": "backchannel.core.keys",
    "ConfigError": "backchannel.errors",
    "Draft": "backchannel.core.channels",
    "DraftGone": "backchannel.core.channels",
    "FileKind": "backchannel.core.channels",
    "FunctionContext": "backchannel.agents.registry",
    "Gateway": "backchannel.gateway.app",
    "GatewayError": "backchannel.errors",
    "IdempotencyConflict": "backchannel.errors",
    "InboundAnswer": "backchannel.core.channels",
    "InboundEvent": "backchannel.core.channels",
    "InboundTaker": "backchannel.core.channels",
    "IncomingFile": "backchannel.core.channels",
    "OutboundPart": "backchannel.core.channels",
    "RunFailed": "backchannel.gateway.app",
    "ScriptedModel": "backchannel.agents.scripted",
    "Sent": "backchannel.core.channels",
    "StartupError": "backchannel.errors",
    "ToolContext": "backchannel.core.contracts",
    "ToolFailed": "backchannel.agents.registry",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'backchannel' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
