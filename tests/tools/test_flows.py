"""The identity of a repeated call. A call in a run and a key from outside never match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import call
from backchannel.core.contracts import ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.tools.base import Caller
from backchannel.tools.registry import invoke
from tests.support.children import family, spawn
from tests.support.gateways import MAIN

pytestmark = pytest.mark.anyio

FROM_OUTSIDE = Caller(SessionKey.parse(MAIN), "r/0/0", token_id="t")
"""A program that calls as the session, with a key that is the id of the first call in the run `r`."""


@pytest.mark.parametrize("comes_first", [True, False])
async def test_no_key_from_outside_stands_for_a_spawn_in_a_run(tmp_path: Path, comes_first: bool) -> None:
    planted: dict[str, Any] = {"task": "planted"}
    async with family(tmp_path, person=[[spawn("dig")]]) as household:
        if comes_first:
            await invoke(household.gateway.parts, FROM_OUTSIDE, "sessions_spawn", planted)
        await household.gateway.ask(MAIN, "go", run_id="r")
        if not comes_first:
            await invoke(household.gateway.parts, FROM_OUTSIDE, "sessions_spawn", planted)
        await household.over()
        assert sorted(spawn.task for spawn in household.spawns()) == ["dig", "planted"]


@pytest.mark.parametrize("comes_first", [True, False])
async def test_no_key_from_outside_stands_for_a_send_in_a_run(tmp_path: Path, comes_first: bool) -> None:
    planted: dict[str, Any] = {"sessionKey": MAIN, "message": "planted", "timeoutSeconds": 0}
    sends = [call("sessions_send", sessionKey=MAIN, message="dig", timeoutSeconds=0)]

    def answer(request: ModelRequest) -> Any:
        return sends if request.messages[-1].text == "go" else "REPLY_SKIP"

    async with family(tmp_path, person=answer) as household:
        await household.ask("hello")
        if comes_first:
            await invoke(household.gateway.parts, FROM_OUTSIDE, "sessions_send", planted)
            await household.over()
        await household.gateway.ask(MAIN, "go", run_id="r")
        if not comes_first:
            await invoke(household.gateway.parts, FROM_OUTSIDE, "sessions_send", planted)
        await household.over()
        sent = [message.text for message in await household.said_to(MAIN)]
        assert sum("dig" in text for text in sent) == 1
        assert len(household.rows("SELECT id FROM exchanges")) == 2
