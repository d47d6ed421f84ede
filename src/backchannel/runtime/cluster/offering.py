"""Offers: runs that wait for a slot here, and that other gateways may start.

A run costs least where it was accepted, and mostly a slot there is free soon. So it is offered only after a moment, and
to one gateway after the other. If it still waits when all were asked, the look once a second finds it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from backchannel.core.cluster.echoes import EchoId, lane_word
from backchannel.core.facts import LaneFree, RunChanged
from backchannel.core.runs import RunState
from backchannel.runtime.lanes import Lanes

OFFERED_AFTER_S = 0.05
"""How long a run waits for a slot before it is offered, and before it is offered to the next gateway."""


class _RunOffer(NamedTuple):
    first: int
    """The place of the gateway that was asked first, so that not always the same one is."""
    asked: int


class RunOffers:
    """The sessions here whose next run waits for a slot."""

    def __init__(
        self, lanes: Lanes, others: Callable[[], Sequence[int]], send: Callable[[Set[int], Sequence[EchoId]], None]
    ) -> None:
        """Make it; `others` names the other gateways, and `send` tells some of them."""
        self._lanes = lanes
        self._others = others
        self._send = send
        self._offers: dict[str, _RunOffer] = {}
        self._firsts = itertools.count()
        self._is_to_look = False

    def on_run(self, fact: RunChanged) -> None:
        """React to a commit of this gateway: a run is queued."""
        if fact.run.state is RunState.QUEUED and fact.run.resume_at is None:
            self._add(fact.run.session_key)

    def on_free(self, fact: LaneFree) -> None:
        """React to a commit of this gateway: the next run of a session can start."""
        self._add(fact.key)

    def _add(self, key: str) -> None:
        if key not in self._offers and self._others() and not self._lanes.has_room(key):
            self._offers[key] = _RunOffer(next(self._firsts), 0)
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._is_to_look:
            self._is_to_look = True
            asyncio.get_running_loop().call_later(OFFERED_AFTER_S, self._look)

    def _look(self) -> None:
        self._is_to_look = False
        others, offers, self._offers = self._others(), self._offers, {}
        for key, (first, asked) in offers.items():
            if asked < len(others) and self._lanes.waits_for_slot(key):
                self._send(frozenset((others[(first + asked) % len(others)],)), [lane_word(key)])
                self._offers[key] = _RunOffer(first, asked + 1)
        if self._offers:
            self._look_soon()
