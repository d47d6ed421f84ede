"""The server: the web application on a socket under uvicorn, and its stop by signals.

A first SIGINT, SIGTERM or SIGHUP stops gracefully: clients are notified, running steps are left for the next start, the
database is closed. A second one ends the process at once; the next start recovers as after a crash. A database that can
no longer be trusted ends it at once too.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn

from backchannel.agents.loading import freeze_start
from backchannel.config.schema_doors import GatewaySettings
from backchannel.errors import StartupError
from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import OperatorToken, check_bind, load_operator_token
from backchannel.gateway.http import Web
from backchannel.gateway.ws.connections import Limits
from backchannel.gateway.ws.peers import Acceptor, raise_descriptor_limit
from backchannel.gateway.ws.transport import HttpProtocol, WebSocketProtocol
from backchannel.storage.files.folder import AddressFile, StateFolder

log = structlog.get_logger(__name__)

_GRACE_S = 3
"""The time clients have to leave when the gateway stops."""
_LOOK_S = 0.005
"""The pause between two checks for clients. Uvicorn checks ten times a second, and waits even without clients."""


@dataclass(frozen=True, slots=True)
class ListeningServer:
    """A listening gateway: its address and its application."""

    host: str
    port: int
    web: Web

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def websocket_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/ws"


@asynccontextmanager
async def listening(
    gateway: Gateway, operator_token: str, *, limits: Limits | None = None
) -> AsyncIterator[ListeningServer]:
    """Serve a gateway at its configured host and port, and write its address for local commands.

    Leaving notifies all clients and closes their connections.

    Raises:
        StartupError: the address is taken, cannot be used, or needs a token of one's own.
    """
    settings = gateway.config.gateway
    check_bind(settings)
    web = Web(gateway.parts, operator_token, limits)
    bound = _bind(settings.host, settings.port)
    server = _Server(_configure(web), web)
    serving = asyncio.create_task(server.serve(sockets=[bound]), name="http server")
    try:
        await server.wait_started(serving)
        place = ListeningServer(settings.host, bound.getsockname()[1], web)
        with _address_file(gateway.config.state_dir, place.url):
            yield place
    finally:
        server.stop()
        await serving


@contextmanager
def _address_file(state: Path, url: str) -> Iterator[None]:
    """Write the gateway's address to a file while it listens. Without it, local clients need `--url`."""
    try:
        address = AddressFile.hold(state, url)
    except OSError as error:
        log.warning("the address file is not written: clients need --url", folder=str(state), error=str(error))
        yield
        return
    try:
        yield
    finally:
        address.release()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
        bound.listen(2048)
        return bound
    except OSError as error:
        bound.close()
        raise cannot_listen(host, port, error) from error


def cannot_listen(host: str, port: int, error: OSError) -> StartupError:
    """Say why an address cannot be used, and what would work."""
    if error.errno == errno.EADDRINUSE:
        return StartupError(
            f"cannot listen on {host} port {port}: something else does (stop it, or choose another port with --port)"
        )
    why = os.strerror(error.errno) if error.errno else str(error)
    return StartupError(f"cannot listen on {host} port {port}: {why} (choose another with --host or --port)")


def _configure(web: Web) -> uvicorn.Config:
    return uvicorn.Config(
        web,
        lifespan="on",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=web.limits.frame_bytes,
        ws_per_message_deflate=False,
        log_config=None,
        log_level="warning",  # its access log would show queries, where a careless client may put a token
        access_log=False,
        proxy_headers=False,  # any program on this machine could write them, and take another address for each guess
        server_header=False,
        date_header=False,
    )


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers, its timers and its unbounded accepting."""

    def __init__(self, config: uvicorn.Config, web: Web) -> None:
        super().__init__(config)
        self._web = web
        self._is_started = asyncio.Event()
        self._stop = asyncio.Event()
        self._accepting: list[asyncio.Task[None]] = []

    def stop(self) -> None:
        self._stop.set()

    async def wait_started(self, serving: asyncio.Task[None]) -> None:
        started = asyncio.create_task(self._is_started.wait())
        await asyncio.wait({started, serving}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if serving.done():
            await serving
            raise StartupError("the web server ended before it had started")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for bound in sockets or ():
            acceptor = Acceptor(bound, self._web.peers, self._make_protocol)
            self._accepting.append(asyncio.create_task(acceptor.run(), name="accept"))
        self._is_started.set()

    def _make_protocol(self) -> HttpProtocol:
        return HttpProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def main_loop(self) -> None:
        await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for accepting in self._accepting:
            accepting.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await self._web.close("the gateway stops; what it has accepted goes on at its next start")
        for bound in sockets or ():
            bound.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._wait_left()
        await self.lifespan.shutdown()

    async def _wait_left(self) -> None:
        """Wait until the last client is gone; after `_GRACE_S` the remaining requests are cancelled."""
        try:
            async with asyncio.timeout(_GRACE_S):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            log.warning("requests are cancelled: the gateway stops", requests=len(self.server_state.tasks))
            for task in list(self.server_state.tasks):
                task.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # `serve`, or the embedding program, decides what a signal does


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_REQUEST_S = 0.5
"""Signals this close together count as one: a terminal and a parent process often both send it."""


async def serve(gateway: Gateway, on_ready: Callable[[ListeningServer, OperatorToken], None]) -> None:
    """Serve a gateway until a signal comes; `on_ready` is called when clients can connect.

    Raises:
        StartupError: it cannot start: the folder, the database or the address cannot be used.
    """
    raise_descriptor_limit()
    with _stop_signals() as stop:
        check_start(gateway)
        async with gateway, _listening(gateway) as (place, token):
            on_ready(place, token)
            freeze_start()
            await _until_stopped(gateway, stop)


def check_start(gateway: Gateway) -> None:
    """Check that the folder and the address are free before anything begins.

    Raises:
        StartupError: they are not.
    """
    check_bind(gateway.config.gateway)
    folder = StateFolder.hold(gateway.config.state_dir)  # first: who holds it says more than the port in use
    try:
        _check_address(gateway.config.gateway)
    finally:
        folder.release()


def _check_address(settings: GatewaySettings) -> None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host.strip("[]"), settings.port), family=family).close()
    except OSError as error:
        raise cannot_listen(settings.host, settings.port, error) from error


@asynccontextmanager
async def _listening(gateway: Gateway) -> AsyncIterator[tuple[ListeningServer, OperatorToken]]:
    state_dir = gateway.config.state_dir
    token = load_operator_token(state_dir, gateway.config.gateway.auth.token)
    try:
        async with listening(gateway, token.token) as place:
            yield place, token
    except StartupError:
        if token.is_new:
            (state_dir / "token").unlink(missing_ok=True)  # it was never shown, so the next start makes and shows one
        raise


@contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    first_at = 0.0

    def on_signal(number: int) -> None:
        nonlocal first_at
        if not stop.is_set():
            first_at = loop.time()
            stop.set()
            log.info("stopping", signal=signal.Signals(number).name)
        elif loop.time() - first_at > ONE_REQUEST_S:
            log.warning("stopping at once")
            exit_now(128 + number)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _until_stopped(gateway: Gateway, stop: asyncio.Event) -> None:
    if gateway.failed is not None:
        # Whatever else would be answered could be untrue.
        gateway.failed.add_done_callback(lambda failed: exit_now(1))
    await stop.wait()


def exit_now(code: int) -> None:
    """End the process without a clean shutdown."""
    with suppress(OSError):  # whoever read it may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
