"""Runs of several gateways that wait for one provider: an answer on one lets those of all go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel
from backchannel.core.contracts import ModelFailed, ModelRequest
from tests.cluster.gateways import PATIENCE_S, gateways
from tests.support.gateways import ended
from tests.support.resting import until

pytestmark = pytest.mark.anyio


async def test_an_answer_on_one_gateway_lets_the_waiting_runs_of_all_go_on(tmp_path: Path, url: str) -> None:
    is_up = False

    def reply(request: ModelRequest) -> Scripted:
        text = request.messages[-1].text
        return f"re: {text}" if is_up else ModelFailed("slow down", retryable=True, retry_after_s=3000)

    async with gateways(tmp_path, url, ScriptedModel(replies=reply)) as (one, other):
        names = [f"r{n}" for n in range(6)]
        for n, name in enumerate(names):
            await (one, other)[n % 2].submit(f"agent:main:{name}", name, run_id=name)

        async def all_wait() -> bool:
            runs = [await one.store.run(name) for name in names]
            return all(run is not None and run.waits_for_model for run in runs)

        await until(one, all_wait)
        is_up = True
        await one.store.retry_run("r0")
        for name in names:
            assert (await ended(one, name, PATIENCE_S)).reply == f"re: {name}"
