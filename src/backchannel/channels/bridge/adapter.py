"""The adapter of bridges."""

from __future__ import annotations

from backchannel.channels.bridge.settings import BridgeSettings
from backchannel.core.adapters import Adapter

ADAPTER = Adapter(
    name="bridge",
    title="A bridge",
    settings=BridgeSettings,
    make="backchannel.channels.bridge.channel:Bridge",
)
