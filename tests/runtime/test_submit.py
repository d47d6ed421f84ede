"""Accepting a message: whoever may refuse it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.sessions import Session
from backchannel.errors import InvalidRequest, PolicyDenied
from tests.support.gateways import CONFIG, MAIN, live_runs, request, running

pytestmark = pytest.mark.anyio


def refuse(session: Session) -> None:
    raise InvalidRequest(f"not in {session.key}")


async def test_a_check_of_the_door_is_asked_for_a_persons_message_too(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=[])) as gateway:
        with pytest.raises(InvalidRequest, match=f"not in {MAIN}"):
            await gateway.runtime.submit(request(MAIN, "go"), refuse)
        assert await live_runs(gateway) == []


async def test_the_send_policy_is_asked_before_the_check_of_the_door(tmp_path: Path) -> None:
    config = {**CONFIG, "session": {"sendPolicy": {"default": "deny"}}}
    async with running(tmp_path, ScriptedModel(replies=[]), config=config) as gateway:
        with pytest.raises(PolicyDenied):
            await gateway.runtime.submit(request(MAIN, "go"), refuse)
