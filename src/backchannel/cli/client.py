"""A client of the running gateway: finds it, connects, asks, and hears its events.

Requests are answered by id. Events that come while an answer is waited for are kept, in order, for whoever asks next.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from backchannel.cli.absence import say_why
from backchannel.cli.options import Options
from backchannel.cli.output import patience
from backchannel.core.hosts import is_local_url
from backchannel.errors import GatewayError
from backchannel.storage.address import load_address
from backchannel.version import __version__

Payload: TypeAlias = dict[str, Any]
PROTOCOL_VERSION = 4
NULL = msgspec.Raw(b"null")
"""A parameter that takes something away."""
OPEN_S = 10.0
ANSWER_S = 60.0
ASKED_AT_ONCE = 100
"""Questions under way at a time; the gateway takes 256 of one connection."""
MAX_FRAME_BYTES = 64 * 1024 * 1024

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}  # noqa: S104 (read, not bound)


class NoGateway(GatewayError):
    """Nothing answers at the gateway's address, or it went away."""

    code = "no_gateway"
    retryable = True


class CallFailed(GatewayError):
    """The gateway refused a request; `reason` is its stable word for why."""

    def __init__(self, error: Payload) -> None:
        super().__init__(str(error.get("message", "the gateway gave no reason")))
        self.details = dict(error.get("details") or {})
        self.reason = str(self.details.get("code", ""))
        self.is_retryable = bool(error.get("retryable"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gateway is, how to get in, and how to start it if it is not there."""

    url: str
    token: str | None = field(repr=False)
    start: str = "backchannel up"

    @property
    def missing(self) -> NoGateway:
        return NoGateway(f"No gateway answers at {self.url}. Start one with: {self.start}")


def find_gateway(options: Options) -> Place:
    """Tell where the gateway is: as given, else where that of the state folder says it listens.

    A port that is only configured is not asked: somebody else may listen there by now, and would get the token.

    Raises:
        NoGateway: none runs on the state folder, and no address is given.
        ConfigError: the configuration is needed and something in it is wrong.
    """
    start = Options(options.state, options.config).command("up")
    url = options.url or os.environ.get("BACKCHANNEL_URL")
    token = os.environ.get("BACKCHANNEL_TOKEN")
    if not (url and token):
        config = options.load_config()
        url = url or load_address(config.state_dir)
        if url is None:
            raise NoGateway(say_why(config, start))
        token = token or config.gateway.auth.token or _load(config.state_dir / "token")
    return Place(_websocket_url(url), token, start)


def _load(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _websocket_url(text: str) -> str:
    """Read an address as people write it: `host:port`, `http://…` or `ws://…`."""
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "ws", text
    host, colon, port = rest.rstrip("/").rpartition(":")
    if host in _EVERYWHERE:  # one listens on this address, and connects to another
        rest = f"{_EVERYWHERE[host]}{colon}{port}"
    return f"{scheme.replace('http', 'ws', 1)}://{rest}".rstrip("/")


class Client:
    """One connection to a gateway."""

    def __init__(self, socket: ClientConnection) -> None:
        self.hello: Payload = {}
        self._socket = socket
        self._exits = ExitStack()
        self._count = 0
        self._events: deque[Payload] = deque()
        self._answers: dict[str, Payload] = {}

    @classmethod
    def connect(cls, place: Place) -> Self:
        """Connect and log in.

        Raises:
            NoGateway: nothing answers there.
            CallFailed: the gateway did not let this client in.
        """
        with ExitStack() as exits:
            client = cls(exits.enter_context(_open(place)))
            client.hello = client.call(
                "connect",
                minProtocol=PROTOCOL_VERSION,
                maxProtocol=PROTOCOL_VERSION,
                client={"id": "cli", "version": __version__, "platform": platform.system().lower(), "mode": "cli"},
                role="operator",
                auth={"token": place.token} if place.token else None,
            )
            client._exits = exits.pop_all()
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._exits.close()

    def call(self, method: str, **params: Any) -> Payload:
        """Ask, and return the answer; parameters that are None are left out, and those that are NULL are null.

        Raises:
            CallFailed: the gateway refused.
            NoGateway: it went away, or does not answer.
        """
        with patience(f"waiting for the gateway ({method})"):
            return self.wait(self.ask(method, **params), ANSWER_S)

    def call_each(self, method: str, each: Sequence[Payload]) -> list[Payload]:
        """Ask the same with many parameters, without waiting for one answer before the next question.

        Raises:
            CallFailed: the gateway refused one of them.
            NoGateway: it went away, or does not answer.
        """
        answers: list[Payload] = []
        with patience(f"waiting for the gateway ({method})"):
            for start in range(0, len(each), ASKED_AT_ONCE):
                requests = [self.ask(method, **params) for params in each[start : start + ASKED_AT_ONCE]]
                answers += [self.wait(request, ANSWER_S) for request in requests]
        return answers

    def wait(self, request: str, timeout_s: float | None = None) -> Payload:
        """Wait for the answer to a request, for as long as it takes unless told otherwise.

        Raises:
            CallFailed: the gateway refused.
            NoGateway: it went away, or does not answer in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (answer := self.answer(request)) is None:
            if not self._read(None if deadline is None else deadline - time.monotonic()):
                raise NoGateway(f"The gateway did not answer within {timeout_s:g} s.")
        return answer

    def ask(self, method: str, **params: Any) -> str:
        """Send a request and return its id, for `answer`."""
        self._count += 1
        given = {name: value for name, value in params.items() if value is not None}
        frame = {"type": "req", "id": str(self._count), "method": method, "params": given}
        with _told_when_gone():
            self._socket.send(msgspec.json.encode(frame).decode())
        return str(self._count)

    def answer(self, request: str) -> Payload | None:
        """The answer to a request, if it has come.

        Raises:
            CallFailed: the gateway refused.
        """
        frame = self._answers.pop(request, None)
        if frame is None:
            return None
        if not frame["ok"]:
            raise CallFailed(frame["error"])
        payload: Payload = frame["payload"]
        return payload

    def events(self, wait_s: float | None = None) -> Iterator[Payload]:
        """Give the events that have come, waiting for one frame if there are none.

        Raises:
            NoGateway: the gateway went away.
        """
        if not self._events:
            self._read(wait_s)
        while self._events:
            yield self._events.popleft()

    def _read(self, wait_s: float | None) -> bool:
        """Take one frame; False means that none came in time."""
        with _told_when_gone():
            try:
                frame = msgspec.json.decode(self._socket.recv(wait_s))
            except TimeoutError:
                return False
        if frame["type"] == "event":
            self._events.append(frame)
        else:
            self._answers[str(frame["id"])] = frame
        return True


@contextmanager
def _open(place: Place) -> Iterator[ClientConnection]:
    try:
        is_local = is_local_url(place.url)
        opened = connect(
            place.url,
            compression=None,
            max_size=MAX_FRAME_BYTES,
            max_queue=None,
            open_timeout=OPEN_S,
            close_timeout=1,
            proxy=None if is_local else True,
        )
    except InvalidStatus as refused:
        status = refused.response.status_code
        raise NoGateway(f"What answers at {place.url} is no gateway, or refuses its clients (HTTP {status}).") from None
    except (OSError, InvalidHandshake, EOFError):
        raise place.missing from None
    except (InvalidURI, ValueError):
        raise NoGateway(f"{place.url!r} is not an address (expected ws://host:port or http://host:port)") from None
    with opened as socket:
        yield socket


@contextmanager
def _told_when_gone() -> Iterator[None]:
    try:
        yield
    except (ConnectionClosed, ConnectionError, EOFError) as error:
        raise NoGateway("The gateway closed the connection.") from error


@contextmanager
def connected(options: Options) -> Iterator[Client]:
    """Connect to the gateway for the length of a command."""
    with Client.connect(find_gateway(options)) as client:
        yield client
