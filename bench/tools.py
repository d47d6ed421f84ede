"""Rows about the session tools: what messages add to a list, and what it costs to see only some sessions."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec

from bench.client import Client, Failed, connected
from bench.measures import Figure, Findings, Goal, Timings, growth, time_awaits
from bench.world import BenchWorld

ROWS = 200
MESSAGES = 5
SAID = 20
FLAT = 1.2


async def _listed(client: Client, **arguments: Any) -> bytes:
    """Call `sessions_list`, as the operator or as a session."""
    session = {"sessionKey": key} if (key := arguments.pop("as_session", None)) else {}
    return await client.ask("tools.invoke", {"tool": "sessions_list", "args": {"limit": ROWS, **arguments}, **session})


def _check(answer: bytes, rows: int, messages: int = 0) -> None:
    listed = msgspec.json.decode(answer)["result"]["sessions"]
    if len(listed) != rows or any(len(row.get("messages", ())) != messages for row in listed):
        raise Failed(f"{len(listed)} rows came instead of {rows}, or not {messages} messages with each")


async def lists_with_messages(world: BenchWorld) -> Findings:
    """`sessions_list` with the last messages of each session, beside the plain list."""
    sizes = world.sizes
    count = max(ROWS, sizes.sessions[0])
    yield f"making {count:,} sessions of {SAID} messages"
    state = world.state(sessions=count, said=SAID)
    plain, full = Timings(), Timings()
    async with world.gateway(state.path) as gateway, connected(gateway.url, gateway.token) as client:
        _check(await _listed(client), ROWS)
        _check(await _listed(client, messageLimit=MESSAGES), ROWS, MESSAGES)
        for turn in range(sizes.rounds):
            yield f"round {turn + 1} of {sizes.rounds}"
            plain.add(await time_awaits(partial(_listed, client), sizes.calls))
            full.add(await time_awaits(partial(_listed, client, messageLimit=MESSAGES), sizes.calls))
    yield Figure(
        name=f"sessions_list, {ROWS} rows with {MESSAGES} messages each, p50",
        value=full.p50,
        unit="ms",
        floor=plain.p50,
        floor_is="the same rows without messages",
        goal=Goal(times_floor=3.0),
        detail=full.tail,
    )


async def restricted_lists(world: BenchWorld) -> Findings:
    """`sessions_list` as a session that sees its own tree, or its agent's sessions, among few and among many."""
    sizes = world.sizes
    few, many = sizes.sessions[0], sizes.sessions[-1]
    for mode, rows in (("tree", 1), ("agent", ROWS)):
        took: dict[int, Timings] = {}
        async with AsyncExitStack() as exits:
            clients: dict[int, Client] = {}
            for count in dict.fromkeys((few, many)):
                yield f"making {count:,} sessions"
                state = world.state(sessions=count)
                gateway = await exits.enter_async_context(world.gateway(state.path, visibility=mode))
                clients[count] = await exits.enter_async_context(connected(gateway.url, gateway.token))
                _check(await _listed(clients[count], as_session=state.first), rows)
                took[count] = Timings()
            for turn in range(sizes.rounds):
                yield f"{mode}, round {turn + 1} of {sizes.rounds}"
                for count, client in clients.items():
                    ask = partial(_listed, client, as_session=state.first)
                    took[count].add(await time_awaits(ask, sizes.calls))
        yield Figure(
            name=f"sessions_list as a session that sees its {mode}, {rows} of {many:,}, p50",
            value=took[many].p50,
            unit="ms",
            detail=took[many].tail,
        )
        yield Figure(
            name=f"the same, {many:,} against {few:,}",
            value=growth(took[few], took[many]),
            unit="×",
            goal=Goal(at_most=FLAT),
        )
