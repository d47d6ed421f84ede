"""A client of the running gateway: connects, makes requests, and receives its events.

Requests are answered by id. Events that arrive before an answer are kept, in order, for the next call of `events`.
`Link` is a connection for commands that outlive a restart of the gateway: it reconnects.

Every command imports this module, so what is slow to import is imported where it is used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from backchannel.cli import answers
from backchannel.cli.finding import GatewayAddress, NoGateway, find_gateway
from backchannel.cli.options import Options
from backchannel.cli.output import patience
from backchannel.core.supervision import Backoff
from backchannel.errors import GatewayError
from backchannel.version import PROTOCOL_VERSION, __version__

if TYPE_CHECKING:
    from msgspec import Raw
    from websockets.sync.client import ClientConnection


T = TypeVar("T")
Payload: TypeAlias = dict[str, Any]
NULL: Final = object()
"""A parameter that is sent as null, which clears what is stored; one that is None is left out."""
OPEN_S = 10.0
ANSWER_S = 60.0
MAX_FRAME_BYTES = 64 * 1024 * 1024
RECONNECT = Backoff(0.2, 3.0)
"""The back-off between attempts to reconnect."""


class Unreadable(GatewayError):
    """An answer of the gateway has another shape than this version knows."""

    code = "unreadable_answer"


class CallFailed(GatewayError):
    """The gateway refused a request; `reason` is its stable code."""

    def __init__(self, error: Payload) -> None:
        super().__init__(str(error.get("message", "the gateway gave no reason")))
        self.details = dict(error.get("details") or {})
        self.reason = str(self.details.get("code", ""))
        self.is_retryable = bool(error.get("retryable"))


class GatewayClient:
    """One connection to a gateway."""

    def __init__(self, socket: ClientConnection, url: str) -> None:
        self.url = url
        self._socket = socket
        self._exits = ExitStack()
        self._count = 0
        self._events: deque[Payload] = deque()
        self._answers: dict[str, answers.ReceivedFrame] = {}
        self._defaults: answers.SessionDefaults | None = None

    @property
    def defaults(self) -> answers.SessionDefaults:
        """The default agent and its main session."""
        assert self._defaults is not None, "it is connected"
        return self._defaults

    @classmethod
    def connect(cls, address: GatewayAddress) -> Self:
        """Connect and log in.

        Raises:
            NoGateway: nothing answers there.
            CallFailed: the gateway did not let this client in.
        """
        import platform

        with ExitStack() as exits:
            client = cls(exits.enter_context(_open(address)), address.url)
            hello = client.call(
                "connect",
                answers.Hello,
                minProtocol=PROTOCOL_VERSION,
                maxProtocol=PROTOCOL_VERSION,
                client={"id": "cli", "version": __version__, "platform": platform.system().lower(), "mode": "cli"},
                role="operator",
                auth={"token": address.token} if address.token else None,
            )
            client._defaults = hello.snapshot.session_defaults
            client._exits = exits.pop_all()
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._exits.close()

    def call(self, method: str, shape: type[T], /, **params: Any) -> T:
        """Ask, and return the answer; parameters that are None are left out, and those that are NULL are null.

        Raises:
            CallFailed: the gateway refused.
            NoGateway: it went away, or does not answer.
            Unreadable: the answer has another shape.
        """
        with patience(f"waiting for the gateway ({method})"):
            return self.wait(self.ask(method, **params), shape, ANSWER_S)

    def wait(self, request: str, shape: type[T], timeout_s: float | None = None) -> T:
        """Wait for the answer to a request, without a time limit unless one is given.

        Raises:
            CallFailed: the gateway refused.
            NoGateway: it went away, or does not answer in time.
            Unreadable: the answer has another shape.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (answer := self.answer(request, shape)) is None:
            if not self._read(None if deadline is None else deadline - time.monotonic()):
                raise NoGateway(f"The gateway did not answer within {timeout_s:g} s.")
        return answer

    def ask(self, method: str, /, **params: Any) -> str:
        """Send a request and return its id, for `answer`."""
        import msgspec

        self._count += 1
        given = {name: None if value is NULL else value for name, value in params.items() if value is not None}
        frame = {"type": "req", "id": str(self._count), "method": method, "params": given}
        with _closed_as_no_gateway():
            self._socket.send(msgspec.json.encode(frame).decode())
        return str(self._count)

    def answer(self, request: str, shape: type[T]) -> T | None:
        """The answer to a request, if it has come.

        Raises:
            CallFailed: the gateway refused.
            Unreadable: the answer has another shape.
        """
        frame = self._answers.pop(request, None)
        if frame is None:
            return None
        if not frame.ok:
            raise CallFailed(frame.error or {})
        return decode(frame.payload, shape)

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
        with _closed_as_no_gateway():
            try:
                received = self._socket.recv(wait_s)
            except TimeoutError:
                return False
        frame = decode(received, answers.ReceivedFrame)
        if frame.type == "event":
            payload = decode(frame.payload, dict[str, Any])
            self._events.append({"event": frame.event, "seq": frame.seq, "payload": payload})
        elif frame.id is not None:
            self._answers[frame.id] = frame
        return True


def decode(body: str | bytes | Raw, shape: type[T]) -> T:
    """Read JSON of the gateway as its type.

    Raises:
        Unreadable: it has another shape.
    """
    import msgspec

    with _told_if_unreadable():
        return msgspec.json.decode(body, type=shape)


def convert(value: object, shape: type[T]) -> T:
    """Give plain values of an event or a result their type.

    Raises:
        Unreadable: they have another shape.
    """
    import msgspec

    with _told_if_unreadable():
        return msgspec.convert(value, shape)


@contextmanager
def _told_if_unreadable() -> Iterator[None]:
    import msgspec

    try:
        yield
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(f"the gateway's answer cannot be read: {error} (is it of another version?)") from error


@contextmanager
def _open(address: GatewayAddress) -> Iterator[ClientConnection]:
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
    from websockets.sync.client import connect

    from backchannel.core.hosts import is_local_url

    try:
        is_local = is_local_url(address.url)
        opened = connect(
            address.url,
            compression=None,
            max_size=MAX_FRAME_BYTES,
            max_queue=None,
            open_timeout=OPEN_S,
            close_timeout=1,
            proxy=None if is_local else True,
        )
    except InvalidStatus as refused:
        status = refused.response.status_code
        raise NoGateway(
            f"What answers at {address.url} is no gateway, or refuses its clients (HTTP {status})."
        ) from None
    except (OSError, InvalidHandshake, EOFError):
        raise address.missing from None
    except (InvalidURI, ValueError):
        raise address.malformed from None
    with opened as socket:
        yield socket


@contextmanager
def _closed_as_no_gateway() -> Iterator[None]:
    from websockets.exceptions import ConnectionClosed

    try:
        yield
    except (ConnectionClosed, ConnectionError, EOFError) as error:
        raise NoGateway("The gateway closed the connection.") from error


@contextmanager
def connected(options: Options) -> Iterator[GatewayClient]:
    """Connect to the gateway for the length of a command."""
    with GatewayClient.connect(find_gateway(options, is_patient=True)) as client:
        yield client


def ask(options: Options, method: str, shape: type[T], /, **params: Any) -> T:
    """Connect to the gateway for a single request."""
    with connected(options) as client:
        return client.call(method, shape, **params)


class Link:
    """One connection, which is made again when it is lost.

    Without a gateway at the start, that is an error. Later a `Link` waits: for a lost gateway to come back, and for
    a gateway whose database is away, with the connection kept.
    """

    def __init__(
        self, options: Options, on_change: Callable[[str], None], pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._options = options
        self._on_change = on_change
        self._pause = pause
        self._client: GatewayClient | None = None
        self._is_known = False
        self._next_try = 0.0
        self._refusals = 0
        """How often the gateway refused in a row."""
        """How long the next request waits, after one that was refused for now."""

    def __enter__(self) -> Self:
        self.client()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def is_waiting(self) -> bool:
        """True while the gateway is away, or cannot do what it was asked."""
        return self._client is None or self._refusals > 0

    def client(self) -> GatewayClient:
        """Give the connection. Wait for a lost gateway, or until it may be asked again.

        Raises:
            NoGateway: there was none from the start.
            CallFailed: it does not let this client in.
        """
        if self._client is None:
            self._client = self._reconnect() if self._is_known else self._connect()
            self._is_known, self._next_try = True, 0.0
        elif self._refusals:
            self._pause(RECONNECT.pause_s(self._refusals))
        return self._client

    def _connect(self) -> GatewayClient:
        return GatewayClient.connect(find_gateway(self._options, is_patient=True))

    def ask(self, request: Callable[[GatewayClient], T]) -> T:
        """Make a request, and repeat it whenever the gateway goes away before it answers.

        Raises:
            CallFailed: the gateway is there and refuses.
        """
        while True:
            client = self.client()
            try:
                answer = request(client)
            except NoGateway:
                self.lose()
            except CallFailed as refused:
                self.hold_off(refused)
            else:
                self.worked()
                return answer

    def hold_off(self, refused: CallFailed) -> None:
        """Delay the next request after a refusal that may pass. The problem is shown once.

        Raises:
            CallFailed: it will not pass.
        """
        if not refused.is_retryable:
            raise refused
        if refused.reason == "shutting_down":
            self.lose()  # the gateway gets the time that reconnecting takes
            return
        if not self._refusals:
            self._on_change(f"The gateway cannot do this now: {refused.message}. Waiting (Ctrl-C stops waiting) ...")
        self._refusals += 1

    def worked(self) -> None:
        """Say once that requests are answered again, after some were refused."""
        if self._refusals:
            self._refusals = 0
            self._on_change("It works again.")

    def at_hand(self) -> GatewayClient | None:
        """Give the connection without waiting or printing; None while the gateway is away or left alone."""
        if time.monotonic() < self._next_try:
            return None
        if self._client is None:
            self.leave_alone()
            with suppress(NoGateway, CallFailed):  # the next request reports it
                self._client = GatewayClient.connect(find_gateway(self._options))
                self._next_try = 0.0
        return self._client

    def leave_alone(self) -> None:
        """Let `at_hand` give nothing for a moment: the gateway is away, or has trouble."""
        self._next_try = time.monotonic() + RECONNECT.longest_s

    def lose(self) -> None:
        """Give the connection up; the next use makes a new one."""
        if self._client is not None:
            lost, self._client = self._client, None
            lost.close()

    def _reconnect(self) -> GatewayClient:
        self._on_change("The gateway went away. Waiting for it to come back (Ctrl-C stops waiting) ...")
        tries = 0
        while True:
            tries += 1
            self._pause(RECONNECT.pause_s(tries))
            try:
                client = GatewayClient.connect(find_gateway(self._options))
            except NoGateway:
                continue
            except CallFailed as refused:
                if not refused.is_retryable:
                    raise
                continue
            self._on_change("It is back.")
            return client
