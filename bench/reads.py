"""Rows about reading: lists of sessions and the ends of transcripts, by how much there is."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial

import msgspec

from backchannel.core.keys import KeyScheme
from backchannel.runtime.clocks import SystemClock
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.sqlite.driver import connect
from backchannel.storage.store import Store
from bench.client import Client, Failed, connected, echoing
from bench.floors import list_sessions, read_messages
from bench.measures import Curve, Figure, Findings, Goal, Timings, growth, time_awaits, time_calls
from bench.states import State
from bench.world import BenchWorld

LIST_LIMIT = 200
HISTORY_LIMIT = 50
FLAT = 1.2


class _Listed:
    """A gateway with so many sessions, listed by a client and by a bare query."""

    def __init__(self, client: Client, database: sqlite3.Connection) -> None:
        self.lists, self.floors = Timings(), Timings()
        self._client = client
        self._database = database

    async def measure(self, calls: int) -> None:
        self.floors.add(time_calls(lambda: list_sessions(self._database, LIST_LIMIT), calls))
        self.lists.add(await time_awaits(self.ask, calls))

    async def ask(self) -> bytes:
        return await self._client.ask("sessions.list", {"limit": LIST_LIMIT})


async def session_lists(world: BenchWorld) -> Findings:
    """`sessions.list` with few and with many sessions."""
    sizes = world.sizes
    async with AsyncExitStack() as exits:
        listed: dict[int, _Listed] = {}
        for count in sizes.sessions:
            yield f"making {count:,} sessions"
            state = world.state(sessions=count)
            gateway = await exits.enter_async_context(world.gateway(state.path))
            client = await exits.enter_async_context(connected(gateway.url, gateway.token))
            database = exits.enter_context(closing(connect(state.database, readonly=True)))
            listed[count] = _Listed(client, database)
            check_count(await listed[count].ask(), "sessions", min(count, LIST_LIMIT))
        for turn in range(sizes.rounds):
            yield f"round {turn + 1} of {sizes.rounds}"
            for each in listed.values():  # in turn, so that a busy moment hits all alike
                await each.measure(sizes.calls // 2)
        yield "the wire alone"
        size = len(await listed[sizes.sessions[0]].ask())
        wire_ms = await _wire_ms(world, size, sizes.calls)
    for count, each in listed.items():
        yield Figure(
            name=f"sessions.list, {LIST_LIMIT} of {count:,}, p50",
            value=each.lists.p50,
            unit="ms",
            floor=each.floors.p50,
            floor_is="the bare query and its encoding",
            goal=Goal(times_floor=1.2),
            detail=each.lists.tail | {"wire": wire_ms, "bytes": size},
        )
    few, many = sizes.sessions[0], sizes.sessions[-1]
    yield Figure(
        name=f"sessions.list, {many:,} against {few:,}",
        value=growth(listed[few].lists, listed[many].lists),
        unit="×",
        goal=Goal(at_most=FLAT),
    )
    yield Curve(
        name="sessions.list, limit 200",
        size_is="sessions",
        unit="ms",
        points=[(count, each.lists.p50) for count, each in listed.items()],
        floor=[(count, each.floors.p50) for count, each in listed.items()],
    )


async def _wire_ms(world: BenchWorld, size: int, calls: int) -> float:
    """Time a bare round trip whose answer has this size."""
    async with world.bare_server() as bare, echoing(bare.url) as echo:
        took = Timings([await time_awaits(lambda: echo.ask(str(size).encode()), calls)])
    return took.p50


def check_count(answer: bytes, field: str, count: int) -> None:
    """Make sure that an answer holds what was asked for."""
    found = len(msgspec.json.decode(answer)[field])
    if found != count:
        raise Failed(f"{found} {field} came instead of {count}")


async def transcript_ends(world: BenchWorld) -> Findings:
    """The last messages of short and long sessions, from the store and by `chat.history`."""
    sizes = world.sizes
    yield f"making sessions of up to {sizes.messages[-1]:,} messages"
    state = world.state(messages=sizes.messages)
    yield "writing its files"  # else a thread would write them while something else is measured
    async with _store(state):
        pass
    stored = {count: Timings() for count in sizes.messages}
    asked = {count: Timings() for count in sizes.messages}
    bare = {count: Timings() for count in sizes.messages}
    with closing(connect(state.database, readonly=True)) as database:
        async with _store(state) as store:
            for turn in range(sizes.rounds):
                yield f"the store, round {turn + 1} of {sizes.rounds}"
                for count, (_, session_id) in state.long.items():
                    bare[count].add(
                        time_calls(partial(read_messages, database, session_id, HISTORY_LIMIT), sizes.calls)
                    )
                    read = partial(store.history, session_id, limit=HISTORY_LIMIT)
                    stored[count].add(await time_awaits(read, sizes.calls))
        async with world.gateway(state.path) as gateway, connected(gateway.url, gateway.token) as client:
            for turn in range(sizes.rounds):
                yield f"chat.history, round {turn + 1} of {sizes.rounds}"
                for count, (key, _) in state.long.items():
                    ask = partial(client.ask, "chat.history", {"sessionKey": key, "limit": HISTORY_LIMIT})
                    check_count(await ask(), "messages", min(count, HISTORY_LIMIT))
                    asked[count].add(await time_awaits(ask, sizes.calls))
    for count in sizes.messages:
        yield Figure(
            name=f"last {HISTORY_LIMIT} of {count:,} messages, store, p50",
            value=stored[count].p50,
            unit="ms",
            floor=bare[count].p50,
            floor_is="the bare query",
            goal=Goal(at_most=1.0),
            detail=stored[count].tail,
        )
    few, many = sizes.messages[0], sizes.messages[-1]
    yield Figure(
        name=f"the same, {many:,} against {few:,}",
        value=growth(stored[few], stored[many]),
        unit="×",
        goal=Goal(at_most=FLAT),
    )
    yield Figure(
        name=f"chat.history, {HISTORY_LIMIT} of {many:,}, p50",
        value=asked[many].p50,
        unit="ms",
        floor=stored[many].p50,
        floor_is="the same from the store",
        detail=asked[many].tail,
    )
    for name, timings, floor in (("store.history", stored, bare), ("chat.history", asked, stored)):
        yield Curve(
            name=f"{name}, last {HISTORY_LIMIT}",
            size_is="messages in the session",
            unit="ms",
            points=[(count, timings[count].p50) for count in sizes.messages],
            floor=[(count, floor[count].p50) for count in sizes.messages],
        )


@asynccontextmanager
async def _store(state: State) -> AsyncIterator[Store]:
    folder = StateFolder.hold(state.path)
    try:
        scheme = KeyScheme(default_agent="main")
        store = await Store.open(
            folder, scheme, SystemClock(), url=f"sqlite:///{folder.database}", on_fatal=lambda cause: None
        )
        try:
            yield store
        finally:
            await store.close()
    finally:
        folder.release()
