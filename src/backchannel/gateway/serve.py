"""Serving until told to stop.

A first SIGINT, SIGTERM or SIGHUP stops gracefully: clients are told, running steps are left for the next start, the
database is closed. A second one ends the process at once, which loses nothing either: the next start goes on as after
a crash. A database that can no longer be trusted ends it at once as well.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog

from backchannel.config.schema_doors import GatewaySettings
from backchannel.errors import StartupError
from backchannel.gateway import descriptors
from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import OperatorToken, check_bind, load_operator_token
from backchannel.gateway.server import Listening, cannot_listen, listening
from backchannel.storage.folder import StateFolder

log = structlog.get_logger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_REQUEST_S = 0.5
"""Signals this close together are one request: a terminal and a parent process often send it both."""


async def serve(gateway: Gateway, on_ready: Callable[[Listening, OperatorToken], None]) -> None:
    """Serve a gateway until a signal comes; `on_ready` is called when clients can connect.

    Raises:
        StartupError: it cannot start: the folder, the database or the address cannot be used.
    """
    descriptors.raise_limit()
    with _stop_signals() as stop:
        check_start(gateway)
        async with gateway, _listening(gateway) as (place, token):
            on_ready(place, token)
            _freeze()
            await _until_stopped(gateway, stop)


def _freeze() -> None:
    """Take what the start has made out of the garbage collection.

    It lives as long as the process. Looking through all of it again and again holds the loop, and with it every client,
    for a tenth of a second each time.
    """
    gc.freeze()  # without a collection first, which would hold the loop itself


def check_start(gateway: Gateway) -> None:
    """Find out whether the folder and the address are free, before anything is begun that would be broken off.

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
async def _listening(gateway: Gateway) -> AsyncIterator[tuple[Listening, OperatorToken]]:
    state_dir = gateway.config.state_dir
    token = load_operator_token(state_dir, gateway.config.gateway.auth.token)
    try:
        async with listening(gateway, token.token) as place:
            yield place, token
    except StartupError:
        if token.is_new:
            (state_dir / "token").unlink(missing_ok=True)  # nobody has seen it, so the next start makes and shows one
        raise


@contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    first_at = 0.0

    def heard(number: int) -> None:
        nonlocal first_at
        if not stop.is_set():
            log.info("stopping", signal=signal.Signals(number).name)
            first_at = loop.time()
            stop.set()
        elif loop.time() - first_at > ONE_REQUEST_S:
            log.warning("stopping at once")
            leave_at_once(128 + number)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, heard, number)
    try:
        yield stop
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _until_stopped(gateway: Gateway, stop: asyncio.Event) -> None:
    if gateway.failed is not None:
        # Whatever else would be answered could be untrue.
        gateway.failed.add_done_callback(lambda failed: leave_at_once(1))
    await stop.wait()


def leave_at_once(code: int) -> None:
    """End the process without another word to anyone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
