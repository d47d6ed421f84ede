"""Wake-ups between gateways, polled from a table where there is no NOTIFY.

Ids may come out of order: the row that was written first may be seen last. So each poll reads all recent rows by time,
and skips the ids that it knows.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

import psycopg
import structlog

from backchannel.storage.postgres.connection import Connection, describe_error
from backchannel.storage.postgres.server import Server
from backchannel.storage.postgres.wakeups import MOST_WAITING

log = structlog.get_logger(__name__)

_POLL_S = 0.25
_PAUSE_S = 1.0
LATELY_MS = 3_000
"""How long a row counts as recent. Its commit may take as long."""
_KEPT_MS = 60_000
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class PostgresPolledWakeups:
    """Writes texts for all gateways on a database, and hands on what they write."""

    def __init__(self, server: Server, on_text: Callable[[str], None]) -> None:
        """Begin to poll. `on_text` is called on the event loop, with an empty text if something may be missed."""
        self._server = server
        self._on_text = on_text
        self._loop = asyncio.get_running_loop()
        self._is_closing = threading.Event()
        self._called = threading.Event()
        self._waiting: deque[str] = deque()
        self._heard: dict[int, int] = {}
        """The ids of the texts received, each with its time."""
        self._thread = threading.Thread(target=self._follow, name="postgres-wakeups", daemon=True)
        self._thread.start()

    def send(self, texts: Sequence[str]) -> None:
        """Send texts without waiting. What cannot be sent is dropped."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.extend(texts)
            self._called.set()

    async def close(self) -> None:
        """Send the waiting texts, then stop."""
        self._is_closing.set()
        self._called.set()
        await asyncio.to_thread(self._thread.join)

    def _follow(self) -> None:
        while not self._is_closing.is_set():
            try:
                with closing(self._server.connect()) as connection:
                    self._heard = dict(_newer(connection, LATELY_MS, []))
                    self._tell("")
                    while not self._is_closing.is_set():
                        self._called.wait(_POLL_S)
                        self._called.clear()
                        self._send(connection)
                        self._hear(connection)
                    self._send(connection)
            except psycopg.Error as error:
                log.debug("no wake-ups are heard", error=describe_error(error))
                self._waiting.clear()
                self._called.wait(_PAUSE_S)

    def _send(self, connection: Connection) -> None:
        if self._waiting:
            connection.execute(f"DELETE FROM wakeups WHERE sent_at < {_NOW} - {_KEPT_MS}".encode())
        while self._waiting:
            text = self._waiting.popleft()
            connection.execute(f"INSERT INTO wakeups (sent_at, body) VALUES ({_NOW}, %s)".encode(), (text,))

    def _hear(self, connection: Connection) -> None:
        found = _newer(connection, LATELY_MS, list(self._heard))
        newest = max([sent_at for _, sent_at in found], default=0)
        for id_, sent_at in found:
            self._heard[id_] = sent_at
        self._heard = {id_: at for id_, at in self._heard.items() if at > newest - 2 * LATELY_MS}
        if found:
            ids = [id_ for id_, _ in found]
            rows = connection.execute("SELECT body FROM wakeups WHERE id = ANY(%s) ORDER BY id", (ids,)).fetchall()
            for (body,) in rows:
                self._tell(body)

    def _tell(self, text: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is nobody to tell
            self._loop.call_soon_threadsafe(self._on_text, text)


def _newer(connection: Connection, within_ms: int, known: Sequence[int]) -> list[tuple[int, int]]:
    found = connection.execute(
        f"SELECT id, sent_at FROM wakeups WHERE sent_at > {_NOW} - {within_ms} AND id <> ALL(%s)".encode(),
        (list(known),),
    )
    return [(id_, sent_at) for id_, sent_at in found.fetchall()]
