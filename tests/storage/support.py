"""Helpers for storage tests: a clock set by hand, a host that can die, short messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from backchannel.core.facts import Fact
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.messages import (
    Block,
    Message,
    Provenance,
    ProvenanceKind,
    Role,
    ToolCallBlock,
    Usage,
    text_content,
)
from backchannel.core.policy.queues import DEFAULT_RULES
from backchannel.core.runs import Outcome, RunAccepted, RunRequest, RunStarted, RunState, Step, ToolCall, tool_call_id
from backchannel.core.secrets.devices import DeviceToken
from backchannel.storage.driver import Faults
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.ids import new_id
from backchannel.storage.store import Store
from backchannel.storage.tx import NO_OUTLETS, Outlets
from tests.support.clocks import StageClock
from tests.support.databases import database_url, open_database

START_MS = 1_800_000_000_000
MAIN = SessionKey.of("main", "main")
CRON = SessionKey.cron("main", "nightly")
SCHEME = KeyScheme()
PERSON = Provenance(kind=ProvenanceKind.EXTERNAL_USER)

OK = Outcome(state=RunState.OK)
ABORTED = Outcome(state=RunState.ABORTED, error_code="aborted", error="aborted")
FAILED = Outcome(state=RunState.ERROR, error_code="provider", error="the provider said no")


class Host:
    """A state folder and the processes that open it, one after the other."""

    def __init__(self, path: Path, url: str | None = None, *, locks_rows: bool = False) -> None:
        self.path = path
        self._url = url
        self._locks_rows = locks_rows
        self.clock = StageClock.still(START_MS)
        self.rules = DEFAULT_RULES
        self.facts: list[Fact] = []
        self.fatal: list[BaseException] = []
        self._store: Store | None = None
        self._folder: StateFolder | None = None

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def database(self) -> Path:
        return self.path / "backchannel.db"

    @property
    def folder(self) -> StateFolder:
        return StateFolder(self.path)

    @property
    def url(self) -> str:
        return self._url or database_url(self.path)

    async def start(self, *, faults: Faults | None = None, outlets: Outlets = NO_OUTLETS) -> Store:
        """Start a process; the one before must have ended."""
        folder = StateFolder.hold(self.path)
        try:
            store = await Store.open(
                folder,
                SCHEME,
                self.clock,
                url=self.url,
                on_fatal=self.fatal.append,
                faults=faults,
                locks_rows=self._locks_rows,
                outlets=outlets,
                rules=self.rules,
            )
        except BaseException:
            folder.release()
            raise
        self._folder, self._store = folder, store
        store.listen_for_facts(self.facts.extend)
        return store

    async def stop(self) -> None:
        """End the process on purpose."""
        await self.store.close()
        self._let_go()

    async def die(self) -> None:
        """End the process as `kill -9` does: what is committed stays, nothing else is said."""
        await self.store.abandon()
        self._let_go()

    async def restart(self, *, clean: bool = False) -> Store:
        await (self.stop() if clean else self.die())
        return await self.start()

    async def end(self) -> None:
        if self._store is not None:
            await self.die()

    def _let_go(self) -> None:
        assert self._folder is not None
        self._folder.release()
        self._store = self._folder = None

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Look into the database through a connection of one's own."""
        with closing(open_database(self.path)) as connection:
            return connection.execute(sql, values).fetchall()


def rows(database: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Read what really is in a database file."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql, values).fetchall()


def request(text: str = "hello", key: SessionKey = MAIN, **more: Any) -> RunRequest:
    return RunRequest(key=key, content=text_content(text), provenance=PERSON, **more)


async def accept(store: Store, text: str = "hello", key: SessionKey = MAIN, **more: Any) -> RunAccepted:
    """Send a message to a session, to be started if its lane is free."""
    return await store.accept_run(request(text, key, **more), start=True)


async def begin(store: Store, text: str = "hello", key: SessionKey = MAIN, **more: Any) -> RunStarted:
    """Send a message to a session whose lane is free."""
    accepted = await accept(store, text, key, **more)
    assert accepted.started is not None
    return accepted.started


async def answer(store: Store, started: RunStarted, text: str = "hi") -> None:
    """End a run with its last reply."""
    await store.commit_reply(started.fence, step(started, text))


async def converse(store: Store, text: str = "hello", key: SessionKey = MAIN, *, reply: str | None = None) -> None:
    """Have a whole run: a message in, a reply out."""
    await answer(store, await begin(store, text, key), f"re: {text}" if reply is None else reply)


def step(started: RunStarted, text: str = "hi", calls: Sequence[str] = (), *, number: int = 0, **more: Any) -> Step:
    """Make a model's reply, with calls of the tools named."""
    run_id = started.run.id
    blocks: tuple[Block, ...] = tuple(
        ToolCallBlock(id=tool_call_id(run_id, number, index), name=name, arguments={"n": index})
        for index, name in enumerate(calls)
    )
    reply = Message(
        id=new_id(), role=Role.ASSISTANT, content=(*text_content(text), *blocks), timestamp=START_MS, run_id=run_id
    )
    return Step(**{"reply": reply, "ran_ms": 5, "usage": Usage(input=10, output=2), **more})


def partial_reply(started: RunStarted, text: str) -> Message:
    return Message(
        id=new_id(),
        role=Role.ASSISTANT,
        content=text_content(text),
        timestamp=START_MS,
        run_id=started.run.id,
        stop_reason="aborted",
    )


def result_of(call: ToolCall, text: str = "done") -> Message:
    return Message(
        id=new_id(),
        role=Role.TOOL_RESULT,
        content=text_content(text),
        timestamp=START_MS,
        run_id=call.run_id,
        tool_call_id=call.id,
        tool_name=call.name,
    )


def note(text: str, at: int = START_MS) -> Message:
    return Message(id=new_id(), role=Role.SYSTEM, content=text_content(text), timestamp=at)


async def transcript(store: Store, key: SessionKey = MAIN) -> list[Message]:
    """Read all of a session's current transcript."""
    session = await store.session(str(key))
    return [] if session is None else (await store.history(session.session_id, limit=10_000)).messages


async def texts(store: Store, key: SessionKey = MAIN) -> list[str]:
    return [message.text for message in await transcript(store, key)]


def without_id(message: Message) -> Message:
    return msgspec.structs.replace(message, id="")


def digest_of(salt: str) -> str:
    """Tell the hash of the token that a salt gives, of one parent that never changes."""
    return f"digest of {salt}"


def device(name: str = "laptop", salt: str = "s1", parent: str = "operator:1", **more: Any) -> DeviceToken:
    """Make a device token as it is offered to the store."""
    fields = {
        "id": f"{name} {salt} {parent}",
        "digest": digest_of(salt),
        "salt": salt,
        "device_id": name,
        "public_key": "key",
        "parent": parent,
        "scopes": "operator.read",
        "client": "page",
        "platform": "Linux",
        "origin": "http://127.0.0.1",
        "created_at": START_MS,
        "used_at": START_MS,
    }
    return DeviceToken(**{**fields, **more})
