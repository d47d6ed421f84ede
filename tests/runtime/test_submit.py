"""Accepting a message: whoever may refuse it is asked."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.sessions import Session
from backchannel.errors import InvalidRequest, PolicyDenied
from backchannel.gateway.app import Gateway
from tests.support.gateways import CONFIG, MAIN, live_runs, request, running, with_defaults

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


async def leave_while_it_is_refused(gateway: Gateway, key: str) -> None:
    def leave_and_refuse(session: Session) -> None:
        asked.cancel()
        refuse(session)

    asked = asyncio.create_task(gateway.runtime.submit(request(key, "go"), leave_and_refuse))
    await asyncio.gather(asked, return_exceptions=True)
    assert asked.cancelled()


async def test_a_refusal_that_nobody_waits_for_any_more_is_not_complained_of(tmp_path: Path) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    model = ScriptedModel(replies=[Reply(text="done", gate=asyncio.Event())])
    async with running(tmp_path, model, config=with_defaults(maxConcurrent=1)) as gateway:
        await gateway.runtime.submit(request(MAIN, "takes the only slot"))
        await model.asked()
        for key in (MAIN, "agent:main:other"):
            await leave_while_it_is_refused(gateway, key)
        await gateway.store.check_writable()  # comes after them
        gc.collect()
    assert complaints == []
