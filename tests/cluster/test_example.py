"""The example of several gateways on one machine is started, used, hurt and stopped, as its page says."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.client import OPERATOR, connected

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).parents[2] / "examples" / "cluster" / "cluster.py"
PATIENCE_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user gets through to: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory(prefix="cluster-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_the_example_answers_through_its_balancer_also_when_a_gateway_was_killed(folder: Path) -> None:

    program = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), "--port", "0", "--folder", str(folder)),
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "BACKCHANNEL_TOKEN": OPERATOR},
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdout is not None
    try:
        pid = int((await said(program.stdout, r"gw2 \| started, pid (\d+)"))[1])
        at = (await said(program.stdout, r"ready: http://(\S+)"))[1]
        assert (await answer(at, "one"))["status"] == "ok"
        os.kill(pid, signal.SIGKILL)
        await said(program.stdout, r"gw2 \| ended with -9")
        assert [(await answer(at, f"two-{n}"))["status"] for n in range(3)] == ["ok"] * 3
        await said(program.stdout, r"gw2 \| started, pid (\d+)")
        program.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            await program.stdout.read()
            assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()


async def said(lines: asyncio.StreamReader, pattern: str) -> re.Match[str]:
    """Wait for a line of the output."""
    async with asyncio.timeout(PATIENCE_S):
        while line := await lines.readline():
            if found := re.search(pattern, line.decode()):
                return found
    raise AssertionError(f"the program ended and did not say {pattern}")


async def answer(at: str, run_id: str) -> dict[str, Any]:
    async with connected(f"ws://{at}/ws") as client:
        await client.ask("agent", message="hello", sessionKey="agent:main:main", idempotencyKey=run_id)
        return await client.ask("agent.wait", runId=run_id, timeoutMs=30_000)
