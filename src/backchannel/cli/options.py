"""What the whole command line shares: the global options, and how a command is written for people to type."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from backchannel.cli.client import Payload
    from backchannel.config import Config, Locations

GLOBAL_OPTIONS = ("state", "config", "url", "as_json")
"""The options that go with every command, before it or after it."""


def _said_anywhere(ctx: typer.Context, value: bool) -> bool:
    """Whether JSON is wanted, be that said here, before the command, or between a group and its command."""
    if value:
        ctx.find_root().obj = replace(options_of(ctx), as_json=True)
    return options_of(ctx).as_json


AsJson = Annotated[bool, typer.Option("--json", callback=_said_anywhere, help="Print JSON instead of text.")]
AlwaysJson = Annotated[bool, typer.Option("--json", hidden=True)]
"""For commands that print JSON in any case."""
Limit = Annotated[int, typer.Option("--limit", min=1, help="How many at most.")]


@dataclass(frozen=True, slots=True)
class Options:
    """What goes with every command."""

    state: Path | None = None
    config: Path | None = None
    url: str | None = None
    as_json: bool = False

    @property
    def where(self) -> Locations:
        """The state folder and the configuration file."""
        from backchannel.config import locate

        return locate(self.state, self.config, os.environ)

    def load_config(self, *, host: str | None = None, port: int | None = None) -> Config:
        """Load the configuration that these options name.

        Raises:
            ConfigError: something in it is wrong.
        """
        from backchannel.config import load_config

        return load_config(self.config, os.environ, state=self.state, host=host, port=port)

    def command(self, *words: str) -> str:
        """Write a command that can be typed as it is, with the same state folder and configuration."""
        given = {"--state": self.state, "--config": self.config, "--url": self.url}
        repeated = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        return shlex.join([*program(), *repeated, *words])

    def spell(self, text: str) -> str:
        """Write the commands that a text names in backticks so that they can be typed as they are."""
        return text.replace("`backchannel ", f"`{self.command()} ")


def options_of(ctx: typer.Context) -> Options:
    """The global options of the command in progress."""
    given = ctx.find_root().obj
    return given if isinstance(given, Options) else Options()


def ask(options: Options, method: str, /, **params: Any) -> Payload:
    """Connect to the gateway for a single question."""
    from backchannel.cli.client import connected

    with connected(options) as client:
        return client.call(method, **params)


def program() -> list[str]:
    """How this program was called, as short as it can be typed again."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return ["python", "-m", "backchannel"]
    if shutil.which(called.name) == str(called.absolute()):
        return [called.name]
    return [os.path.relpath(called) if called.is_absolute() and called.is_relative_to(Path.cwd()) else str(called)]
