"""`when`: a command decides whether a time of a cron job becomes a run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.policy.checks import SkipCount
from backchannel.errors import JobRunning
from tests.support.clocks import StageClock, moment
from tests.support.gateways import ended, texts_of
from tests.triggers.clockwork import Clockwork, all_seen_to, clockwork, job

pytestmark = pytest.mark.anyio
KEY = "agent:main:cron:j"
HELD = "printf . > came; read -r line < gate; echo $line"


def workspace(state: Path) -> Path:
    folder = state / "agents" / "main" / "workspace"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def checked(command: str, **more: Any) -> dict[str, Any]:
    return job("every 10m", when={"command": command}, **more)


async def skips(world: Clockwork) -> dict[str, SkipCount]:
    (listed,) = await world.gateway.cron.list()
    return dict(listed.stored.skips_by_reason)


async def test_a_job_runs_only_when_its_command_has_something_to_say(tmp_path: Path) -> None:
    room = workspace(tmp_path)
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, checked("cat mail", message="Mail: {output}")) as world:
        await world.turn_to("2026-06-01T08:10")
        (room / "mail").write_text(" \n")
        await world.turn_to("2026-06-01T08:20")
        assert await world.fired() == []
        assert await skips(world) == {"when": SkipCount(count=2, last_at=moment("2026-06-01T08:20"), why="no output")}
        (room / "mail").write_text("Ann: lunch?\n")
        await world.turn_to("2026-06-01T08:30")
        assert await world.fired() == ["2026-06-01T08:30:00Z"]
        asked, _ = await texts_of(world.gateway, KEY)
        assert asked.startswith("Mail:\n\n")
        assert asked.endswith("```\nAnn: lunch?\n```")
        (room / "mail").unlink()
        await world.turn_to("2026-06-01T08:40")
        assert (await skips(world))["when"].why == "exit code 1: cat: mail: No such file or directory"


async def test_what_a_command_writes_as_errors_is_not_shown_to_the_model(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, checked("echo warning >&2; echo news")) as world:
        await world.turn_to("2026-06-01T08:10")
        asked, _ = await texts_of(world.gateway, KEY)
        assert "news" in asked
        assert "warning" not in asked


async def test_a_command_that_cannot_run_is_told_until_it_can(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, checked("./look")) as world:
        await world.turn_to("2026-06-01T08:10")
        (why,) = (await world.gateway.store.troubles(0)).jobs_failing.values()
        assert why.startswith("exit code 127: ")
        (workspace(tmp_path) / "look").write_text("#!/bin/sh\necho news\n")
        (workspace(tmp_path) / "look").chmod(0o755)
        await world.turn_to("2026-06-01T08:20")
        assert (await world.gateway.store.troubles(0)).jobs_failing == {}
        assert await world.fired() == ["2026-06-01T08:20:00Z"]


async def test_a_command_that_takes_too_long_is_stopped_and_says_no(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    slow = job("every 10m", when={"command": "echo news; exec tail -f /dev/null", "timeoutSeconds": 0.1})
    async with clockwork(tmp_path, clock, slow) as world:
        await world.turn_to("2026-06-01T08:10")
        assert await world.fired() == []
        assert (await skips(world))["when"].why == "stopped after 0.1 s"


async def test_a_secret_in_what_a_command_says_is_hidden(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    key = "sk-ant-REDACTED" + "a1B2c3D4e5F6g7H8" * 3
    async with clockwork(tmp_path, clock, checked(f"echo refused {key} >&2; exit 3")) as world:
        await world.turn_to("2026-06-01T08:10")
        why = (await skips(world))["when"].why or ""
        assert why.startswith("exit code 3: refused")
        assert "a1B2c3D4" not in why


class Gate:
    """Holds a command that reads a pipe, and hears that one has begun by another pipe."""

    def __init__(self, state: Path) -> None:
        self._came, self._gate = (self._pipe(workspace(state) / name) for name in ("came", "gate"))

    def _pipe(self, path: Path) -> int:
        os.mkfifo(path)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def came(self) -> None:
        """Wait until a command has begun."""
        readable = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._came, readable.set)
        async with asyncio.timeout(20):
            await readable.wait()
        asyncio.get_running_loop().remove_reader(self._came)
        assert os.read(self._came, 1) == b"."

    def open(self) -> None:
        """Let the commands go on that wait, or will wait."""
        os.write(self._gate, b"news\n" * 8)

    def close(self) -> None:
        os.close(self._came)
        os.close(self._gate)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


async def test_a_time_is_skipped_while_a_command_runs_and_nobody_can_fire_the_job(tmp_path: Path, gate: Gate) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, checked(HELD)) as world:
        for at in ("2026-06-01T08:10", "2026-06-01T08:20"):
            clock.turn_to(at)
            await all_seen_to(world.gateway, clock)
        assert (await skips(world))["busy"].count == 1
        with pytest.raises(JobRunning, match="`when` command"):
            await world.gateway.cron.run("j")
        gate.open()
        await world.rest()
        assert await world.fired() == ["2026-06-01T08:10:00Z"]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_command_that_was_cut_off_runs_again_and_its_run_comes_once(
    tmp_path: Path, gate: Gate, dies: bool
) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, checked(HELD), dies=dies) as world:
        clock.turn_to("2026-06-01T08:10")
        await all_seen_to(world.gateway, clock)
        await gate.came()
    async with clockwork(tmp_path, clock, checked(HELD)) as world:
        await gate.came()
        gate.open()
        await world.rest()
        assert await world.fired() == ["2026-06-01T08:10:00Z"]


async def test_a_command_during_which_the_process_keeps_dying_is_given_up(tmp_path: Path, gate: Gate) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    for life in range(3):
        async with clockwork(tmp_path, clock, checked(HELD), dies=True) as world:
            if life == 0:
                clock.turn_to("2026-06-01T08:10")
                await all_seen_to(world.gateway, clock)
            await gate.came()
    async with clockwork(tmp_path, clock, checked(HELD)) as world:
        await world.rest()
        assert (await skips(world))["when"].why == "the process died 3 times while the command ran"
        assert await world.fired() == []


async def test_a_job_is_checked_by_hand_too(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, checked("cat mail")) as world:
        assert await world.gateway.cron.run("j") is None
        (workspace(tmp_path) / "mail").write_text("news")
        run = await world.gateway.cron.run("j")
        assert run is not None
        await ended(world.gateway, run.id)
        assert "news" in (await texts_of(world.gateway, KEY))[0]
        assert (await skips(world))["when"].count == 1


async def test_a_check_goes_on_without_its_command_when_the_configuration_takes_it_out(
    tmp_path: Path, gate: Gate
) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, checked(HELD)) as world:
        clock.turn_to("2026-06-01T08:10")
        await all_seen_to(world.gateway, clock)
        await gate.came()
    async with clockwork(tmp_path, clock, job("every 10m"), model=ScriptedModel(replies=lambda request: "ok")) as world:
        await world.rest()
        assert await texts_of(world.gateway, KEY) == ["work", "ok"]


@pytest.mark.usefixtures("real_sandbox")
async def test_a_command_runs_in_the_sandbox_of_the_jobs_session(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    agents = {"list": [{"id": "main", "model": "scripted/test", "sandbox": {"mode": "non-main"}}]}
    async with clockwork(tmp_path, clock, checked("pwd; ls /"), agents=agents) as world:
        await world.turn_to("2026-06-01T08:10")
        asked, _ = await texts_of(world.gateway, KEY)
        assert "\n/workspace\n" in asked
