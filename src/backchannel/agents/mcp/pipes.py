"""A server that is a program: started, spoken to over its standard input and output, and ended with all it has started.

The transport of the SDK would do the same for a server that means well. This one bounds a line, so that a server that
never ends one does not fill the memory; takes a line that is no message for what it is, a line for the log, where
standard error goes too; and ends the whole tree of processes, also when the gateway is killed (`agents/leash.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import anyio
import mcp_types
import msgspec
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from backchannel.agents.mcp.mending import MendingStream
from backchannel.agents.programs import Program, leashed
from backchannel.core.text import clean_name

log = structlog.get_logger(__name__)

LONGEST_MESSAGE = 16 * 1024 * 1024
MOST_PARTS = 100_000
"""How many objects one message may have: reading each takes its time."""
LONGEST_LOGGED = 1_000
LAST_LINES = 5
LAST_CHARACTERS = 600
"""What is told of the last lines of a server that has ended."""
LOGGED_AT_ONCE = 100
"""How many lines of a server are logged in `LOGGED_PER_S` seconds."""
LOGGED_PER_S = 10.0
ENDS_WITHIN_S = 1.0
"""How long a server may take to end by itself when its input is closed."""
GONE_WITHIN_S = 5.0
LOOK_EVERY_S = 0.01
_CHUNK = 64 * 1024


Hide: TypeAlias = Callable[[str], str]
"""Takes secrets out of what a server said, before any of it is cut off: half of one would not be known."""


class ServerEnded(Exception):
    """A server is gone; the message says how."""


class ServerLog:
    """The lines that a server writes beside its messages, into our log, so many at a time."""

    def __init__(self, server: str, hide: Hide) -> None:
        self._server = server
        self._hide = hide
        self._since = 0.0
        self._count = 0
        self._lines: deque[str] = deque(maxlen=LAST_LINES)

    @property
    def last(self) -> str:
        """The last lines, which often say why a server ended."""
        text = " / ".join(self._lines)
        return text if len(text) <= LAST_CHARACTERS else f"…{text[-LAST_CHARACTERS:]}"

    def write(self, line: bytes, stream: str) -> None:
        if not line.strip():
            return
        shown = clean_name(self._hide(line[: LONGEST_LOGGED * 4].decode(errors="replace")), limit=LONGEST_LOGGED)
        self._lines.append(shown)
        now = asyncio.get_running_loop().time()
        if now - self._since > LOGGED_PER_S:
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= LOGGED_AT_ONCE:
            log.info("an MCP server wrote", server=self._server, stream=stream, line=shown)
        elif self._count == LOGGED_AT_ONCE + 1:
            log.warning("an MCP server writes more lines than are logged", server=self._server, for_s=LOGGED_PER_S)


@asynccontextmanager
async def program_transport(program: Program, server: str, hide: Hide) -> AsyncIterator[TransportStreams]:
    """Start a server and speak to it while the context is open; nothing of it is left afterwards.

    What it writes beside its messages is shown without what `hide` takes out.

    Raises:
        ServerEnded: it could not be started, or has ended.
    """
    wrapped = leashed(program)
    try:
        process = await asyncio.create_subprocess_exec(
            *wrapped.argv,
            cwd=wrapped.cwd,
            env=wrapped.env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        raise ServerEnded(f"it could not be started: {error}") from error
    pipes = _Pipes(process, ServerLog(server, hide))
    try:
        async with anyio.create_task_group() as tasks:
            for work in (pipes.read_messages, pipes.write_messages, pipes.read_errors):
                tasks.start_soon(work)
            try:
                yield MendingStream(pipes.received), pipes.to_send
            finally:
                tasks.cancel_scope.cancel()
    finally:
        pipes.close()
        with anyio.CancelScope(shield=True):
            await _end(process)
            _close_pipes(process)


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes of a process that is gone; asyncio leaves those open that nobody has read to the end."""
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, and if that does not end it, have all of it ended by the leash."""
    if process.stdin is not None:
        process.stdin.close()
    for limit_s, number in ((ENDS_WITHIN_S, signal.SIGTERM), (GONE_WITHIN_S, signal.SIGKILL)):
        if await _has_ended(process, limit_s):
            return
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
    if not await _has_ended(process, GONE_WITHIN_S):
        log.error("an MCP server could not be ended", pid=process.pid)


async def _has_ended(process: asyncio.subprocess.Process, limit_s: float) -> bool:
    """Look whether it has: asyncio's own wait lasts until its pipes are read to the end, too."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit_s
    while process.returncode is None and loop.time() < until:  # noqa: ASYNC110  # there is no event of it alone
        await asyncio.sleep(LOOK_EVERY_S)
    return process.returncode is not None


class _Pipes:
    """The three pipes of a server, and the streams of messages that the SDK reads and writes."""

    def __init__(self, process: asyncio.subprocess.Process, server_log: ServerLog) -> None:
        self._process = process
        self._log = server_log
        self._incoming: MemoryObjectSendStream[SessionMessage | Exception]
        self._outgoing: MemoryObjectReceiveStream[SessionMessage]
        self._incoming, self.received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._errors_read = asyncio.Event()
        self.to_send, self._outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    def close(self) -> None:
        for stream in (self._incoming, self.received, self.to_send, self._outgoing):
            stream.close()

    async def read_messages(self) -> None:
        """Hand on each message; when there are no more, the server has ended, whether it still runs or not."""
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            message = _message(line)
            if message is None:
                self._log.write(line, "stdout")
            else:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._incoming.send(message)
        raise ServerEnded(await self._how())

    async def _how(self) -> str:
        if not await _has_ended(self._process, ENDS_WITHIN_S):
            return "it closed its output"
        with anyio.move_on_after(ENDS_WITHIN_S):  # what it wrote last may still be in the pipe
            await self._errors_read.wait()
        code = self._process.returncode
        how = f"of signal {-code}" if code is not None and code < 0 else f"with code {code}"
        return f"it ended {how}" + (f" and last wrote: {self._log.last}" if self._log.last else "")

    async def write_messages(self) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError, RuntimeError):  # it is gone: the end of its output says how
            async for message in self._outgoing:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()

    async def read_errors(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while chunk := await self._process.stderr.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_CHUNK:]
            for line in lines:
                self._log.write(line, "stderr")
        self._log.write(rest, "stderr")
        self._errors_read.set()


async def _lines(output: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Read lines; the pieces of a long one are joined once.

    Raises:
        ServerEnded: a line has no end.
    """
    pieces: list[bytes] = []
    length = 0
    while chunk := await output.read(_CHUNK):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            yield b"".join((*pieces, part))
            pieces, length = [], 0
        pieces.append(rest)
        length += len(rest)
        if length > LONGEST_MESSAGE:
            raise ServerEnded(f"it sent a message of more than {LONGEST_MESSAGE // 1024**2} MB")


def _message(line: bytes) -> SessionMessage | None:
    """Read a message; None if the line is none.

    Raises:
        ServerEnded: reading it would hold everybody else up.
    """
    if not line.lstrip().startswith(b"{"):
        return None
    if line.count(b"{") > MOST_PARTS:
        raise ServerEnded(f"it sent a message of more than {MOST_PARTS:,} parts")
    try:
        value = msgspec.json.decode(line)
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_python(value, by_name=False))
    except (msgspec.DecodeError, ValidationError, RecursionError):
        return None
