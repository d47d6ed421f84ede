"""Messages to a model that is down are killed at each commit: each is answered once, in order."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.clocks import StageClock
from tests.support.kill import kill_at_every_commit, transcript

pytestmark = pytest.mark.anyio

BUSY = ModelFailed("overloaded", retryable=True)


class ProviderDown:
    """Two messages come while the provider is down; it is back after some requests, or another model answers."""

    def __init__(self, *, fails: int, other: bool = False) -> None:
        self._left = fails
        self.model = ScriptedModel(replies=self._reply)
        self.other = ScriptedModel("other/model", replies=lambda request: f"re: {_asked(request)}") if other else None

    def _reply(self, request: ModelRequest) -> Scripted:
        self._left -= 1
        return BUSY if self._left >= 0 else f"re: {_asked(request)}"

    def equip(self, gateway: Gateway) -> None:
        gateway.clock = StageClock()
        gateway.add_model(self.model)
        if self.other is not None:
            gateway.add_model(self.other)

    async def drive(self, gateway: Gateway) -> None:
        for run_id in ("a", "b"):
            await gateway.submit("main", run_id, run_id=run_id)
        for run_id in ("a", "b"):
            assert (await gateway.runtime.wait(run_id, 20)).is_finished

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        rows = database.execute("SELECT id, state, waits_on, resume_at, waits_for FROM runs ORDER BY id").fetchall()
        assert rows == [("a", "ok", None, None, None), ("b", "ok", None, None, None)]
        (session_id, queued) = database.execute("SELECT session_id, queued FROM sessions").fetchone()
        assert queued == 0
        said = [(m.role, m.run_id) for m in transcript(database, session_id)]
        assert said == [(role, run) for run in ("a", "b") for role in (Role.USER, Role.ASSISTANT)]
        assert not database.execute("SELECT 1 FROM timers WHERE kind = 'resume'").fetchall()


class FleetDown(ProviderDown):
    """Four sessions wait for the same provider; the first answer lets the others go on, two at a time."""

    NAMES = ("a", "b", "c", "d")

    def __init__(self) -> None:
        super().__init__(fails=22)

    async def drive(self, gateway: Gateway) -> None:
        for name in self.NAMES:
            await gateway.submit(f"agent:main:{name}", name, run_id=name)
        for name in self.NAMES:
            assert (await gateway.runtime.wait(name, 20)).is_finished

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        rows = database.execute("SELECT id, state, waits_on, resume_at, reply FROM runs ORDER BY id").fetchall()
        assert rows == [(name, "ok", None, None, f"re: {name}") for name in self.NAMES]
        for session_id, queued in database.execute("SELECT session_id, queued FROM sessions").fetchall():
            assert queued == 0
            assert [m.role for m in transcript(database, session_id)] == [Role.USER, Role.ASSISTANT]
        assert not database.execute("SELECT 1 FROM timers WHERE kind = 'resume'").fetchall()


def _asked(request: ModelRequest) -> str:
    return next(m.text for m in reversed(request.messages) if m.role is Role.USER)


def _config(*fallbacks: str) -> dict[str, Any]:
    model = {"primary": "scripted/test", "fallbacks": list(fallbacks)}
    # The clock of the test leaps over the waits, also while a run is at work: its limit must not be reached.
    return {"agents": {"list": [{"id": "main", "model": model}], "defaults": {"timeoutSeconds": 86_400}}}


async def test_a_message_to_a_model_that_is_down_is_answered_once_wherever_the_process_dies(
    record_property: Callable[[str, object], None],
) -> None:
    points = await kill_at_every_commit(lambda: ProviderDown(fails=6), _config())
    record_property(CRASH_POINTS, ("ProviderDown", points))
    assert points >= 10


async def test_a_message_that_a_fallback_answers_is_answered_once_wherever_the_process_dies(
    record_property: Callable[[str, object], None],
) -> None:
    points = await kill_at_every_commit(lambda: ProviderDown(fails=1000, other=True), _config("other/model"))
    record_property(CRASH_POINTS, ("ProviderFallback", points))
    assert points >= 6


async def test_each_of_a_fleet_that_waits_is_answered_once_wherever_the_process_dies(
    record_property: Callable[[str, object], None],
) -> None:
    points = await kill_at_every_commit(FleetDown, _config())
    record_property(CRASH_POINTS, ("FleetDown", points))
    assert points >= 10
