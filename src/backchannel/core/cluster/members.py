"""Members of a cluster: each gateway's own description, and the answer to a lease renewal."""

from __future__ import annotations

import msgspec

from backchannel.core.stored import StoredForm

TIMERS_DUTY = "timers"
"""The duty of doing what is due."""


def channel_duty(channel: str) -> str:
    """Name the duty of keeping the connection of a channel."""
    return f"channel:{channel}"


_STORED_IDS: StoredForm[tuple[str, ...]] = StoredForm(tuple[str, ...])
read_ids, write_ids = _STORED_IDS.read, _STORED_IDS.write
"""Names of agents or jobs, as the row of a gateway has them."""


class GatewayInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway says of itself to the others."""

    name: str = ""
    version: str = ""
    config: str = ""
    """A digest of what should be the same everywhere."""
    agents: tuple[str, ...] = ()
    """Those whose runs it can carry out."""
    jobs: tuple[str, ...] = ()
    """The cron jobs of its configuration."""


class GatewaySeen(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that is at work, as the others know it."""

    number: int
    started_at: int
    member: GatewayInfo


class LeaseRenewed(msgspec.Struct, frozen=True):
    """What a gateway is told when it has renewed its lease."""

    peers: tuple[GatewaySeen, ...]
    """All that are at work, this one among them."""
    duties: frozenset[str]
    """What it does for all."""
    is_any_left: bool
    """Whether a gateway is found to be dead, or a duty that it can do has nobody."""


class TakenOver(msgspec.Struct, frozen=True):
    """What a gateway has taken over from others."""

    duties: frozenset[str]
    """What it does for all now."""
    is_any_dead: bool
    """Whether another one was found to be dead: what it held goes on."""
