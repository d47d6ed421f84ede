"""A gateway is killed at each commit of a compaction inside an exchange: another takes over, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, call
from backchannel.config.load import config_from
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.runtime.test_kill_compaction import CONFIG, FILLER, OTHER, InAnExchange, settled, view_of
from tests.support import databases
from tests.support.kill import KillAt, When, state_folder
from tests.support.kill import _until_killed as until_killed
from tests.support.resting import at_rest

pytestmark = [pytest.mark.anyio, pytest.mark.interop, pytest.mark.postgres, pytest.mark.sqlite_only]

AT_ONCE = 6
"""A takeover waits for the end of a lease, and several can wait together."""


class Taken(InAnExchange):
    """The other session has grown before. What it is asked passes the hard mark, so its run waits for the summary."""

    def reply(self, request: ModelRequest) -> Scripted | None:
        last = request.messages[-1]
        if last.role is Role.USER and last.text == "ask the other":
            long = f"what is harbour? {FILLER * 2}"
            return [call("sessions_send", sessionKey=OTHER, message=long, timeoutSeconds=60)]
        return super().reply(request)

    async def grow(self, gateway: Gateway) -> None:
        await gateway.ask(OTHER, "fact harbour is Varna", run_id="fact")
        for n in range(2):
            await gateway.ask(OTHER, f"{n}: {FILLER}", run_id=f"m{n}")
        assert not self.scene.summaries

    async def drive(self, gateway: Gateway) -> None:
        reply = await gateway.ask("main", "ask the other", run_id="q", timeout_s=60)
        assert "Varna" in reply, reply
        await settled(gateway)


def gateway_of(flow: Taken, url: str, state: Path, faults: KillAt | None = None) -> Gateway:
    shared: dict[str, Any] = {"database": {"url": url}, "cluster": {"leaseSeconds": 1.5}}
    gateway = Gateway(config_from({**CONFIG, **shared}, {}, state=state), faults=faults)
    flow.equip(gateway)
    return gateway


async def story(faults: KillAt | None) -> int:
    """Drive the flow on one gateway until it dies, then on the other; returns the commits of the first, or -1."""
    flow = Taken()
    with state_folder() as folder:
        url = databases.database_url(folder)
        async with asyncio.timeout(120), gateway_of(flow, url, folder / "other") as other:
            await flow.grow(other)
            one = gateway_of(flow, url, folder / "one", faults)
            with suppress(asyncio.CancelledError):
                async with one:
                    await until_killed(flow, one)
            commits = -1 if one.failed is not None and one.failed.done() else one.store.driver.commits
            await flow.drive(other)
            await at_rest(other)
        database = databases.open_database(folder)
        try:
            flow.check(database)
            ended = database.execute("SELECT state FROM runs").fetchall()
            assert {state for (state,) in ended} == {"ok"}, ended
            asked = [message for message in view_of(database, OTHER)[1] if "what is harbour?" in message.text]
            assert len([message for message in asked if message.role is Role.USER]) == 1
        finally:
            database.close()
    return commits


async def test_killed_at_any_commit_the_other_gateway_goes_on_with_one_view(
    record_property: Callable[[str, object], None],
) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def killed(number: int, when: When) -> bool:
        async with gate:
            try:
                return await story(KillAt(number, when)) < 0
            except AssertionError as error:
                raise AssertionError(f"killed {when} commit {number}: {error}") from error

    with databases.on("postgres"):
        commits = await story(None)
        points = [(number, when) for number in range(1, commits + 1) for when in ("before", "after")]
        hit = sum(await asyncio.gather(*(killed(number, when) for number, when in points)))  # type: ignore[arg-type]
    record_property(CRASH_POINTS, ("Compaction in an exchange, with a takeover", hit))
    assert hit > 10
