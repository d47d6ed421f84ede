"""The next delivery of a chat: the first in the queue, when it is due and none is being sent."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from backchannel.core.delivery.delivery import DeliveryLane, DeliveryState, Post
from backchannel.core.sessions import Address
from backchannel.storage.tx import NoOutlets
from tests.storage.support import START_MS, Host
from tests.support.databases import open_database

pytestmark = pytest.mark.anyio

S = DeliveryState
LANES = [
    DeliveryLane("desk", "default", "a", None),
    DeliveryLane("desk", "default", "b", None),
    DeliveryLane("desk", "other", "a", None),
    DeliveryLane("hall", "default", "a", None),
    DeliveryLane("desk", "default", "a", "thread"),
]
Made = tuple[DeliveryLane, DeliveryState, int | None, str | None]


def write(host: Host, made: list[Made]) -> None:
    """Put deliveries in line, in this order."""
    with closing(open_database(host.path)) as connection, connection:
        connection.execute("DELETE FROM deliveries")
        for position, (lane, state, due_at, text) in enumerate(made):
            connection.execute(
                "INSERT INTO deliveries (id, position, session_key, state, channel, account_id, target, thread_id, "
                "text, due_at, created_at, updated_at) VALUES (?, ?, 'agent:main:main', ?, ?, ?, ?, ?, ?, ?, 1, 1)",
                (f"d{position}", position, state.value, *lane, text, due_at),
            )


async def settled(host: Host, lane: DeliveryLane) -> list[int]:
    """Give a lane its turn, and tell which deliveries had theirs; no channel is there, so each is settled at once."""
    before = dict(host.rows("SELECT position, state FROM deliveries"))
    assert await host.store.claim_part(lane) is None
    after = host.rows("SELECT position, state FROM deliveries ORDER BY position")
    return [position for position, state in after if before[position] == S.PENDING and state == S.NO_CHANNEL]


def expected(made: list[Made], lane: DeliveryLane) -> list[int]:
    turns: list[int] = []
    for position, (place, state, due_at, text) in enumerate(made):
        if place != lane or not state.is_open or text is None:
            continue
        if state is S.SENDING or (due_at is not None and due_at > START_MS):
            break
        turns.append(position)
    return turns


async def test_a_lane_sends_one_at_a_time_in_order_of_commit(host: Host) -> None:
    here = LANES[0]
    write(host, [(here, S.SENT, None, "x"), (here, S.PENDING, None, "x"), (here, S.SENDING, None, "x")])
    assert await settled(host, here) == [1]
    write(host, [(here, S.SENDING, None, "x"), (here, S.PENDING, None, "x")])
    assert await settled(host, here) == []


async def test_a_row_that_waits_for_a_retry_holds_back_those_behind_it(host: Host) -> None:
    here = LANES[0]
    write(host, [(here, S.PENDING, START_MS + 1, "x"), (here, S.PENDING, None, "x")])
    assert await settled(host, here) == []
    host.clock.tick()
    assert await settled(host, here) == [0, 1]


@pytest.mark.parametrize("state", [state for state in S if not state.is_open])
async def test_what_is_not_open_holds_nothing_back(host: Host, state: DeliveryState) -> None:
    write(host, [(LANES[0], state, None, "x"), (LANES[0], S.PENDING, None, "x")])
    assert await settled(host, LANES[0]) == [1]


@pytest.mark.parametrize("other", LANES[1:])
async def test_other_channels_accounts_chats_and_threads_are_other_lanes(host: Host, other: DeliveryLane) -> None:
    write(host, [(LANES[0], S.SENDING, None, "x"), (other, S.PENDING, None, "x")])
    assert await settled(host, other) == [1]


async def test_a_receipt_without_text_is_not_sent_and_holds_nothing_back(host: Host) -> None:
    write(host, [(LANES[0], S.PENDING, None, None), (LANES[0], S.PENDING, None, "x")])
    assert await settled(host, LANES[0]) == [1]


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_stands_in_line_only_the_first_that_is_due_has_its_turn(host: Host, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        made: list[Made] = [
            (
                chance.choice(LANES[:2]),
                chance.choice(list(S)),
                chance.choice([None, START_MS - 1, START_MS, START_MS + 1]),
                chance.choice(["x", "x", "x", None]),
            )
            for _ in range(chance.randrange(12))
        ]
        write(host, made)
        for lane in LANES[:2]:
            assert await settled(host, lane) == expected(made, lane), made


def places(host: Host, chat: str) -> list[tuple[str, int]]:
    return host.rows("SELECT text, position FROM deliveries WHERE target = ? ORDER BY position", chat)


async def put(host: Host, chat: str, text: str) -> str:
    """Put a text in the line of a chat, and return the delivery's id."""
    address = Address(channel="desk", to=chat)
    posted = await host.store.post(Post(session_key="agent:main:main", address=address, text=text))
    return posted.delivery.id


async def test_each_chat_counts_the_places_of_its_own_line(host: Host) -> None:
    for chat, text in (("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("b", "5")):
        await put(host, chat, text)
    assert places(host, "a") == [("1", 1), ("3", 2), ("4", 3)]
    assert places(host, "b") == [("2", 1), ("5", 2)]


async def test_a_retry_goes_to_the_end_of_its_line(host: Host) -> None:
    await host.stop()
    await host.start(outlets=OneOutlet())
    first = await put(host, "a", "1")
    await put(host, "a", "2")
    with closing(open_database(host.path)) as connection, connection:
        connection.execute("UPDATE deliveries SET state = 'failed' WHERE id = ?", (first,))
    await host.store.retry_delivery(first)
    assert places(host, "a") == [("2", 2), ("1", 3)]


class OneOutlet(NoOutlets):
    """Outlets with one channel."""

    names = ("desk",)

    def limit(self, channel: str) -> int | None:
        return 1000
