"""Global options, commands as people type them, errors and exit codes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from backchannel.errors import ConfigError, GatewayError

if TYPE_CHECKING:
    from backchannel.config import Config, Locations

ListT = TypeVar("ListT", bound=Callable[..., None])
GLOBAL_OPTIONS = ("state", "config", "url", "as_json")
"""The options that go with every command, before it or after it."""

FAILED = 1
USAGE = 2
NO_GATEWAY = 3
EXIT_REFUSED = 4
DEGRADED = 5
EXIT_INTERRUPTED = 130

EXIT_CODES = {
    0: "done",
    FAILED: "failure: the gateway refused, a run failed, or the configuration has errors",
    USAGE: "the command line is wrong",
    NO_GATEWAY: "no gateway answers",
    EXIT_REFUSED: "the gateway refuses the token, or the token lacks a scope",
    DEGRADED: "`status` and `doctor`: the gateway works, but has a problem",
    EXIT_INTERRUPTED: "interrupted with Ctrl-C",
}

_REFUSALS = ("AUTH_TOKEN_MISMATCH", "scope_missing", "forbidden", "rate_limited")
_LISTED_BY = {
    "session_not_found": ("sessions", ("sessions",)),
    "run_not_found": ("runs", ("runs",)),
    "delivery_not_found": ("deliveries", ("deliveries",)),
    "token_not_found": ("tokens", ("tokens", "list")),
    "CRON_JOB_NOT_FOUND": ("jobs", ("cron",)),
    "unknown_agent": ("agents", ("agents",)),
}


def _said_anywhere(ctx: typer.Context, value: bool) -> bool:
    """True if JSON is wanted: `--json` may stand here, before the command, or after its group."""
    if value:
        ctx.find_root().obj = replace(options_of(ctx), as_json=True)
    return options_of(ctx).as_json


AsJson = Annotated[bool, typer.Option("--json", callback=_said_anywhere, help="Print JSON instead of text.")]
AlwaysJson = Annotated[bool, typer.Option("--json", hidden=True)]
"""For commands that print JSON in any case."""
Limit = Annotated[int, typer.Option("--limit", min=1, help="How many to show at most.")]


def default_list(app: typer.Typer) -> Callable[[ListT], ListT]:
    """Make a function the command `list` of a group, and what the group does without a command."""

    def register(command: ListT) -> ListT:
        @wraps(command)
        def alone(**given: Any) -> None:
            if given["ctx"].invoked_subcommand is None:
                command(**given)

        app.callback(invoke_without_command=True)(alone)
        return app.command("list")(command)

    return register


@dataclass(frozen=True, slots=True)
class Options:
    """The global options, which go with every command."""

    state: Path | None = None
    config: Path | None = None
    url: str | None = None
    as_json: bool = False

    @property
    def where(self) -> Locations:
        """The state folder and the configuration file."""
        from backchannel.config import locate

        return locate(self.state, self.config, os.environ)

    def load_config(
        self, *, host: str | None = None, port: int | None = None, reads: Collection[str] | None = None
    ) -> Config:
        """Load the configuration that these options name, or the groups of it that are read.

        Raises:
            ConfigError: something in it is wrong.
        """
        from backchannel.config import load_config

        return load_config(self.config, os.environ, state=self.state, host=host, port=port, reads=reads)

    def command(self, *words: str) -> str:
        """Write a command that can be typed as it is, with the same state folder and configuration."""
        given = {"--state": self.state, "--config": self.config, "--url": self.url}
        repeated = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        return shlex.join([*program(), *repeated, *words])

    def spell(self, text: str) -> str:
        """Write the commands that a text names in backticks so that they can be typed as they are."""
        return text.replace("`backchannel ", f"`{self.command()} ")


def options_of(ctx: typer.Context) -> Options:
    """Give the global options of the command in progress."""
    given = ctx.find_root().obj
    return given if isinstance(given, Options) else Options()


def program() -> list[str]:
    """Give the shortest words that call this program again."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return ["python", "-m", "backchannel"]
    if shutil.which(called.name) == str(called.absolute()):
        return [called.name]
    return [os.path.relpath(called) if called.is_absolute() and called.is_relative_to(Path.cwd()) else str(called)]


class CommandFailed(GatewayError):
    """A command cannot do what it was asked."""

    code = "command_failed"


def reason_of(error: GatewayError) -> str:
    """The stable code of an error, of the gateway or of this program."""
    return getattr(error, "reason", "") or error.code


def exit_code_of(error: GatewayError) -> int:
    """The code that the program ends with."""
    reason = reason_of(error)
    if reason == "no_gateway":
        return NO_GATEWAY
    return EXIT_REFUSED if reason in _REFUSALS else FAILED


def message_of(error: GatewayError, options: Options) -> str:
    """The message of an error, without the gateway's own hint where `next_step` replaces it."""
    has_next_step = reason_of(error) in _LISTED_BY and reason_of(error) != "unknown_agent"
    what, hint, _ = error.message.rpartition(" (")
    return options.spell(what if has_next_step and hint and error.message.endswith(")") else error.message)


def next_step(error: GatewayError, options: Options) -> str | None:
    """Say what to do about an error, where its message does not say so itself."""
    if isinstance(error, ConfigError):
        return f"Change it, then see with: {options.command('config', 'check')}"
    match reason_of(error):
        case "AUTH_TOKEN_MISMATCH":
            return (
                f"{_served_at(options)}The token is taken from BACKCHANNEL_TOKEN, else from the configuration, else "
                "from the file `token` in the state folder; --state names the folder that the gateway uses. An "
                "application that serves its folder has a token of its own: set BACKCHANNEL_TOKEN."
            )
        case "scope_missing":
            scope = str(error.details.get("scope", "operator.admin")).removeprefix("operator.")
            create = options.command("tokens", "create", "--scope", scope)
            return f"Make a token that has it, with the operator's own: {create}"
        case reason if reason in _LISTED_BY:
            what, words = _LISTED_BY[reason]
            return f"See the {what} with: {options.command(*words)}"
        case "unknown_method" | "PROTOCOL_MISMATCH":
            return "The gateway is of another version than this program: restart it."
    return None


def _served_at(options: Options) -> str:
    from backchannel.storage.files.folder import load_address

    address = None if options.url else load_address(options.where.state_dir)
    return f"The state folder {options.where.state_dir} is served at {address}. " if address else ""
