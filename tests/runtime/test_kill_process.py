"""A real process is killed with -9 again and again: all that it acknowledged is there in the end, and answered."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.clocks import AheadClock
from tests.support.databases import database_url, open_database
from tests.support.gateways import settled
from tests.support.kill import check_invariants, transcript
from tests.support.mortal import open_mortal

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
LIVES = 16
MOST_LINES = 40


async def live_until_killed(state: Path, life: int, lines: int) -> list[str]:
    """Start the process, and kill it after so many lines; returns what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.mortal", str(state), f"life{life}"),
        cwd=ROOT,
        env={**os.environ, "BACKCHANNEL_DATABASE_URL": database_url(state)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(20):
            while len(said) < lines and (line := await process.stdout.readline()):
                said.append(line.decode().strip())
    finally:
        process.kill()
        rest, errors = await process.communicate()
    said += rest.decode().splitlines()  # it had said that too before it died
    assert "ready" in said, f"it did not start: {errors.decode()}"
    return said


async def test_whatever_was_acknowledged_is_there_and_answered_after_many_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    acknowledged: dict[str, list[str]] = {}
    try:
        for life in range(LIVES):
            said = await live_until_killed(tmp_path, life, chance.randint(1, MOST_LINES))
            assert not [line for line in said if line.startswith("refused")]
            for _, run_id, session in (line.split() for line in said if line.startswith("accepted")):
                acknowledged.setdefault(session, []).append(run_id)
        await settle(tmp_path)
        check_end(tmp_path, acknowledged)
    except BaseException:
        with capsys.disabled():
            print(f"\n  the seed was {seed}")
        raise
    assert acknowledged


async def settle(state: Path) -> None:
    """Let a last process do what is left, an hour later: what was set aside is due then.

    One before it finds what died with the last that was killed, and may set that aside; it is not killed itself.
    """
    async with open_mortal(state)[0]:
        pass
    gateway, model = open_mortal(state, AheadClock(3600))
    async with gateway, asyncio.timeout(20):
        await settled(gateway)
    assert not model.refused


def check_end(state: Path, acknowledged: dict[str, list[str]]) -> None:
    database = open_database(state)
    try:
        check_invariants(database, state)
        outcomes = {
            run_id: (state, reply) for run_id, state, reply in database.execute("SELECT id, state, reply FROM runs")
        }
        for session, run_ids in acknowledged.items():
            assert {outcomes.get(run_id) for run_id in run_ids} == {("ok", "it is done")}
            (session_id,) = database.execute("SELECT session_id FROM sessions WHERE key = ?", (session,)).fetchone()
            spoken = [
                message.text.partition(":")[0] for message in transcript(database, session_id) if message.provenance
            ]
            in_order = list(dict.fromkeys(spoken))
            assert [run_id for run_id in in_order if run_id in run_ids] == run_ids
    finally:
        database.close()
    log = state / "posted.log"
    posted = Counter(log.read_text().split() if log.exists() else [])
    assert not [call_id for call_id, count in posted.items() if count > 1], "a tool with outside effects ran twice"
