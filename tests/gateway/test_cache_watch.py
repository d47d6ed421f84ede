"""The cache of a long conversation: missed again and again, told in `status` with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.core.facts import MessageAppended
from backchannel.core.messages import Message, Role, Usage, text_content
from backchannel.gateway.cache_watch import UNKNOWN, CacheWatch
from backchannel.gateway.condition import examine
from tests.support.gateways import MAIN, running

MINUTE_MS = 60_000


def replied(
    at: int, *, read: int, model: str = "a/m", moved: str | None = None, session_id: str = "s"
) -> MessageAppended:
    usage = Usage(input=20_000 - read, cache_read=read, cache_write=1)
    reply = Message(
        id=str(at), role=Role.ASSISTANT, content=text_content("x"), timestamp=at, model=model, usage=usage, moved=moved
    )
    return MessageAppended(MAIN, session_id, 1, reply, b"")


def reasons(*facts: MessageAppended) -> list[str]:
    watch = CacheWatch(5 * MINUTE_MS)
    for fact in facts:
        watch.on_message(fact)
    return [fall.reason for fall in watch.falls(facts[-1].message.timestamp)]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([replied(n, read=0, moved="the tools changed") for n in range(5)], "the tools changed"),
        ([replied(n, read=0, model=f"a/{n % 2}") for n in range(4)], "the model changed from a/0 to a/1"),
        ([replied(n * 9 * MINUTE_MS, read=0) for n in range(4)], "more than 5 minutes passed between two requests"),
        ([replied(n, read=0) for n in range(4)], UNKNOWN),
    ],
)
def test_the_reason_that_came_most_often_is_named(facts: list[MessageAppended], reason: str) -> None:
    assert reasons(*facts) == [reason]


def test_one_miss_a_new_transcript_and_a_provider_without_a_cache_are_no_problem() -> None:
    assert reasons(*(replied(n, read=0 if n == 3 else 19_000) for n in range(6))) == []
    assert reasons(*(replied(n, read=0, session_id=str(n)) for n in range(6))) == []
    assert not list(CacheWatch(None).falls(0))


@pytest.mark.anyio
async def test_status_tells_of_a_conversation_whose_cache_is_missed(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        now = gateway.clock.now_ms()
        for n in range(5):
            gateway.runtime.hub.publish(replied(now + n, read=0, moved="the tools changed"))
        (told,) = [each for each in (await examine(gateway.parts)).problems if each.code == "cache_missed"]
    assert told.message == (
        f"Only 0% of the last 4 requests of {MAIN} was read from the provider's cache: the tools changed."
    )
