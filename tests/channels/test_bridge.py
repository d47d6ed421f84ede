"""The bridge as a channel: what it posts, and what it makes of each kind of answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from backchannel.channels.bridge.channel import Bridge
from backchannel.channels.bridge.settings import BridgeSettings
from backchannel.core.delivery.attempts import MAX_RETRY_TIME_MS, AttemptRules, after_attempt
from backchannel.core.delivery.channels import ChannelBusy, ChannelRefused, ChannelSilent, OutboundPart
from backchannel.core.delivery.delivery import Tries
from backchannel.runtime.clocks import SystemClock
from tests.support.far_end import SECRET, FarEnd, Fault, Told
from tests.support.servers import Break, Hang

pytestmark = pytest.mark.anyio
PART = OutboundPart(delivery_id="d", key="d/1", to="Chat-1", text="hello", account_id="default")


@asynccontextmanager
async def bridge_to(url: str, secret: str = SECRET, limit_s: float = 20) -> AsyncIterator[Bridge]:
    settings = BridgeSettings(url=url, secret=secret)
    bridge = Bridge("desk", settings, SystemClock(), answer_limit_s=limit_s)
    try:
        yield bridge
    finally:
        await bridge.close()


async def test_a_part_is_posted_signed_with_its_key_and_the_far_ends_id_comes_back() -> None:
    async with FarEnd() as far_end, bridge_to(far_end.url) as bridge:
        sent = await bridge.send(PART)
        whole = OutboundPart(delivery_id="e", key="e/2", to="C", text="ü", account_id="work", thread_id="T")
        await bridge.send(whole)
    assert sent.message_id == "m1"
    first, second = far_end.messages
    assert (first.key, first.to, first.text, first.account_id, first.thread_id) == (
        "d/1",
        "Chat-1",
        "hello",
        None,
        None,
    )
    assert (second.key, second.text, second.account_id, second.thread_id) == ("e/2", "ü", "work", "T")


async def test_a_part_that_comes_again_is_taken_once() -> None:
    async with FarEnd() as far_end, bridge_to(far_end.url) as bridge:
        assert bridge.takes_key
        assert await bridge.send(PART) == await bridge.send(PART)
    assert far_end.posts == ["d/1", "d/1"] and far_end.counts == {"d/1": 1}


@pytest.mark.parametrize("status", [400, 401, 404, 410, 302])
async def test_a_4xx_or_a_redirect_is_a_refusal(status: int) -> None:
    async with FarEnd() as far_end, bridge_to(far_end.url) as bridge:
        far_end.then(Fault(status, body="no such chat"))
        with pytest.raises(ChannelRefused, match=f"{status}: no such chat"):
            await bridge.send(PART)


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clocks show another time than UTC."""
    with monkeypatch.context() as machine:
        machine.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
@pytest.mark.parametrize("told", ["90", "in 90 seconds", "in 90 seconds, as C writes it", None])
async def test_a_429_is_busy_for_as_long_as_it_says(told: str | None) -> None:
    later = datetime.now(UTC) + timedelta(seconds=90)
    dates = {"in 90 seconds": format_datetime(later, usegmt=True), "in 90 seconds, as C writes it": later.ctime()}
    value = None if told is None else dates.get(told, told)
    async with FarEnd() as far_end, bridge_to(far_end.url) as bridge:
        far_end.then(Fault(429, headers={} if value is None else {"Retry-After": value}))
        with pytest.raises(ChannelBusy) as busy:
            await bridge.send(PART)
    if told is None:
        assert busy.value.retry_after_s is None
    else:
        assert 60 < (busy.value.retry_after_s or 0) <= 90


@pytest.mark.parametrize(
    "told",
    [
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "-5",
        "0",
        "soon",
        "nan",
        "inf",
        "1e400",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "9" * 400,
    ],
)
async def test_a_429_backs_off_by_its_own_rule_whatever_it_asks_for(told: str) -> None:
    async with FarEnd() as far_end, bridge_to(far_end.url) as bridge:
        far_end.then(Fault(429, headers={"Retry-After": told}))
        with pytest.raises(ChannelBusy) as busy:
            await bridge.send(PART)
    attempted = after_attempt(busy.value, Tries(3), AttemptRules(takes_key=True))
    assert attempted.wait_ms is not None
    assert 4_000 <= attempted.wait_ms <= MAX_RETRY_TIME_MS


@pytest.mark.parametrize("told", [Fault(500), Fault(503), Break(), Hang()], ids=str)
async def test_a_5xx_a_broken_answer_and_none_leave_it_unknown(told: Told) -> None:
    async with FarEnd() as far_end, bridge_to(far_end.url, limit_s=0.3) as bridge:
        far_end.then(told)
        with pytest.raises(ChannelSilent):
            await bridge.send(PART)


async def test_a_far_end_that_is_not_there_has_surely_not_taken_it() -> None:
    async with FarEnd() as far_end:
        url = far_end.url
    async with bridge_to(url) as bridge:
        with pytest.raises(ChannelBusy, match="cannot be reached"):
            await bridge.send(PART)


async def test_a_message_without_an_id_of_its_own_was_taken_all_the_same() -> None:
    async with FarEnd() as far_end, bridge_to(far_end.url) as bridge:
        far_end.then(Fault(200, body="thanks", takes=True), Fault(204, body="", takes=True))
        assert (await bridge.send(PART)).message_id is None
        assert (await bridge.send(PART)).message_id is None


async def test_a_far_end_that_repeats_what_it_was_sent_is_told_of_without_the_secrets() -> None:
    async with FarEnd() as far_end, bridge_to(f"{far_end.url}?key=swordfish") as bridge:
        far_end.then(Fault(400, body=f"{'x' * 175} {SECRET} by swordfish"))
        with pytest.raises(ChannelRefused) as refused:
            await bridge.send(PART)
    assert refused.value.reason.endswith("x [hidden] by [hidden]")


async def test_neither_the_secret_nor_the_text_is_in_what_goes_wrong() -> None:
    async with FarEnd() as far_end, bridge_to(far_end.url, secret="another secret, of 16 and more") as bridge:
        with pytest.raises(ChannelRefused) as refused:
            await bridge.send(PART)
    assert far_end.messages == []
    assert "another secret" not in refused.value.reason and "hello" not in refused.value.reason
