"""Wake-ups between gateways on one PostgreSQL, by LISTEN and NOTIFY.

Wake-ups only make things happen sooner. A lost one, or a server without LISTEN, costs a second: each gateway also polls
the rows (`runtime/cluster/lease.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import psycopg
import structlog

from backchannel.storage.postgres.connection import Connection, describe_error
from backchannel.storage.postgres.server import Server

log = structlog.get_logger(__name__)

MOST_WAITING = 100
"""The most texts that may wait to be sent. More are dropped, and the other gateways poll."""
_PAUSE_S = 1.0
_CHANNEL = "SELECT quote_ident('backchannel ' || current_schema()), 'backchannel ' || current_schema()"

_NOTIFY = "SELECT pg_notify(%s, said) FROM unnest(%s::text[]) AS said"


class PostgresWakeups:
    """Sends texts to all gateways on a database, and hands on what they send."""

    def __init__(self, server: Server, on_text: Callable[[str], None]) -> None:
        """Begin to listen. `on_text` is called on the event loop, with an empty text if something may be missed."""
        self._server = server
        self._on_text = on_text
        self._loop = asyncio.get_running_loop()
        self._is_closing = threading.Event()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="postgres-notify")
        self._sending: Connection | None = None
        self._channel = ""
        self._waiting = 0
        self._thread = threading.Thread(target=self._listen, name="postgres-listen", daemon=True)
        self._thread.start()

    def send(self, texts: Sequence[str]) -> None:
        """Send texts without waiting. What cannot be sent is dropped."""
        if self._waiting < MOST_WAITING and not self._is_closing.is_set():
            self._waiting += 1
            self._sender.submit(self._send, texts)

    async def close(self) -> None:
        self._is_closing.set()
        await asyncio.to_thread(self._sender.shutdown)
        await asyncio.to_thread(self._thread.join)
        if self._sending is not None:
            self._sending.close()

    def _send(self, texts: Sequence[str]) -> None:
        self._waiting -= 1
        had_connection = self._sending is not None and not self._sending.closed
        for _ in range(2 if had_connection else 1):  # the server may have ended it long ago: that shows when it is used
            try:
                self._notify(texts)
                return
            except psycopg.Error as error:
                log.debug("a wake-up was not sent", error=describe_error(error))

    def _notify(self, texts: Sequence[str]) -> None:
        if self._sending is None or self._sending.closed:
            self._sending = self._server.connect()
            (_, self._channel) = self._sending.execute(_CHANNEL.encode()).fetchone() or ("", "")
        self._sending.execute(_NOTIFY.encode(), (self._channel, list(texts)))

    def _listen(self) -> None:
        while not self._is_closing.is_set():
            try:
                with closing(self._server.connect(readonly=True)) as connection:
                    (channel, _) = connection.execute(_CHANNEL.encode()).fetchone() or ("", "")
                    connection.execute(f"LISTEN {channel}".encode())
                    self._tell("")
                    while not self._is_closing.is_set():
                        for notify in connection.notifies(timeout=_PAUSE_S / 4):
                            self._tell(notify.payload)
            except psycopg.Error as error:
                log.debug("no wake-ups are heard", error=describe_error(error))
                self._is_closing.wait(_PAUSE_S)

    def _tell(self, text: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is nobody to tell
            self._loop.call_soon_threadsafe(self._on_text, text)
