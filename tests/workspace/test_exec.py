"""Commands in the workspace: what they are given, how they end, and what is told of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.messages import text_of
from backchannel.workspace.tools import NAMES
from tests.support.processes import all_ended, watched_in
from tests.workspace.desk import WorkspaceSession, opened

pytestmark = pytest.mark.anyio

STUBBORN = f"""
mkdir -p pids
trap '' TERM HUP
(trap '' TERM; echo > pids/$BASHPID; sleep 600 & echo > pids/$!; wait) &
{sys.executable} -c 'import os, time; os.setsid(); open(f"pids/{{os.getpid()}}", "w"); time.sleep(600)' &
while [ $(ls pids | wc -l) -lt 3 ]; do sleep 0.02; done
echo ready > ready
sleep 600
"""


def bell(desk: WorkspaceSession) -> Path:
    """Make a pipe at which a command can tell that it has got somewhere."""
    desk.root.mkdir(parents=True, exist_ok=True)
    os.mkfifo(desk.root / "ready")
    return desk.root / "ready"


async def rung(pipe: Path) -> None:
    """Wait until somebody has written to the pipe."""
    assert await asyncio.to_thread(pipe.read_text) == "ready\n"


async def test_a_command_runs_in_the_workspace_and_its_outputs_and_end_are_told(desk: WorkspaceSession) -> None:
    said = await desk("exec", command="pwd; echo oops >&2; echo made > file; exit 3")
    first, second, end = said.split("\n")
    assert (first, second) == (str(desk.root), "oops")
    assert end.startswith("[exit code 3, ") and end.endswith(" s]")
    assert await desk("read", path="file") == "made\n"
    assert (await desk("exec", command="true")).startswith("[exit code 0, ")


async def test_a_command_that_ends_by_a_signal_is_told(desk: WorkspaceSession) -> None:
    output = await desk.output("exec", command="kill -SEGV $$")
    assert output.is_error and text_of(output.content).startswith("[ended by SIGSEGV, ")


async def test_every_tool_has_its_name_in_the_list_that_a_check_of_settings_knows(desk: WorkspaceSession) -> None:
    assert tuple(desk.tools.tools()) == NAMES


async def test_standard_input_is_empty_and_the_environment_has_no_secret(
    desk: WorkspaceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKCHANNEL_TOKEN", "hunter2")
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    assert (await desk("exec", command="cat; read x; echo $?")).startswith("1\n[exit code 0")
    assert "hunter2" not in await desk("exec", command="env")


async def test_a_command_that_takes_too_long_ends_with_all_that_it_started(desk: WorkspaceSession) -> None:
    ready = bell(desk)
    stubborn = asyncio.create_task(desk.output("exec", command=STUBBORN, timeoutSeconds=3))
    await rung(ready)
    alive = watched_in(desk.root / "pids")
    output = await stubborn
    assert output.is_error and "stopped after 3 s, with all that it had started" in text_of(output.content)
    assert all_ended(alive, limit_s=0)


async def test_a_cancelled_call_ends_with_all_that_it_started(desk: WorkspaceSession) -> None:
    ready = bell(desk)
    stubborn = asyncio.create_task(desk.output("exec", command=STUBBORN))
    await rung(ready)
    alive = watched_in(desk.root / "pids")
    stubborn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stubborn
    assert all_ended(alive, limit_s=0)


async def test_a_call_that_is_cancelled_at_once_leaves_nothing(desk: WorkspaceSession) -> None:
    calls = [asyncio.create_task(desk.output("exec", command="sleep 600")) for _ in range(4)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    assert {type(end) for end in await asyncio.gather(*calls, return_exceptions=True)} == {asyncio.CancelledError}


async def test_what_a_command_leaves_running_is_stopped_when_it_ends(desk: WorkspaceSession) -> None:
    await desk("exec", command="mkdir pids; setsid sleep 600 & echo > pids/$!")
    (left,) = (desk.root / "pids").iterdir()
    with pytest.raises(ProcessLookupError):
        os.kill(int(left.name), 0)


async def test_a_command_that_kills_its_leash_does_not_hold_the_call(desk: WorkspaceSession) -> None:
    """Without a sandbox it has all rights of the gateway's user, so what it started then goes on."""
    command = "setsid sleep 30 & kill -9 $PPID; sleep 600"
    async with asyncio.timeout(25):
        assert "stopped after 0.5 s" in await desk("exec", command=command, timeoutSeconds=0.5)


def kept_output(said: str) -> Path:
    """Where the whole of an output is."""
    return Path("/" + said.partition(" in /")[2].partition("]")[0])


async def test_a_long_output_is_cut_in_the_middle_and_kept_whole_in_a_file(desk: WorkspaceSession) -> None:
    said = await desk("exec", command="seq 100000")
    assert len(said) < 34_000
    assert said.startswith("1\n2\n3\n") and "99999\n100000\n[exit code 0" in said
    kept = kept_output(said)
    assert f"[556127 bytes left out; all of it is in {kept}]" in said
    assert kept.read_text() == "".join(f"{n}\n" for n in range(1, 100_001))
    assert (await desk("read", path=str(kept), offset=50_000, limit=1)).startswith("50000\n")
    assert (await desk("exec", command=f"tail -n 1 {kept}")).startswith("100000\n")
    assert "leads out of the workspace" in await desk.refusal("write", path=str(kept), content="x")
    assert not list(desk.root.iterdir())


async def test_a_flood_is_kept_up_to_its_limit_and_the_loop_stays_free(tmp_path: Path) -> None:
    async with opened(tmp_path, sandbox={"limits": {"outputKb": 100}}) as desk:
        flood = asyncio.create_task(desk("exec", command="yes", timeoutSeconds=1))
        turns = 0
        while not flood.done():
            await asyncio.sleep(0.01)
            turns += 1
        said = await flood
        kept = kept_output(said)
        assert "the first 100 KiB are in /" in said and kept.stat().st_size == 100 * 1024
        assert len(said) < 34_000 and turns > 10


async def test_only_the_newest_outputs_of_an_agent_are_kept(desk: WorkspaceSession) -> None:
    other = kept_output(await desk.of("agent:main:other")("exec", command="seq 10000"))
    own = kept_output(await desk("exec", command="seq 10000"))
    for number in range(70):
        (own.parent / f"00{number:03}.log").touch()
    newest = kept_output(await desk("exec", command="seq 10000"))
    kept = sorted(path.name for path in own.parent.parent.glob("*/*.log"))
    assert len(kept) == 64 and kept[-3:] == [other.name, own.name, newest.name]


async def test_a_session_does_not_read_the_outputs_of_another_and_they_go_with_it(desk: WorkspaceSession) -> None:
    own = kept_output(await desk("exec", command="seq 10000"))
    other = desk.of("agent:main:other")
    assert "leads out of the workspace" in await other.refusal("read", path=str(own))
    desk.tools.end_session("agent:main:main")
    await desk.tools.close()
    assert not own.parent.exists()


@pytest.mark.usefixtures("real_sandbox")
@pytest.mark.parametrize("access", ["rw", "ro", "none"])
async def test_a_sandbox_reads_its_outputs_and_nothing_is_written_into_the_workspace(
    tmp_path: Path, access: str
) -> None:
    folder = tmp_path / "notes"
    (folder / ".output").mkdir(parents=True)
    for number in range(70):
        (folder / ".output" / f"{number:03}.log").write_text("a user's own")
    sandbox = {"mode": "all", "workspaceAccess": access}
    async with opened(tmp_path / "state", workspace=str(folder), sandbox=sandbox) as desk:
        before = sorted(folder.rglob("*"))
        kept = kept_output(await desk("exec", command="seq 10000"))
        assert kept.parent == Path("/outputs")
        assert (await desk("read", path=str(kept), offset=5000, limit=1)).startswith("5000\n")
        assert (await desk("search", path=str(kept), pattern="^4321$")).endswith(f"{kept.name}:4321:4321")
        assert await desk("list", path="/outputs") == f"{kept.name}  {5 * 10_000 - 1106} bytes"
        assert (await desk("exec", command=f"tail -n 1 {kept}")).startswith("10000\n")
        assert "Read-only file system" in await desk("exec", command=f"echo x >> {kept}; rm {kept}")
        received = await desk.tools.receive(SessionKey.stored("agent:main:main"), "a.txt", b"sent")
        assert received == ("received/a.txt" if access == "rw" else "/outputs/received/a.txt")
        if access != "rw":
            assert (await desk("exec", command=f"cat {received}")).startswith("sent")
            assert sorted(folder.rglob("*")) == before


async def test_output_that_is_no_text_is_shown_as_far_as_it_is(desk: WorkspaceSession) -> None:
    assert (await desk("exec", command=r"printf 'a\0b\xff\xc3'")).startswith("a�b��\n[exit code 0")


@pytest.mark.parametrize("command", ["", " \n", "a\0b", "x" * 100_001])
async def test_a_command_that_is_none_is_refused(desk: WorkspaceSession, command: str) -> None:
    assert "command" in await desk.refusal("exec", command=command)


@pytest.mark.parametrize("limit", [0, -1, 591, 10_000])
async def test_a_time_limit_out_of_range_is_refused(desk: WorkspaceSession, limit: float) -> None:
    assert "timeoutSeconds" in await desk.refusal("exec", command="true", timeoutSeconds=limit)


async def test_many_commands_at_once_wait_for_their_turn(desk: WorkspaceSession) -> None:
    said = await asyncio.gather(*(desk("exec", command=f"echo {n}") for n in range(20)))
    assert [text.split("\n")[0] for text in said] == [str(n) for n in range(20)]


class TestInSandbox:
    pytestmark = pytest.mark.usefixtures("real_sandbox")

    async def test_a_command_of_a_sandboxed_session_runs_inside(self, tmp_path: Path) -> None:
        async with opened(tmp_path, sandbox={"mode": "non-main"}) as desk:
            side = desk.of("agent:main:cron:x")
            assert (await side("exec", command="pwd; whoami; echo hi > a")).startswith("/workspace\nagent\n[exit")
            assert (await desk("exec", command="cat a; pwd")).startswith(f"hi\n{desk.root}\n[exit")
            (tmp_path / "token").write_text("hunter2")
            assert "hunter2" not in await side(
                "exec", command=f"cat {tmp_path}/token; find /workspace /tmp /etc -name token"
            )

    async def test_a_limit_that_stops_it_is_told(self, tmp_path: Path) -> None:
        async with opened(tmp_path, sandbox={"mode": "all", "limits": {"processes": 20, "cpuSeconds": 1}}) as desk:
            bomb = await desk.output("exec", command="b() { b | b & }; b; sleep 600")
            assert bomb.is_error or "Resource temporarily unavailable" in text_of(bomb.content)
            assert "more than 20 processes" in text_of(bomb.content) or not bomb.is_error
            assert "exit code 137, as after SIGKILL" in await desk("exec", command="while :; do :; done")

    async def test_a_cancelled_call_ends_what_runs_inside(self, tmp_path: Path) -> None:
        async with opened(tmp_path, sandbox={"mode": "all"}) as desk:
            ready = bell(desk)
            command = "trap '' TERM; (setsid sleep 600 &); echo ready > ready; sleep 600"
            call = asyncio.create_task(desk.output("exec", command=command))
            await rung(ready)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.to_thread(no_process_with, str(desk.root))


def no_process_with(words: str) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert words.encode() not in path.read_bytes() or int(path.parent.name) == os.getpid()
        except OSError:
            continue


async def test_a_signal_name_is_told_also_where_there_is_none(desk: WorkspaceSession) -> None:
    assert f"ended by signal {signal.SIGRTMIN + 1}" in await desk("exec", command="kill -35 $$")
