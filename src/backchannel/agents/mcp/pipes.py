"""MCP servers that are programs: started, spoken to over pipes, and ended as a whole.

The transport of the SDK would do for a server that means well. This one does three things more. It bounds a line, so
that a server that never ends one does not fill the memory. It sends a line that is no message to the log, as it does
standard error. It ends the whole tree of processes, also when the gateway is killed (`agents/leash.py`).

Whatever a server writes, it is read in short turns. Lines that are not logged are hardly looked at, and a server that
writes them without end is read slowly.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
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
from backchannel.agents.turns import Turns
from backchannel.core.incoming_json import PIECE, IncomingJson, TooMuchJson
from backchannel.core.text import clean_name

log = structlog.get_logger(__name__)

LONGEST_MESSAGE = 16 * 1024 * 1024
LONGEST_LOGGED = 1_000
_LOGGED_BYTES = LONGEST_LOGGED * 4
LAST_LINES = 5
LAST_CHARACTERS = 600
"""What is told of the last lines of a server that has ended."""
LOGGED_AT_ONCE = 100
"""How many lines of a server are logged in `LOGGED_PER_S` seconds."""
LOGGED_PER_S = 10.0
NOISE_PAUSE_S = 0.01
"""For how long a server is not read that has just written lines which nobody reads."""
ENDS_WITHIN_S = 1.0
"""How long a server may take to end by itself when its input is closed."""
GONE_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.01
TOO_MUCH = "a message with more lists and objects in it than are read"
_ID_WITHIN = 200
_FIRST_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,')
_LAST_ID = re.compile(rb',\s*"id"\s*:\s*(\d{1,15})\s*\}\s*\Z')
"""What an answer answers: all SDKs say it first or last. Our own ids are numbers."""


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
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES)

    @property
    def last(self) -> str:
        """The last lines, which often say why a server ended."""
        text = " / ".join(map(self._shown, self._lines))
        return text if len(text) <= LAST_CHARACTERS else f"…{text[-LAST_CHARACTERS:]}"

    def _shown(self, line: bytes) -> str:
        return clean_name(self._hide(line.decode(errors="replace")), limit=LONGEST_LOGGED)

    @property
    def is_full(self) -> bool:
        """Whether lines are not logged at the moment."""
        return self._count > LOGGED_AT_ONCE and time.monotonic() - self._since <= LOGGED_PER_S

    def write(self, line: bytes, stream: str) -> None:
        if not line or line.isspace():
            return
        line = line[:_LOGGED_BYTES]
        self._lines.append(line)
        now = time.monotonic()
        if now - self._since > LOGGED_PER_S:
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= LOGGED_AT_ONCE:
            log.info("an MCP server wrote", server=self._server, stream=stream, line=self._shown(line))
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
        await asyncio.sleep(_LOOK_EVERY_S)
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
        turns, line = Turns(), _Line()
        async for chunk in self._chunks(self._process.stdout):
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                line.add(part)
                await self._hand_on(line)
                line = _Line()
                await turns.next()
            line.add(rest)
        raise ServerEnded(await self._how())

    async def _hand_on(self, line: _Line) -> None:
        message = line.message()
        if message is None:
            self._log.write(line.whole, "stdout")
        else:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._incoming.send(message)

    async def _chunks(self, output: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """Read what there is. The next chunk may be there already, so others have their turn before it."""
        while chunk := await output.read(PIECE):
            yield chunk
            await asyncio.sleep(NOISE_PAUSE_S if self._log.is_full else 0)

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
        turns, rest = Turns(), b""
        async for chunk in self._chunks(self._process.stderr):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-PIECE:]
            for line in lines:
                self._log.write(line, "stderr")
                await turns.next()
        self._log.write(rest, "stderr")
        self._errors_read.set()


class _Line:
    """A line that comes in pieces. Of one that may be a message all is kept, of any other its beginning."""

    def __init__(self) -> None:
        self._json: IncomingJson | None = None
        self._pieces: list[bytes] = []
        self._length = 0
        self._end = b""
        """If the line is too much to be decoded: how it ends, so far."""

    @property
    def whole(self) -> bytes:
        return b"".join(self._pieces)

    def add(self, piece: bytes) -> None:
        """Take the next piece.

        Raises:
            ServerEnded: the line has no end.
        """
        if not self._length and piece.lstrip().startswith(b"{"):
            self._json = IncomingJson()
        if self._end:
            self._end = (self._end + piece)[-_ID_WITHIN:]
        elif self._json is not None:
            piece = self._decodable(self._json, piece)
            self._pieces.append(piece)
        elif self._length < _LOGGED_BYTES:
            self._pieces.append(piece)
        self._length += len(piece)
        if self._length > LONGEST_MESSAGE:
            raise ServerEnded(f"it sent a message of more than {LONGEST_MESSAGE // 1024**2} MB")

    def _decodable(self, json: IncomingJson, piece: bytes) -> bytes:
        try:
            return json.take(piece)
        except TooMuchJson:
            self._pieces = [self.whole[:_ID_WITHIN]]
            self._end = piece[-_ID_WITHIN:]
            return piece[:_ID_WITHIN]

    def message(self) -> SessionMessage | None:
        """Read the line, now that it is whole; None if it is no message.

        An answer that cannot be read becomes an error, where its line tells what it answers: nobody waits in vain.

        Raises:
            ServerEnded: decoding it would hold everybody else up, and nobody knows to whom to say so.
        """
        if self._json is None:
            return None
        try:
            self._pieces.append(self._json.end())
            if self._end:
                raise TooMuchJson
            value = msgspec.json.decode(self.whole)
            return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_python(value, by_name=False))
        except TooMuchJson:
            if (refusal := self._refusal(TOO_MUCH)) is None:
                raise ServerEnded(f"it sent {TOO_MUCH}") from None
            return refusal
        except (msgspec.DecodeError, ValidationError, RecursionError):
            return self._refusal("a message that cannot be read")

    def _refusal(self, what: str) -> SessionMessage | None:
        """Answer in place of the server, if the beginning or end of its line tells to which request."""
        whole = self.whole
        asked = _FIRST_ID.match(whole[:_ID_WITHIN]) or _LAST_ID.search(self._end or whole[-_ID_WITHIN:])
        if asked is None:
            return None
        about = mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message=f"the server sent {what}")
        return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=int(asked[1]), error=about))
