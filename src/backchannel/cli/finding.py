"""The running gateway's address: as given, or as the state folder records it.

Every command imports this module, so slow imports stand where they are used.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from backchannel.cli.options import Options
from backchannel.cli.output import say_dim
from backchannel.errors import GatewayError

if TYPE_CHECKING:
    from backchannel.config import Config

STARTING_S = 5.0
"""How long a gateway may take to listen after it locked its state folder."""
STARTING_LOOK_S = 0.05

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}  # noqa: S104 (read, not bound)


class NoGateway(GatewayError):
    """Nothing answers at the gateway's address, or it went away."""

    code = "no_gateway"
    retryable = True


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The address of a gateway, its token, and the command that starts it."""

    url: str
    token: str | None = field(repr=False)
    start: str | None = "backchannel up"
    """The command that starts the gateway. None if the address was given, since it may be anywhere."""

    @property
    def missing(self) -> NoGateway:
        help = f"Start one with: {self.start}" if self.start else "Is it running there, and is the address right?"
        return NoGateway(f"No gateway answers at {self.url}. {help}")

    @property
    def malformed(self) -> NoGateway:
        return NoGateway(
            f"{self.url!r} is not an address (expected http:// or https://, ws:// or wss://, and host:port)"
        )


def find_gateway(options: Options, *, is_patient: bool = False) -> GatewayAddress:
    """Find the gateway: at the given address, else where the state folder says that it listens.

    A gateway that has just locked the state folder may not listen yet. With `is_patient`, wait for it.

    A port that is only configured is not tried: another program may listen there by now, and would get the token.

    Raises:
        NoGateway: none runs on the state folder, and no address is given.
        ConfigError: the configuration is needed and something in it is wrong.
    """
    from backchannel.storage.files.folder import load_address

    start = Options(options.state, options.config).command("up")
    given = options.url or os.environ.get("BACKCHANNEL_URL")
    url = given
    token = os.environ.get("BACKCHANNEL_TOKEN")
    if not (url and token):
        config = options.load_config(reads=("gateway",))
        url = url or load_address(config.state_dir) or (_address_soon(config.state_dir) if is_patient else None)
        if url is None:
            raise NoGateway(_why_absent(config, start))
        token = token or config.gateway.auth.token or _load(config.state_dir / "token")
    return GatewayAddress(_websocket_url(url), token, None if given else start)


def _address_soon(state: Path) -> str | None:
    """Wait for a starting gateway to listen; None if none starts, or if it takes too long."""
    from backchannel.storage.files.folder import held_since, load_address

    is_told = False
    # The clock may have been set back since: what was taken in an hour was not taken a moment ago either.
    while (since := held_since(state)) is not None and abs(time.time() - since) < STARTING_S:
        if (url := load_address(state)) is not None:
            return url
        if not is_told:
            say_dim("The gateway is starting. Waiting for it to listen ...", err=True)
            is_told = True
        time.sleep(STARTING_LOOK_S)
    return load_address(state)


def _why_absent(config: Config, start: str) -> str:
    """Say why no gateway answers for a state folder, and what would help.

    `up` does not always help. On the folder of an application it lacks the function agents, and it is refused while
    the application runs.
    """
    from backchannel.storage.files.folder import holder_of

    folder = config.state_dir
    if holder := holder_of(folder):
        return (
            f"A program (process {holder}) uses the state folder {folder} and does not listen: no command reaches it. "
            "If it is a gateway that is still starting, try again in a moment. Otherwise let it listen: "
            "docs/how-to/embed.md, `Also listening`; or end it first."
        )
    if functions := _function_agents(config):
        names = ", ".join(functions)
        return (
            f"No gateway runs on the state folder {folder}. These agents are functions of a program: {names}. "
            "Start that program, or serve it with `backchannel up --app MODULE:NAME`. If it is gone for good, start "
            f"`backchannel up`, and then let a model answer for them: `backchannel agents forget {functions[0]}`."
        )
    return f"No gateway runs on the state folder {folder}. Start one with: {start}"


def _function_agents(config: Config) -> list[str]:
    """Name the function agents of an application, if the database can be read."""
    from backchannel.storage.databases import database_at
    from backchannel.storage.units import recovery

    try:
        database = database_at(config.database_url)
        if not database.exists():
            return []
        with database.open_reader() as reader, reader.snapshot() as tx:
            return recovery.function_agents(tx)
    except GatewayError:  # `up` reports what is wrong with it
        return []


def _load(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def local_address(url: str, token: str | None) -> GatewayAddress:
    """Give the address of a gateway for clients on this machine."""
    return GatewayAddress(_websocket_url(url), token)


def _websocket_url(text: str) -> str:
    """Read an address as people write it: `host:port`, `http://…` or `ws://…`."""
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "ws", text
    host, colon, port = rest.rstrip("/").rpartition(":")
    if host in _EVERYWHERE:  # an address to listen on, not to connect to
        rest = f"{_EVERYWHERE[host]}{colon}{port}"
    return f"{scheme.replace('http', 'ws', 1)}://{rest}".rstrip("/")
