"""Failures in the log: one line each, after the commit."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import ModelFailed
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.sessions import Address
from backchannel.gateway.app import RunFailed
from tests.channels.desk import desk
from tests.support.clocks import StageClock
from tests.support.far_end import FarEnd, Fault
from tests.support.gateways import MAIN, ended, held, running, with_defaults
from tests.support.logs import captured_logs

pytestmark = pytest.mark.anyio
S = DeliveryState
TO_DESK = Post(session_key=MAIN, address=Address(channel="desk", to="C"), text="a private text")


def told(logs: list[MutableMapping[str, Any]], words: str) -> list[MutableMapping[str, Any]]:
    return [line for line in logs if line["event"].startswith(words)]


async def test_a_failed_run_is_one_warning_that_names_it_and_an_answered_one_is_none(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[ModelFailed("x" * 1000, retryable=False), "hi"])
    with captured_logs() as logs:
        async with running(tmp_path, model) as gateway:
            with pytest.raises(RunFailed):
                await gateway.ask("main", "hello", run_id="r")
            await gateway.ask("main", "hello")
    (line,) = told(logs, "a run ended as")
    assert (line["event"], line["log_level"]) == ("a run ended as error", "warning")
    assert (line["run_id"], line["session_key"], line["code"]) == ("r", MAIN, "model_failed")
    assert len(line["error"]) == 300


async def test_a_run_whose_time_was_over_is_told_and_one_that_was_stopped_is_not(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("so"), held("so")])
    with captured_logs() as logs:
        async with running(tmp_path, model, config=with_defaults(timeoutSeconds=1)) as gateway:
            await gateway.submit("main", "hello", run_id="r1")
            await ended(gateway, "r1")
            await gateway.submit("main", "hello", run_id="r2")
            await model.asked(2)
            await gateway.runtime.abort(MAIN, "r2")
            await ended(gateway, "r2")
    assert [(line["event"], line["run_id"]) for line in told(logs, "a run ended as")] == [
        ("a run ended as timeout", "r1")
    ]


async def test_a_delivery_that_failed_is_one_warning_without_its_text(tmp_path: Path) -> None:
    with captured_logs() as logs:
        async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
            far_end.then(Fault(404, body="no such chat"))
            delivery_id = await world.send(TO_DESK)
            await world.becomes(S.FAILED, delivery_id)
    (line,) = told(logs, "a delivery is")
    assert (line["event"], line["delivery"], line["channel"]) == ("a delivery is failed", delivery_id, "desk")
    assert "no such chat" in line["error"] and TO_DESK.text not in str(logs)


async def test_a_channel_that_goes_down_and_comes_up_again_is_told_once_each(tmp_path: Path) -> None:
    with captured_logs() as logs:
        async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, clock=StageClock()) as world:
            far_end.then(*[Fault(503)] * 5)
            delivery_id = await world.send(TO_DESK)
            await world.becomes(S.SENT, delivery_id)
    lines = [(line["event"], line["log_level"], line["channel"]) for line in told(logs, "a channel is")]
    assert lines == [("a channel is down", "warning", "desk"), ("a channel is up again", "info", "desk")]


async def test_one_failure_between_two_that_got_through_is_no_channel_that_is_down(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, clock=StageClock()) as world:
        for _ in range(4):
            far_end.then(Fault(503))
            await world.becomes(S.SENT, await world.send(TO_DESK))
        assert world.gateway.runtime.outbox.reach.down == {}
