"""The kill harness: stops a gateway at every commit, before and after it, and looks at what the next start makes of it.

A `Flow` is what clients do; it must be repeatable, as clients are that lost their connection: the same idempotency
keys, the same questions. `kill_at_every_commit` runs it once undisturbed to count the commits, then once for each
crash point: the process dies there, a new one starts on the same files, the clients repeat themselves, and all
invariants are checked. What only this flow promises, it checks itself.

`kill_at_every_send` does the same around each message that leaves the gateway: before the far end hears of it, when it
has taken it and not yet answered, and when it has answered and nobody has written that down.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from backchannel.config.load import config_from
from backchannel.core.delivery.channels import Channel, OutboundPart, Sent
from backchannel.core.messages import Message, Role, decode_message
from backchannel.errors import Unavailable
from backchannel.gateway.app import Gateway
from backchannel.storage.driver import ProcessKilled
from tests.support.databases import forget, open_database, with_database
from tests.support.far_end import FarEnd
from tests.support.platform import Moment
from tests.support.resting import at_rest
from tests.support.servers import Hang

When = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "taken", "answered")
PATIENCE_S = 20.0
MEMORY = Path("/dev/shm")


class KillAt:
    """Kills the process at one commit."""

    def __init__(self, number: int, when: When) -> None:
        self._point = (number, when)

    def before_commit(self, number: int) -> None:
        self._maybe(number, "before")

    def after_commit(self, number: int) -> None:
        self._maybe(number, "after")

    def _maybe(self, number: int, when: When) -> None:
        if (number, when) == self._point:
            raise ProcessKilled


class KillAtSend:
    """Kills the process at one message that leaves it: no commit is made from then on."""

    def __init__(self, number: int, moment: Moment) -> None:
        self.point = (number, moment)
        self.is_dead = False

    def before_commit(self, number: int) -> None:
        if self.is_dead:
            raise ProcessKilled

    def after_commit(self, number: int) -> None: ...


class DeadlyChannel(Channel):
    """A channel of a gateway that dies at one of its sends, or of one that only has its sends counted."""

    def __init__(self, gateway: Gateway, name: str, far_end: FarEnd, death: KillAtSend | None) -> None:
        self.sends = 0
        self._inner = gateway.channels[name]
        self._gateway = gateway
        self._far_end = far_end
        self._death = death
        self.name, self.max_text_length = name, self._inner.max_text_length
        self.takes_key, self.settings = self._inner.takes_key, self._inner.settings
        self.has_buttons, self.max_file_bytes = self._inner.has_buttons, self._inner.max_file_bytes
        self.post, self.close = self._inner.post, self._inner.close  # type: ignore[method-assign]  # it only watches sends

    async def send(self, part: OutboundPart) -> Sent:
        self.sends += 1
        moment = self._death.point[1] if self._death and self._death.point[0] == self.sends else None
        if moment == "before":
            await self._die()
        if moment == "taken":
            self._far_end.then(Hang(takes=True))
            posts = len(self._far_end.posts)
            sending = asyncio.ensure_future(self._inner.send(part))
            try:
                await self._far_end.posted(posts + 1)
                await self._die()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        sent = await self._inner.send(part)
        if moment == "answered":
            await self._die()
        return sent

    async def _die(self) -> None:
        assert self._death is not None
        await _die(self._gateway, self._death)


class Flow(Protocol):
    """One story to be interrupted."""

    def equip(self, gateway: Gateway) -> None:
        """Register agents, models and tools, as a program does at each start."""
        ...

    async def drive(self, gateway: Gateway) -> None:
        """Do what the clients do, and wait for the outcome; may be repeated after a crash."""
        ...

    def check(self, database: sqlite3.Connection) -> None:
        """Check what this flow promises, beyond the invariants of all."""
        ...


async def kill_at_every_commit(make: Callable[[], Flow], config: dict[str, object] | None = None) -> int:
    """Interrupt the flow at each of its commits, twice; returns the number of crash points that were hit."""
    commits = await _undisturbed(make(), config)
    hit = 0
    for number in range(1, commits + 1):
        for when in ("before", "after"):
            with state_folder() as folder:
                flow = make()
                hit += await _interrupted(flow, folder, KillAt(number, when), config)
                await _complete(flow, folder, config)
                _check(flow, folder, f"killed {when} commit {number}")
    return hit


async def kill_at_every_send(make: Callable[[], Flow], far_end: FarEnd, channel: str, config: dict[str, object]) -> int:
    """Interrupt the flow at each message that it sends over a channel, at three moments; returns how many were hit."""
    counted = _Sending(make(), channel, far_end, None)
    await _undisturbed(counted, config)
    hit = 0
    for number in range(1, counted.sends + 1):
        for moment in MOMENTS:
            with state_folder() as folder:
                flow, death = make(), KillAtSend(number, moment)
                hit += await _interrupted(_Sending(flow, channel, far_end, death), folder, death, config)
                await _complete(flow, folder, config)
                _check(flow, folder, f"killed at send {number}: {moment}")
    return hit


async def cut_commits(make: Callable[[FarEnd], Flow], config: Callable[[FarEnd], dict[str, object]]) -> int:
    """Interrupt a flow that talks with a far end at each of its commits."""
    async with FarEnd() as far_end:
        return await kill_at_every_commit(lambda: make(far_end), config(far_end))


async def cut_sends(make: Callable[[FarEnd], Flow], config: Callable[[FarEnd], dict[str, object]]) -> int:
    """Interrupt a flow that talks with a far end, over the channel `desk`, at each message that it sends."""
    async with FarEnd() as far_end:
        return await kill_at_every_send(lambda: make(far_end), far_end, "desk", config(far_end))


class WatchedPlatform(Protocol):
    """A platform that outlives the gateways, and counts what it is asked to post, edit and delete."""

    at_call: Callable[[int, Moment], Awaitable[None]] | None

    @property
    def call_count(self) -> int: ...


class PlatformFlow(Flow, Protocol):
    """A story that is told on a platform."""

    @property
    def platform(self) -> WatchedPlatform: ...


async def kill_at_every_call(make: Callable[[], PlatformFlow], config: dict[str, object]) -> int:
    """Interrupt the flow at each call of its platform, drafts included, as `kill_at_every_send` does."""
    counted = make()
    await _undisturbed(counted, config)
    hit = 0
    for number in range(1, counted.platform.call_count + 1):
        for moment in MOMENTS:
            with state_folder() as folder:
                flow, death = make(), KillAtSend(number, moment)
                hit += await _interrupted(_Calling(flow, death), folder, death, config)
                flow.platform.at_call = None
                await _complete(flow, folder, config)
                _check(flow, folder, f"killed at call {number}: {moment}")
    return hit


class _Calling:
    """A flow whose gateway dies at one call of its platform."""

    def __init__(self, flow: PlatformFlow, death: KillAtSend) -> None:
        self._flow, self._death = flow, death
        self.drive, self.check = flow.drive, flow.check

    def equip(self, gateway: Gateway) -> None:
        self._flow.equip(gateway)

        async def at_call(number: int, moment: Moment) -> None:
            if (number, moment) == self._death.point:
                await _die(gateway, self._death)

        self._flow.platform.at_call = at_call


async def _die(gateway: Gateway, death: KillAtSend) -> None:
    death.is_dead = True
    with suppress(asyncio.CancelledError):
        await gateway.store.sign_of_life()
    await asyncio.Event().wait()  # a dead process does nothing more


class _Sending:
    """A flow whose channel is watched, or deadly."""

    def __init__(self, flow: Flow, channel: str, far_end: FarEnd, death: KillAtSend | None) -> None:
        self._flow, self._channel, self._far_end, self._death = flow, channel, far_end, death
        self._watched: DeadlyChannel | None = None
        self.drive, self.check = flow.drive, flow.check

    @property
    def sends(self) -> int:
        return 0 if self._watched is None else self._watched.sends

    def equip(self, gateway: Gateway) -> None:
        self._flow.equip(gateway)
        self._watched = DeadlyChannel(gateway, self._channel, self._far_end, self._death)
        gateway.add_channel(self._watched)


@contextmanager
def state_folder() -> Iterator[Path]:
    """Give a folder for one story; its database is gone with it.

    It is in memory where there is room. A process that dies loses nothing that it has handed to the system, so for this
    harness a disk is only slower.
    """
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1 << 30
    with tempfile.TemporaryDirectory(prefix="kill-", dir=MEMORY if has_room else None) as name:
        yield Path(name)
        forget(Path(name))


async def _undisturbed(flow: Flow, config: dict[str, object] | None) -> int:
    with state_folder() as folder:
        commits = await _complete(flow, folder, config)
        _check(flow, folder, "not killed")
        return commits


def _gateway(flow: Flow, folder: Path, faults: KillAt | KillAtSend | None, config: dict[str, object] | None) -> Gateway:
    gateway = Gateway(config_from(with_database(config, folder), state=folder), faults=faults)
    flow.equip(gateway)
    return gateway


async def _interrupted(flow: Flow, folder: Path, faults: KillAt | KillAtSend, config: dict[str, object] | None) -> bool:
    """Run the flow until it is killed; tells whether that happened (commits may be grouped otherwise this time)."""
    gateway = _gateway(flow, folder, faults, config)
    async with asyncio.timeout(PATIENCE_S):
        try:
            async with gateway:
                await _until_killed(flow, gateway)
        except asyncio.CancelledError:
            if gateway.failed is None or not gateway.failed.done():
                raise
    return gateway.failed is not None and gateway.failed.done()


async def _until_killed(flow: Flow, gateway: Gateway) -> None:
    assert gateway.failed is not None
    clients = asyncio.create_task(flow.drive(gateway))
    either: set[asyncio.Future[Any]] = {clients, gateway.failed}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not clients.done():
        clients.cancel()
    if gateway.failed.done():
        with suppress(asyncio.CancelledError, Unavailable):  # a dead process answers nobody
            await clients
    else:
        await clients


async def _complete(flow: Flow, folder: Path, config: dict[str, object] | None) -> int:
    async with asyncio.timeout(PATIENCE_S), _gateway(flow, folder, None, config) as gateway:
        await flow.drive(gateway)
        await at_rest(gateway)
        return gateway.store.driver.commits


def _check(flow: Flow, folder: Path, when: str) -> None:
    database = open_database(folder)
    try:
        check_invariants(database, folder)
        flow.check(database)
    except AssertionError as error:
        raise AssertionError(f"{when}: {error}") from error
    finally:
        database.close()


def transcript(database: sqlite3.Connection, session_id: str) -> list[Message]:
    rows = database.execute("SELECT body FROM messages WHERE session_id = ? ORDER BY seq", (session_id,))
    return [decode_message(body) for (body,) in rows]


def check_invariants(database: sqlite3.Connection, folder: Path) -> None:
    """Check what holds in every database at rest, whatever happened before."""
    live = database.execute("SELECT id, state FROM runs WHERE state IN ('queued', 'running')").fetchall()
    assert not live, f"runs that never ended: {live}"
    lanes = database.execute("SELECT key FROM sessions WHERE running_run IS NOT NULL OR queued <> 0").fetchall()
    assert not lanes, f"lanes that were not freed: {lanes}"
    assert not database.execute("SELECT 1 FROM inbox").fetchall(), "notes that never entered a transcript"
    assert not database.execute("SELECT 1 FROM tool_calls WHERE state <> 'done'").fetchall(), "open tool calls"
    _check_deliveries(database)
    for run_id, message_id, state, session_id, kind in database.execute(
        "SELECT id, message_id, state, session_id, kind FROM runs"
    ).fetchall():
        (count,) = database.execute("SELECT count(*) FROM messages WHERE id = ?", (message_id,)).fetchone()
        # The results that a wake was to tell stay as a note when it is stopped before it started.
        expected = 0 if session_id is None and kind != "wake" else 1
        assert count == expected, f"run {run_id} ({state}): its message is {count} times in a transcript"
    files: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.glob("agents/*/sessions/*.jsonl*")):
        files[file.name.partition(".jsonl")[0]].append(file)
    for session_id, reason in database.execute("SELECT session_id, end_reason FROM session_ids").fetchall():
        # A file that was archived may keep its old path as a link.
        own = [file for file in files[session_id] if not file.is_symlink()]
        _check_transcript(database, session_id)
        _check_file(database, own, session_id)
        # A sub-agent's file that its report names stays to be found there, by a link.
        is_live = any(file.name == f"{session_id}.jsonl" for file in own)
        assert not (is_live and reason == "deleted"), f"the file of {session_id} was not archived"


def _check_deliveries(database: sqlite3.Connection) -> None:
    waiting = "SELECT id FROM deliveries WHERE state IN ('pending', 'sending') AND text IS NOT NULL"
    assert not database.execute(waiting).fetchall(), "deliveries that were left in line"
    for delivery_id, state in database.execute("SELECT id, state FROM deliveries").fetchall():
        parts = database.execute("SELECT state FROM delivery_parts WHERE delivery_id = ?", (delivery_id,)).fetchall()
        if state == "sent":
            assert parts and set(parts) <= {("sent",), ("dropped",)}, f"{delivery_id} is sent, its parts are {parts}"


def _check_transcript(database: sqlite3.Connection, session_id: str) -> None:
    messages = transcript(database, session_id)
    twice = [id_ for id_, count in Counter(message.id for message in messages).items() if count > 1]
    assert not twice, f"messages that are there twice: {twice}"
    waiting: list[str] = []
    for message in messages:
        if waiting:
            assert message.role is Role.TOOL_RESULT, f"{message.role} between a tool call and its result"
            assert message.tool_call_id in waiting, f"a result of another call: {message.tool_call_id}"
            waiting.remove(message.tool_call_id)
        else:
            assert message.role is not Role.TOOL_RESULT, "a result without a call"
            waiting = [call.id for call in message.tool_calls]
    assert not waiting, f"calls without a result: {waiting}"


def _check_file(database: sqlite3.Connection, files: Sequence[Path], session_id: str) -> None:
    lines = [line for file in files for line in file.read_text().splitlines()]
    written = [decode_message(line).id for line in lines]
    stored = [message.id for message in transcript(database, session_id)]
    # The file follows: after a crash it catches up with the next message of its session, never before its database.
    assert written == stored[: len(written)], f"the transcript file of {session_id} is not the transcript"
