"""A state folder with sessions in it, as an earlier process could have left it."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.messages import Block, Message, Role, encode_message, text_content
from backchannel.gateway.app import Gateway
from backchannel.storage.ids import new_id
from backchannel.storage.sqlite.file import SqliteDatabase
from tests.support.clocks import StageClock
from tests.support.gateways import running

START_MS = 1_700_000_000_000


class Shelf:
    """Puts sessions into a database before a gateway opens it."""

    def __init__(self, state: Path, scheme: KeyScheme | None = None) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self.state = state
        self._scheme = scheme or KeyScheme()
        self._database = state / "backchannel.db"
        SqliteDatabase(self._database).prepare()

    def session(self, key: str, *said: str | Message, at: int = START_MS, **columns: Any) -> str:
        """Put a session there with what was said in it; returns its id."""
        read = SessionKey.parse(key)
        session_id = str(uuid.uuid4())
        row = {
            "key": str(read),
            "agent_id": read.agent,
            "kind": self._scheme.kind(read).value,
            "session_id": session_id,
            "created_at": at,
            "updated_at": at,
            "channel": read.channel if read.chat_type else None,
            **columns,
        }
        marks = ", ".join("?" for _ in row)
        messages = [message(each) if isinstance(each, str) else each for each in said]
        with closing(sqlite3.connect(self._database)) as connection, connection:
            connection.execute(f"INSERT INTO sessions ({', '.join(row)}) VALUES ({marks})", [*row.values()])
            connection.execute(
                "INSERT INTO session_ids (session_id, key, mark, next_seq, created_at) VALUES (?, ?, 'k7', ?, ?)",
                (session_id, str(read), len(messages), at),
            )
            connection.executemany(
                "INSERT INTO messages (session_id, seq, id, role, body) VALUES (?, ?, ?, ?, ?)",
                (
                    (session_id, seq, said.id, said.role.value, encode_message(said).decode())
                    for seq, said in enumerate(messages)
                ),
            )
        return session_id

    def execute(self, sql: str, *values: Any) -> None:
        """Write what no door writes yet."""
        with closing(sqlite3.connect(self._database)) as connection, connection:
            connection.execute(sql, values)

    def count(self, table: str) -> int:
        with closing(sqlite3.connect(self._database)) as connection:
            (found,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(found)

    @asynccontextmanager
    async def opened(self, config: dict[str, Any] | None = None, *models: Any) -> AsyncIterator[Gateway]:
        """Open a gateway on it whose clock can be moved."""
        async with running(self.state, *models, config=config or {}, clock=StageClock()) as gateway:
            yield gateway


def message(text: str = "hello", role: Role = Role.USER, *blocks: Block, **more: Any) -> Message:
    return Message(id=new_id(), role=role, content=(*text_content(text), *blocks), timestamp=START_MS, **more)


def result(text: str, name: str = "look") -> Message:
    """Make the result of a tool."""
    return message(text, Role.TOOL_RESULT, tool_call_id="r/0/0", tool_name=name, is_error=False)


def agents(*ids: str, defaults: dict[str, Any] | None = None, tools: dict[str, Any] | None = None) -> dict[str, Any]:
    """Make a configuration of agents, with their defaults and the tools of all."""
    return {"agents": {"list": [{"id": id} for id in ids], "defaults": defaults or {}}, "tools": tools or {}}


def nulls(value: Any, path: str = "$") -> Iterator[str]:
    """Find where a JSON value has nothing in it."""
    if value is None:
        yield path
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from nulls(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from nulls(item, f"{path}[{index}]")


def encoded(value: Any) -> bytes:
    """Write a result as a door does, in one form."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
