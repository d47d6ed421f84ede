"""The row about search: words among many messages, as the tool finds them."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from backchannel.core.messages import Message, Role, encode_message, text_content
from backchannel.runtime.indexing import ENOUGH
from backchannel.storage.sqlite.driver import connect
from bench.client import Client, Failed, connected
from bench.measures import Figure, Findings, Goal, Timings, time_awaits, time_calls
from bench.states import EPOCH_MS
from bench.world import BenchWorld

GOAL_MS = 20.0
_VOCABULARY = 20_000
_WORDS_EACH = 40
_SESSIONS = 1000
_QUERIES = {
    "a rare word": "w9000",
    "two words": "w40 w90",
    "a phrase": '"w1 w2"',
    "the beginning of a word": "w12*",
    "a word of half the messages": "w3",
}
_ALL_QUERIED = "w9000 w40 w90 w1 w2 w12 w3"
"""The first message, so that each query finds one among few messages too."""
_BARE = "SELECT rowid FROM message_words WHERE message_words MATCH ? ORDER BY rowid DESC LIMIT 20"


async def searches(world: BenchWorld) -> Findings:
    """`sessions_search` by the operator, among many messages, for words of all kinds."""
    sizes = world.sizes
    count = sizes.messages[-1]
    yield f"making {count:,} messages"
    state = world.state(sessions=_SESSIONS)
    _fill(state.database, count)
    asked, bare = Timings(), Timings()
    each = {kind: Timings() for kind in _QUERIES}
    async with world.gateway(state.path) as gateway, connected(gateway.url, gateway.token) as client:
        yield "indexing them"
        with closing(connect(state.database, readonly=True)) as database:
            await _indexed(database)
            for turn in range(sizes.rounds):
                yield f"round {turn + 1} of {sizes.rounds}"
                for kind, query in _QUERIES.items():
                    took = await time_awaits(partial(_search, client, query), max(5, sizes.calls // 20))
                    asked.add(took)
                    each[kind].add(took)
                    bare.add(time_calls(partial(_search_bare, database, query), max(5, sizes.calls // 20)))
    yield Figure(
        name=f"sessions_search among {count:,} messages, p50",
        value=asked.p50,
        unit="ms",
        floor=bare.p50,
        floor_is="the bare query of the index",
        goal=Goal(at_most=GOAL_MS),
        detail=asked.tail | {kind: took.p50 for kind, took in each.items()},
    )


async def _search(client: Client, query: str) -> None:
    answer = await client.ask("tools.invoke", {"tool": "sessions_search", "args": {"query": query}})
    if "hits" not in msgspec.json.decode(answer)["result"]:  # a rare word may be in none of few messages
        raise Failed(f"the search for {query} failed")


def _search_bare(database: sqlite3.Connection, query: str) -> None:
    written = f'"{query[:-1]}" *' if query.endswith("*") else query.replace(" ", " AND ") if '"' not in query else query
    database.execute(_BARE, (f"said : ({written})",)).fetchall()


async def _indexed(database: sqlite3.Connection) -> None:
    """Wait until the gateway has indexed the messages; right after the start, `status` does not tell of them yet."""
    while database.execute("SELECT count(*) FROM unindexed").fetchone()[0] >= ENOUGH:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.2)


def _fill(database: Path, count: int) -> None:
    """Write messages of words that are as unevenly frequent as those of a language."""
    with closing(connect(database)) as connection:
        ids = [row[0] for row in connection.execute("SELECT session_id FROM session_ids")]
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO messages (session_id, seq, id, role, body) VALUES (?, ?, ?, ?, ?)", _messages(ids, count)
        )
        connection.execute("UPDATE session_ids SET next_seq = ?", (count // len(ids),))
        connection.execute("COMMIT")


def _messages(ids: list[str], count: int) -> Iterator[tuple[Any, ...]]:
    chance = random.Random(7)  # the same texts in each bench
    words = [f"w{n}" for n in range(1, _VOCABULARY)]
    weights = [1 / n for n in range(1, _VOCABULARY)]
    for n in range(count):
        text = _ALL_QUERIED if n == 0 else " ".join(chance.choices(words, weights, k=_WORDS_EACH))
        role = Role.USER if n % 2 else Role.ASSISTANT
        message = Message(id=uuid.uuid4().hex, role=role, content=text_content(text), timestamp=EPOCH_MS + n * 1000)
        yield ids[n % len(ids)], n // len(ids), message.id, role.value, encode_message(message).decode()
