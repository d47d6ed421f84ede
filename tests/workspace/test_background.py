"""Commands in the background: they belong to a session, and end with the gateway."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from backchannel.errors import InvalidRequest
from tests.support.processes import all_ended, watched_in
from tests.workspace.desk import WorkspaceSession, opened
from tests.workspace.test_exec import STUBBORN, bell, rung

pytestmark = pytest.mark.anyio


async def started(desk: WorkspaceSession, command: str, **more: object) -> str:
    said = await desk("exec", command=command, background=True, **more)
    found = re.search(r"with the id (\w+);", said)
    assert found is not None, said
    return found[1]


async def polled(desk: WorkspaceSession, id: str, until: str) -> str:
    """Ask until a text was written; returns all that was told."""
    said = ""
    async with asyncio.timeout(20):
        while until not in said:
            said += await desk("process", action="poll", id=id)
            await asyncio.sleep(0.02)
    return said


async def test_a_command_goes_on_and_tells_what_is_new_when_it_is_asked(desk: WorkspaceSession) -> None:
    id = await started(desk, "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 4")
    said = await polled(desk, id, "one")
    assert said.endswith("[running]") and said.count("one") == 1
    assert await desk("process", action="poll", id=id) == "[running]"
    assert (await desk("process", action="list")).startswith(f"{id}  running  echo one;")
    (desk.root / "go").touch()
    said = await polled(desk, id, "exit code")
    assert "two\n" in said and "one" not in said and "[exit code 4 after " in said
    assert (await desk("process", action="poll", id=id)).startswith("[exit code 4 after ")
    assert "exit code 4" in await desk("process", action="list")


async def test_a_command_is_killed_with_all_that_it_started(desk: WorkspaceSession) -> None:
    ready = bell(desk)
    id = await started(desk, STUBBORN)
    await rung(ready)
    alive = watched_in(desk.root / "pids")
    assert (await desk("process", action="kill", id=id)).startswith("[killed: mkdir -p pids")
    assert all_ended(alive, limit_s=0)
    assert "ended by SIGKILL" in await desk("process", action="poll", id=id)
    assert (await desk("process", action="kill", id=id)).startswith("[it had ended before")


async def test_a_time_limit_ends_it(desk: WorkspaceSession) -> None:
    id = await started(desk, "sleep 600", timeoutSeconds=0.2)
    assert "[stopped after 0.2 s, its time limit]" in await polled(desk, id, "stopped")


async def test_it_belongs_to_the_session_that_started_it(desk: WorkspaceSession) -> None:
    id, other = await started(desk, "sleep 600"), desk.of("agent:main:cron:x")
    assert await other("process", action="list") == "[no command was started in the background]"
    for action in ("poll", "kill"):
        assert "no background command of this session" in await other.refusal("process", action=action, id=id)
        assert "needs the id" in await desk.refusal("process", action=action)
        assert "no background command" in await desk.refusal("process", action=action, id="../../token")
    assert "action" in await desk.refusal("process", action="start")
    await desk.tools.background.end_session("agent:main:main")
    assert "ended by SIGTERM" in await desk("process", action="poll", id=id)


async def test_it_ends_with_the_gateway_and_is_told_so_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        ready = bell(desk)
        left = await started(desk, STUBBORN)
        ended = await started(desk, "exit 5")
        await polled(desk, ended, "exit code 5")
        await rung(ready)
        alive = watched_in(desk.root / "pids")
    assert all_ended(alive, limit_s=0)
    async with opened(tmp_path) as desk:
        assert await desk("process", action="poll", id=left) == "[it ended when the gateway stopped]"
        assert (await desk("process", action="poll", id=ended)).startswith("[exit code 5 after ")
        assert (
            await desk("process", action="kill", id=left)
        ) == "[it had ended before: it ended when the gateway stopped]"
        assert [line.split()[0] for line in (await desk("process", action="list")).split("\n")] == [left, ended]


async def test_there_are_only_so_many(desk: WorkspaceSession) -> None:
    calls = (desk("exec", command="sleep 600", background=True) for _ in range(12))
    said = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, InvalidRequest) for each in said) == 4
    ids = [line.split()[0] for line in (await desk("process", action="list")).split("\n")]
    assert len(set(ids)) == 8
    assert "too many commands run in the background" in await desk.refusal("exec", command="true", background=True)
    await started(desk.of("agent:main:cron:x"), "true")
    await desk("process", action="kill", id=ids[0])
    await started(desk, "true")


async def test_a_command_that_cannot_be_started_leaves_no_record(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with opened(tmp_path / "state", workspace=str(tmp_path / "file" / "sub")) as desk:
        assert "cannot be made" in await desk.refusal("exec", command="true", background=True)
        assert await desk("process", action="list") == "[no command was started in the background]"


async def test_a_flood_in_the_background_is_bounded(desk: WorkspaceSession) -> None:
    id = await started(desk, "seq 1000000; echo end")
    said = await polled(desk, id, "exit code")
    assert "end\n" in said
    assert max(map(len, said.split("[running]"))) < 34_000
