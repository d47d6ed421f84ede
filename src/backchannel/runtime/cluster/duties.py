"""Duties: the gateways on this database, and the work of this one for all."""

from __future__ import annotations

from collections.abc import Callable

from backchannel.agents.registry import Agents
from backchannel.core.cluster.members import TIMERS_DUTY, GatewaySeen, channel_duty
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.delivery.channels import Channel, has_connection
from backchannel.core.sessions import WEBCHAT
from backchannel.storage.store import Store


class Duties:
    """The duties of this gateway. Where a database serves one gateway only, it has them all."""

    def __init__(self, store: Store, channels: Channels, agents: Agents) -> None:
        self.is_shared = store.database.is_shared
        """Whether other gateways may work on the same database."""
        self.peers: tuple[GatewaySeen, ...] = ()
        """The gateways on this database; none where there is only one at a time."""
        self._store = store
        self._channels = channels
        self._agents = agents
        self._own: frozenset[str] = frozenset()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, on_change: Callable[[], None]) -> None:
        """Have a function called when this gateway gets duties, or has them no longer."""
        self._listeners.append(on_change)

    def set_peers(self, peers: tuple[GatewaySeen, ...]) -> None:
        self.peers = peers
        own = self._store.number
        self._agents.note_elsewhere({id for peer in peers if peer.number != own for id in peer.member.agents})

    def set(self, duties: frozenset[str]) -> None:
        if duties != self._own:
            self._own = duties
            for on_change in self._listeners:
                on_change()

    def wanted(self) -> list[str]:
        """Name the duties that this gateway can have."""
        return [TIMERS_DUTY, *(channel_duty(each.name) for each in self._channels.values() if has_connection(each))]

    @property
    def is_alone(self) -> bool:
        return len(self.peers) < 2

    @property
    def has_timers(self) -> bool:
        return not self.is_shared or TIMERS_DUTY in self._own

    def has(self, channel: Channel) -> bool:
        """Whether this gateway keeps the connection of a channel, if the channel has one."""
        return not self.is_shared or not has_connection(channel) or channel_duty(channel.name) in self._own

    def sends_over(self, name: str) -> bool:
        """Whether this gateway sends over a channel: another may have its one connection."""
        channel = self._channels.get(name)
        if not self.is_shared or channel is not None:
            return channel is None or self.has(channel)
        return name == WEBCHAT.channel or self.is_alone  # webchat, or a channel that only others have
