"""A connection that comes back: what a command uses that outlives a restart of the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from backchannel.cli.client import CallFailed, Client, NoGateway, find_gateway
from backchannel.cli.options import Options

T = TypeVar("T")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0


class Link:
    """Holds one connection, and makes a new one when the old one is lost.

    The first connection is not waited for: a gateway that never ran is an error, one that went away comes back.
    """

    def __init__(self, options: Options, on_change: Callable[[str], None]) -> None:
        self._options = options
        self._on_change = on_change
        self._client: Client | None = None
        self._is_known = False
        self._next_try = 0.0

    def __enter__(self) -> Self:
        self.client()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def is_lost(self) -> bool:
        return self._client is None

    def client(self) -> Client:
        """Give the connection, waiting for the gateway to come back if it went away.

        Raises:
            NoGateway: there was none from the start.
            CallFailed: it does not let this client in.
        """
        if self._client is None:
            self._client = self._reconnect() if self._is_known else Client.connect(find_gateway(self._options))
            self._is_known = True
        return self._client

    def ask(self, question: Callable[[Client], T]) -> T:
        """Put a question, and put it again each time that the gateway went away before it had answered.

        Raises:
            CallFailed: the gateway is there and refuses.
        """
        while True:
            client = self.client()
            try:
                return question(client)
            except NoGateway:
                self.lose()
            except CallFailed as refused:
                if not refused.is_retryable:
                    raise
                self.lose()  # coming back takes a moment, and that is what it needs

    def at_hand(self) -> Client | None:
        """Give the connection, without a word and without waiting; None while the gateway is away."""
        if self._client is None and time.monotonic() >= self._next_try:
            self._next_try = time.monotonic() + LONGEST_PAUSE_S
            with suppress(NoGateway, CallFailed):  # whoever has something to say to the gateway is told why not
                self._client = Client.connect(find_gateway(self._options))
        return self._client

    def lose(self) -> None:
        """Give the connection up; the next use makes a new one."""
        if self._client is not None:
            lost, self._client = self._client, None
            lost.close()

    def _reconnect(self) -> Client:
        self._on_change("The gateway went away. Waiting for it to come back (Ctrl-C stops waiting) ...")
        pause_s = FIRST_PAUSE_S
        while True:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            try:
                client = Client.connect(find_gateway(self._options))
            except NoGateway:
                continue
            except CallFailed as refused:
                if not refused.is_retryable:
                    raise
                continue
            self._on_change("It is back.")
            return client
