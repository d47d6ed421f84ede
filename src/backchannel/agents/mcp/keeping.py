"""The life of one MCP server: started on first use, and restarted when it dies.

One task owns the connection from beginning to end. Calls come from the tasks of runs and use that connection. A start
may take `START_LIMIT_S`, which is long, because a program may have to be downloaded first. A run waits for the start at
most `_PATIENCE_S`. After a failure there is a back-off, doubled each time. It is short again once the server has stayed
up.

    starting ──► up ──► down, for a while ──► starting …
        └───────────────────▲
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, TypeAlias

import anyio
import httpx2
import mcp_types
import structlog
from mcp import Client, MCPError
from mcp.client._transport import TransportStreams
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from backchannel.agents.mcp.listing import MOST_TOOLS
from backchannel.agents.mcp.pipes import Hide, ServerEnded
from backchannel.core.contracts import Clock
from backchannel.core.supervision import Backoff
from backchannel.core.text import clean_name
from backchannel.service import SupervisedLoop
from backchannel.version import __version__

log = structlog.get_logger(__name__)

START_LIMIT_S = 60.0
_PATIENCE_S = 10.0
_BACKOFF = Backoff(0.5, 60.0, steady_s=30.0)
LIST_LIMIT_S = 30.0
MOST_PAGES = 100
CALM_S = 1.0
"""How long after a list of tools the next one is asked for, if the server says that it has changed."""
_LISTEN_AGAIN = Backoff(CALM_S, 60.0)
_ABOUT = mcp_types.Implementation(name="backchannel", version=__version__)
_SESSION_GONE = "Session terminated"
"""What the SDK makes of an HTTP session that the server does not know any more."""
_STREAM_GONE = "SSE stream "
"""How the SDK begins to say that the answer to one request over HTTP broke off; the connection goes on."""

Transport: TypeAlias = Callable[[], AbstractAsyncContextManager[TransportStreams]]
OnListed: TypeAlias = Callable[[Sequence[mcp_types.Tool]], None]
CallAnswer: TypeAlias = mcp_types.CallToolResult | mcp_types.InputRequiredResult
_answers: TypeAdapter[CallAnswer] = TypeAdapter(CallAnswer)


class ServerDown(Exception):
    """A server is down. The message says why, and when the next try is."""


class CallLost(Exception):
    """A call broke off. Its effect is unknown, unless `is_unsent`."""

    def __init__(self, message: str, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent


class SupervisedServer(SupervisedLoop):
    """A server that is kept running, and the connection to it."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        clock: Clock,
        on_listed: OnListed,
        hide: Hide,
        explain: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(name, clock, _BACKOFF, is_up=False)
        self._transport = transport
        self._on_listed = on_listed
        self._hide = hide
        self._explain = explain
        """Knows more of a failure than its exception says."""
        self._client: Client | None = None
        self._why: str | None = None
        """Why it is not up, since it last failed."""
        self._began = 0.0
        self._moved = asyncio.Event()
        """Is set, and replaced, whenever the server comes up or goes down."""
        self._listing_due = asyncio.Event()
        self._session_gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def is_up(self) -> bool:
        return self._client is not None

    @property
    def problem(self) -> str | None:
        """The reason why the server is down, and the time of the next try; None if it is up or starting."""
        if self._client is not None or self._task is None:
            return None
        if self._why is not None:
            pause_s = 0 if self.retry_at is None else self.retry_at - self._clock.monotonic()
            return f"{self._why}; it is tried again " + (f"in {pause_s:.0f} s" if pause_s >= 1 else "now")
        waited_s = self._clock.monotonic() - self._began
        return f"it has not answered in the {waited_s:.0f} s since its start" if waited_s > _PATIENCE_S else None

    @property
    def condition(self) -> str:
        """The state of the server, for a caller that misses one of its tools."""
        if self._client is not None:
            return "has no such tool"
        if (problem := self.problem) is not None:
            return f"is down: {problem}"
        return f"is still being started ({self._clock.monotonic() - self._began:.0f} s so far)"

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._is_closing = False
            self._began = self._clock.monotonic()
            self._task = asyncio.create_task(self.keep(self._attempt), name=f"mcp:{self.name}")

    async def settled(self) -> None:
        """Start the server, and wait a while until its first start succeeds or fails. Calls wait for later starts."""
        self.start()
        if self._client is None and not self.failures:
            await self._wait_for_move(self._began + _PATIENCE_S)

    async def _wait_for_move(self, until: float) -> bool:
        left_s = until - self._clock.monotonic()
        if left_s <= 0:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._moved.wait()
                return True
        return False

    def _move(self, client: Client | None, why: str | None) -> None:
        self._client, self._why = client, why
        self._moved.set()
        self._moved = asyncio.Event()

    async def close(self) -> None:
        if self._task is not None:
            self._is_closing = True
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._move(None, "the gateway is stopping")

    async def _attempt(self) -> None:
        self._began = self._clock.monotonic()
        try:
            await self._live()
        except asyncio.CancelledError:
            if self._is_closing:
                raise
            # The SDK's scopes cancel the task they are in.
            raise ServerEnded("its connection was cancelled") from None
        raise ServerEnded("it ended")

    def pause_after(self, error: Exception, pause_s: float) -> float:
        """Log why the server is down, once for each reason."""
        why = describe_failure(error, self._hide)
        if isinstance(_first(error), MCPError) and (more := self._explain()):
            why = f"{why} ({more})"
        log.debug("an MCP server failed", server=self.name, exc_info=error)
        say = log.debug if why == self._why else log.warning
        say("an MCP server is down", server=self.name, why=why, again_in_s=pause_s)
        self.fell(why)
        self._move(None, why)
        return pause_s

    async def _live(self) -> None:
        """Connect, list the tools, and follow the server until it is gone."""
        self._listing_due.clear()
        self._session_gone.clear()
        async with AsyncExitStack() as exits:
            limit = asyncio.timeout(START_LIMIT_S)
            try:
                async with limit:
                    client = Client(self._transport(), client_info=_ABOUT, message_handler=self._on_message, cache=None)
                    await exits.enter_async_context(client)
                    count = await self._list(client)
            except TimeoutError:
                if limit.expired():
                    raise ServerEnded(f"it did not answer within {START_LIMIT_S:.0f} s of its start") from None
                raise
            say = log.info if self.failures else log.debug  # the log said that it was down
            say("an MCP server is up", server=self.name, version=client.protocol_version, tools=count)
            self.recovered()
            self._move(client, None)
            await self._follow(client)

    async def _on_message(self, message: mcp_types.ServerNotification | Exception) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._listing_due.set()

    async def _list(self, client: Client) -> int:
        tools: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            if not (cursor := page.next_cursor) or len(tools) > MOST_TOOLS:
                break
        self._on_listed(tools)
        return len(tools)

    async def _follow(self, client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_session)
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                tasks.start_soon(self._listen, client)
            while True:
                await self._listing_due.wait()
                self._listing_due.clear()
                try:
                    async with asyncio.timeout(LIST_LIMIT_S):
                        await self._list(client)
                except (MCPError, ValidationError, TimeoutError) as error:
                    log.warning(
                        "the tools of an MCP server are not known anew",
                        server=self.name,
                        why=describe_failure(error, self._hide),
                    )
                await self._clock.sleep(CALM_S)

    async def _watch_session(self) -> None:
        await self._session_gone.wait()
        raise ServerEnded("it has ended the session")

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes. A server of the newer protocol reports them only to subscribers."""
        failures = 0
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._listing_due.set()
                        failures = 0
            except ListenNotSupportedError:
                return
            except (MCPError, SubscriptionLost, TimeoutError) as error:
                log.debug("an MCP server tells no changes", server=self.name, why=describe_failure(error, self._hide))
            failures += 1
            await self._clock.sleep(_LISTEN_AGAIN.pause_s(failures))
            self._listing_due.set()  # the list may have changed meanwhile

    async def call(self, tool: str, arguments: dict[str, Any], limit_s: float) -> CallAnswer:
        """Call a tool. If the caller is cancelled, or the time limit is over, the call is cancelled at the server.

        Raises: ServerDown: the call was not sent. CallLost: the connection ended during the call. MCPError: the server
        refused, or took too long. ValidationError: the answer is malformed.
        """
        client = await self._connected()
        params = mcp_types.CallToolRequestParams(name=tool, arguments=arguments)
        try:
            return await client.session.send_request(
                mcp_types.CallToolRequest(params=params),
                _answers,
                request_read_timeout_seconds=limit_s,
                progress_callback=self._on_progress,
            )
        except MCPError as error:
            if error.message.startswith(_STREAM_GONE):
                raise CallLost(clean_name(self._hide(error.message), limit=300)) from error
            if error.code == mcp_types.CONNECTION_CLOSED:
                if self._client is client:
                    await self._wait_for_move(self._clock.monotonic() + _PATIENCE_S)  # wait for the reason of the end
                raise CallLost(self._why or "the connection ended") from error
            if error.message == _SESSION_GONE:
                self._session_gone.set()
                self._move(None, "it has ended the session")
                raise CallLost("it has ended the session", is_unsent=True) from error
            raise

    async def _connected(self) -> Client:
        """Return the connection. Waits if it was just lost or is being made."""
        self.start()
        until = self._clock.monotonic() + _PATIENCE_S
        while self._client is None:
            is_hopeless = self.failures > 1 and self.retry_at is not None
            if is_hopeless or not await self._wait_for_move(until):
                raise ServerDown(self.problem or "it is being started")
        return self._client

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        told = clean_name(message or "")
        log.debug("an MCP server goes on", server=self.name, progress=progress, total=total, message=told)


def describe_failure(error: BaseException, hide: Hide) -> str:
    """Describe the first error of a group, without secrets."""
    error = _first(error)
    if isinstance(error, MCPError):
        return f"it refused: {clean_name(hide(error.message), limit=300)}"
    if isinstance(error, ServerEnded):
        return hide(str(error))
    if isinstance(error, httpx2.ConnectError):
        return "nobody answers at its address"
    if isinstance(error, ValidationError):
        return "it answered what the protocol does not know"
    return clean_name(hide(f"{type(error).__name__}: {error}"), limit=300)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
