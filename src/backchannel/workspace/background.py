"""Background commands, and the tool `process` that shows and stops them.

They belong to the session that started them and end with the gateway. Each has a record in the state folder, written
before it starts. After a restart, a record without an end belongs to a command that ended with the gateway.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from backchannel.agents.gates import CallSlot, Gate
from backchannel.core.contracts import Clock, ToolContext
from backchannel.core.stored import StoredForm
from backchannel.core.text import cut, one_line, quoted, storable_text
from backchannel.errors import InvalidRequest
from backchannel.storage.ids import new_id
from backchannel.workspace.commands import COMMAND_SHOWN, RunningProgram, ShellCommands, describe_exit
from backchannel.workspace.output import Output

log = structlog.get_logger(__name__)

MOST_AT_ONCE, MOST_OF_SESSION = 64, 8
"""How many may run at the same time, in all and of one session."""
MOST_RECORDS = 256
_COMMAND_KEPT = 2000


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a background command after a restart."""

    id: str
    session_key: str
    command: str
    started_at: int
    end: str | None = None
    """How it ended, in words; None also if the gateway stopped first."""


_STORED: StoredForm[ProcessRecord] = StoredForm(ProcessRecord)


class _Live:
    def __init__(self, record: ProcessRecord, running: RunningProgram, output: Output, slot: CallSlot) -> None:
        self.record = record
        self.running = running
        self.output = output
        self.slot = slot
        self.is_ended_by_operator = False
        self.watch: asyncio.Task[None] | None = None


class Background:
    """The background commands of all sessions."""

    def __init__(self, commands: ShellCommands, gate: Gate, folder: Path, clock: Clock) -> None:
        self._commands = commands
        self._gate = gate
        self._folder = folder
        self._clock = clock
        self._live: dict[str, _Live] = {}
        """Those of this life of the gateway, also ended ones."""

    async def start(self, context: ToolContext, command: str, limit_s: float) -> str:
        """Start a command and return its id.

        Raises:
            InvalidRequest: too many run already, or it cannot be started.
        """
        record = ProcessRecord(
            id=new_id(),
            session_key=context.session_key,
            command=cut(storable_text(command), _COMMAND_KEPT),
            started_at=self._clock.now_ms(),
        )
        slot = self._take_slot(context, record)
        try:
            await self._start(context, command, record, limit_s, slot)
        except BaseException:  # also when it is cancelled: nobody else gives the slot back
            slot.give_back()
            raise
        return record.id

    async def _start(
        self, context: ToolContext, command: str, record: ProcessRecord, limit_s: float, slot: CallSlot
    ) -> None:
        output = self._commands.output(context)
        try:
            await asyncio.to_thread(self._store, record)
            running = await self._commands.start(context, command, output)
        except BaseException:  # also when its run is stopped: no record is left of what never ran
            await asyncio.to_thread(self._forget, record.id)
            raise
        live = self._live[record.id] = _Live(record, running, output, slot)
        live.watch = asyncio.create_task(self._watch(live, limit_s))

    def _take_slot(self, context: ToolContext, record: ProcessRecord) -> CallSlot:
        """Take a slot.

        Raises:
            InvalidRequest: there is none for this session.
        """
        agent, session = context.agent_id, context.session_key
        what = one_line(record.command, COMMAND_SHOWN)
        slot = self._gate.take_now(agent, session, what, context.run_id, partial(self._end, record.id))
        if slot is None:
            raise InvalidRequest(self._why_no_slot(agent, session))
        return slot

    def _why_no_slot(self, agent: str, session: str) -> str:
        """Say what is in the way, and what the session itself can do about it."""
        own = self._gate.shares.held_in(session)
        if self._gate.shares.is_full(session):
            return (
                f"too many commands run in the background: {own} of this session, which may have no more. "
                "End one with process, action `kill`, or wait until one has ended"
            )
        all = self._gate.shares.held_by(agent)
        may_end = f"End one of this session's {own} with process, action `kill`" if own else "This session has none"
        return (
            f"too many commands run in the background: {all} of this agent, which may have no more now. {may_end}; "
            "each ends by its time limit at the latest. Try again later, or run it without `background`"
        )

    async def _watch(self, live: _Live, limit_s: float) -> None:
        """See a command to its end, give its slot back, and write down how it ended."""
        try:
            end = await self._ended(live, limit_s)
        finally:
            live.slot.give_back()
        live.output.close()
        live.record = msgspec.structs.replace(live.record, end=end)
        await asyncio.to_thread(self._store, live.record)
        self._drop_old()

    async def _ended(self, live: _Live, limit_s: float) -> str:
        began = time.monotonic()
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                code = await live.running.ended()
        except TimeoutError:
            await live.running.stop()
            return f"stopped after {limit_s:g} s, its time limit"
        how = "ended by the operator" if live.is_ended_by_operator else describe_exit(code)
        return f"{how} after {time.monotonic() - began:.1f} s"

    def _drop_old(self) -> None:
        ended = [id for id, live in self._live.items() if live.record.end is not None]
        for id in ended[: max(len(ended) - MOST_RECORDS, 0)]:
            del self._live[id]

    async def listed(self, session_key: str) -> str:
        """List the background commands of a session, newest last."""
        lines = [self._line(record) for record in await self._records(session_key)]
        return "\n".join(lines) or "[no command was started in the background]"

    async def poll(self, session_key: str, id: str) -> str:
        """Say how a command is doing, and what it has written since it was last asked about.

        Raises:
            InvalidRequest: the session has no such command.
        """
        record = await self._record(session_key, id)
        live = self._live.get(id)
        text = "" if live is None else live.output.take_new()
        gap = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{gap}[{self._state(record)}]"

    async def kill(self, session_key: str, id: str) -> str:
        """End a command and all that it started.

        Raises:
            InvalidRequest: the session has no such command.
        """
        record = await self._record(session_key, id)
        live = self._live.get(id)
        if live is None or record.end is not None:
            return f"[it had ended before: {self._state(record)}]"
        await self._stop(live)
        return f"[killed: {one_line(record.command, COMMAND_SHOWN)}]"

    async def _stop(self, live: _Live) -> None:
        await live.running.stop()
        if live.watch is not None:
            with suppress(asyncio.CancelledError):
                await live.watch

    async def _end(self, id: str) -> bool:
        """End a command on behalf of the operator; its session is told so when it asks."""
        live = self._live.get(id)
        if live is None:  # it is being started
            return False
        live.is_ended_by_operator = True
        await self._stop(live)
        return True

    async def end_session(self, session_key: str) -> None:
        """End what runs for a session that is deleted."""
        theirs = [live for live in self._live.values() if live.record.session_key == session_key]
        await asyncio.gather(*(self._stop(live) for live in theirs if live.record.end is None))

    async def close(self) -> None:
        """End everything; the records say that the gateway stopped first."""
        lives, self._live = list(self._live.values()), {}
        for live in lives:
            if live.watch is not None:
                live.watch.cancel()
        await asyncio.gather(*(live.watch for live in lives if live.watch is not None), return_exceptions=True)
        await asyncio.gather(*(live.running.stop() for live in lives if not live.running.has_ended))
        for live in lives:
            live.output.close()
            live.slot.give_back()

    async def _record(self, session_key: str, id: str) -> ProcessRecord:
        for record in await self._records(session_key):
            if record.id == id:
                return record
        raise InvalidRequest(
            f"id: no background command of this session has the id {quoted(id, 64)}; `list` names them"
        )

    async def _records(self, session_key: str) -> list[ProcessRecord]:
        stored = await asyncio.to_thread(lambda: list(self._load()))
        known = {record.id: record for record in stored} | {id: live.record for id, live in self._live.items()}
        return sorted(
            (record for record in known.values() if record.session_key == session_key), key=lambda record: record.id
        )

    def _state(self, record: ProcessRecord) -> str:
        if record.end is not None:
            return record.end
        return "running" if record.id in self._live else "it ended when the gateway stopped"

    def _line(self, record: ProcessRecord) -> str:
        return f"{record.id}  {self._state(record)}  {one_line(record.command, COMMAND_SHOWN)}"

    def _store(self, record: ProcessRecord) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._folder / f"{record.id}.tmp"
        beside.write_bytes(_STORED.encode(record))
        beside.replace(self._folder / f"{record.id}.json")
        for old in sorted(self._folder.glob("*.json"))[:-MOST_RECORDS]:
            if old.stem not in self._live:
                old.unlink(missing_ok=True)

    def _forget(self, id: str) -> None:
        (self._folder / f"{id}.json").unlink(missing_ok=True)

    def _load(self) -> Iterator[ProcessRecord]:
        for path in sorted(self._folder.glob("*.json"))[-MOST_RECORDS:]:
            try:
                yield _STORED.read(path.read_bytes())
            except (OSError, msgspec.DecodeError) as error:
                log.warning("the record of a background command cannot be read", file=os.fspath(path), error=str(error))
