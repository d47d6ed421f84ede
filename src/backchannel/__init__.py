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
    from backchannel.core.adapters import Adapter as Adapter
    from backchannel.core.contracts import Clock as Clock
    from backchannel.core.contracts import ToolContext as ToolContext
    from backchannel.core.delivery.channels import Channel as Channel
    from backchannel.core.delivery.channels import ChannelBusy as ChannelBusy
    from backchannel.core.delivery.channels import ChannelHealth as ChannelHealth
    from backchannel.core.delivery.channels import ChannelMoved as ChannelMoved
    from backchannel.core.delivery.channels import ChannelRefused as ChannelRefused
    from backchannel.core.delivery.channels import ChannelSettings as ChannelSettings
    from backchannel.core.delivery.channels import ChannelSilent as ChannelSilent
    from backchannel.core.delivery.channels import ChannelUnusable as ChannelUnusable
    from backchannel.core.delivery.channels import Draft as Draft
    from backchannel.core.delivery.channels import DraftGone as DraftGone
    from backchannel.core.delivery.channels import FileKind as FileKind
    from backchannel.core.delivery.channels import InboundAnswer as InboundAnswer
    from backchannel.core.delivery.channels import InboundEvent as InboundEvent
    from backchannel.core.delivery.channels import InboundTaker as InboundTaker
    from backchannel.core.delivery.channels import IncomingFile as IncomingFile
    from backchannel.core.delivery.channels import OutboundPart as OutboundPart
    from backchannel.core.delivery.channels import Sent as Sent
    from backchannel.core.delivery.outgoing import Button as Button
    from backchannel.core.delivery.outgoing import PartProof as PartProof
    from backchannel.core.keys import ChatType as ChatType
    from backchannel.core.settings import SettingIssue as SettingIssue
    from backchannel.core.settings import secret as secret
    from backchannel.core.settings import setting as setting
    from backchannel.errors import ConfigError as ConfigError
    from backchannel.errors import GatewayError as GatewayError
    from backchannel.errors import IdempotencyConflict as IdempotencyConflict
    from backchannel.errors import StartupError as StartupError
    from backchannel.gateway.app import Gateway as Gateway
    from backchannel.gateway.app import RunFailed as RunFailed

_HOMES = {
    "Adapter": "backchannel.core.adapters",
    "Button": "backchannel.core.delivery.outgoing",
    "Channel": "backchannel.core.delivery.channels",
    "ChannelBusy": "backchannel.core.delivery.channels",
    "ChannelHealth": "backchannel.core.delivery.channels",
    "ChannelMoved": "backchannel.core.delivery.channels",
    "ChannelRefused": "backchannel.core.delivery.channels",
    "ChannelSettings": "backchannel.core.delivery.channels",
    "ChannelSilent": "backchannel.core.delivery.channels",
    "ChannelUnusable": "backchannel.core.delivery.channels",
    "ChatType": "backchannel.core.keys",
    "Clock": "backchannel.core.contracts",
    "ConfigError": "backchannel.errors",
    "Draft": "backchannel.core.delivery.channels",
    "DraftGone": "backchannel.core.delivery.channels",
    "FileKind": "backchannel.core.delivery.channels",
    "FunctionContext": "backchannel.agents.registry",
    "Gateway": "backchannel.gateway.app",
    "GatewayError": "backchannel.errors",
    "IdempotencyConflict": "backchannel.errors",
    "InboundAnswer": "backchannel.core.delivery.channels",
    "InboundEvent": "backchannel.core.delivery.channels",
    "InboundTaker": "backchannel.core.delivery.channels",
    "IncomingFile": "backchannel.core.delivery.channels",
    "OutboundPart": "backchannel.core.delivery.channels",
    "PartProof": "backchannel.core.delivery.outgoing",
    "RunFailed": "backchannel.gateway.app",
    "ScriptedModel": "backchannel.agents.scripted",
    "Sent": "backchannel.core.delivery.channels",
    "SettingIssue": "backchannel.core.settings",
    "StartupError": "backchannel.errors",
    "ToolContext": "backchannel.core.contracts",
    "ToolFailed": "backchannel.agents.registry",
    "secret": "backchannel.core.settings",
    "setting": "backchannel.core.settings",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'backchannel' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
