"""Cron jobs are killed at each commit of their firings: each time comes once, and the next one is set."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.config.schema_doors import CronJob
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role
from backchannel.errors import JobNotFound
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.clocks import StageClock, moment
from tests.support.far_channel import FAR, FarChannel
from tests.support.gateways import CONFIG
from tests.support.kill import kill_at_every_commit
from tests.triggers.clockwork import job, rest

pytestmark = pytest.mark.anyio

JOBS = [
    job("every 10m", deliver={"channel": "far", "to": "C"}),
    job("2026-06-01T08:05", id="once"),
    job("2026-06-01T07:00", id="late"),
]
SETTINGS: dict[str, Any] = {**CONFIG, "channels": {"far": FAR}, "cron": {"jobs": JOBS}}


class Firings:
    """Times are missed and times come, two jobs are of one time only, and another is added and removed meanwhile."""

    def __init__(self) -> None:
        self.clock = StageClock.held("2026-06-01T08:00")
        self.far = FarChannel()
        self.model = ScriptedModel(replies=self.reply)

    def reply(self, request: ModelRequest) -> Scripted:
        return "done" if request.messages[-1].role is Role.TOOL_RESULT else [call("look")]

    def equip(self, gateway: Gateway) -> None:
        gateway.clock = self.clock  # the same for all lives
        gateway.add_model(self.model)
        gateway.add_channel(self.far)

        @gateway.tool(effects="none")
        async def look() -> str:
            return "seen"

    async def drive(self, gateway: Gateway) -> None:
        await rest(gateway, self.clock)
        await gateway.cron.add(CronJob(id="added", schedule="0 9 1 1 *", message="work"))
        for at in ("2026-06-01T08:35", "2026-06-01T08:40"):
            if self.clock.ms < moment(at):
                self.clock.turn_to(at)
            await rest(gateway, self.clock)
        with suppress(JobNotFound):  # an earlier life had removed it
            await gateway.cron.remove("added")

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        runs = dict(database.execute("SELECT id, state FROM runs").fetchall())
        assert runs == {
            "cron:late:2026-06-01T07:00:00Z": "ok",
            "cron:once:2026-06-01T08:05:00Z": "ok",
            "cron:j:2026-06-01T08:10:00Z": "ok",
            "cron:j:2026-06-01T08:40:00Z": "ok",
        }
        jobs = database.execute("SELECT id, next_at, skipped, last_run FROM cron_jobs ORDER BY id").fetchall()
        assert jobs == [
            ("j", moment("2026-06-01T08:50"), 0, "cron:j:2026-06-01T08:40:00Z"),
            ("late", None, 0, "cron:late:2026-06-01T07:00:00Z"),
            ("once", None, 0, "cron:once:2026-06-01T08:05:00Z"),
        ]
        timers = database.execute("SELECT kind, ref, due_at FROM timers").fetchall()
        assert timers == [("cron", "j", moment("2026-06-01T08:50"))]
        assert [part.text for part in self.far.taken.values()] == ["done", "done"]


CHECKED: dict[str, Any] = {
    **CONFIG,
    "cron": {
        "jobs": [
            job("every 10m", when={"command": "echo made >> made; echo news"}, message="Look: {output}"),
            job("every 10m", id="quiet", when={"command": "false"}),
        ]
    },
}


class Checks:
    """Two jobs with a command: one always finds something, the other never does."""

    def __init__(self) -> None:
        self.clock = StageClock.held("2026-06-01T08:00")
        self.model = ScriptedModel(replies=lambda request: "done")

    def equip(self, gateway: Gateway) -> None:
        gateway.clock = self.clock
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        await rest(gateway, self.clock)
        for at in ("2026-06-01T08:25", "2026-06-01T08:30"):
            if self.clock.ms < moment(at):
                self.clock.turn_to(at)
            await rest(gateway, self.clock)

    def check(self, database: sqlite3.Connection) -> None:
        runs = database.execute("SELECT id, state FROM runs ORDER BY id").fetchall()
        assert runs == [("cron:j:2026-06-01T08:10:00Z", "ok"), ("cron:j:2026-06-01T08:30:00Z", "ok")]
        asked = [text for (text,) in database.execute("SELECT body FROM messages WHERE role = 'user'")]
        assert len(asked) == 2
        assert all("news" in text for text in asked)
        jobs = database.execute("SELECT id, next_at, skipped, checking, checker FROM cron_jobs ORDER BY id").fetchall()
        assert jobs == [
            ("j", moment("2026-06-01T08:40"), 0, None, None),
            ("quiet", moment("2026-06-01T08:40"), 2, None, None),
        ]
        assert {kind for (kind,) in database.execute("SELECT kind FROM timers")} == {"cron"}


async def test_a_command_decides_once_for_each_time_wherever_the_process_dies(
    record_property: Callable[[str, object], None],
) -> None:
    points = await kill_at_every_commit(Checks, CHECKED)
    record_property(CRASH_POINTS, (Checks.__name__, points))
    assert points >= 30


async def test_every_time_comes_once_wherever_the_process_dies(record_property: Callable[[str, object], None]) -> None:
    points = await kill_at_every_commit(Firings, SETTINGS)
    record_property(CRASH_POINTS, (Firings.__name__, points))
    assert points >= 30
