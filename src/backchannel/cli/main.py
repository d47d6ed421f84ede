"""The command line `backchannel`: the table of commands, global options, help and errors.

`up`, `init`, `config`, `import`, `export` and `migrate` work on this machine. Every other command is a client of the
running gateway. Help and completion are made from `CLI_COMMANDS`. Only the command that is asked for is imported and
built, so more commands do not slow down the others. A command imports what it needs when it runs. `Commands` gives all
commands the global options, help by theme, and errors without a traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from backchannel.cli.given import spare_conversion
from backchannel.cli.options import GLOBAL_OPTIONS, Options, exit_code_of, message_of, next_step, options_of
from backchannel.cli.output import say, say_styled
from backchannel.errors import GatewayError
from backchannel.version import __version__

AFTER_EVERY_HELP = "--state, --config, --url and --json go with every command, before or after it: backchannel --help"

_MEANT = {"list": "sessions", "ls": "sessions", "start": "up", "serve": "up"}
"""Words that people try first, and the command that each means."""

START, TALK, LOOK, DECIDE, MOVE = (
    "Start it",
    "Talk to agents",
    "See what they do",
    "Decide who may do what",
    "Files, and other programs",
)


class CommandListed(TyperCommand):
    """A command as help and completion list it, and the place of the command itself."""

    def __init__(self, theme: str, place: str, help: str) -> None:
        super().__init__(None, help=help, rich_help_panel=theme)
        self.place = place

    def build(self, name: str) -> Any:
        """Import and build the command itself: a function, or a `Typer` with commands of its own."""
        module, attribute = self.place.split(".")
        found = getattr(import_module(f"backchannel.cli.commands.{module}"), attribute)
        around = typer.Typer(rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=name, rich_help_panel=self.rich_help_panel)
        else:
            around.command(name, rich_help_panel=self.rich_help_panel)(found)
        return get_group(around).commands[name]


CLI_COMMANDS = {
    "up": CommandListed(START, "up.up", "Start the gateway."),
    "init": CommandListed(START, "up.init", "Write a commented starter configuration."),
    "open": CommandListed(START, "page.open_", "Open the page in the browser, logged in."),
    "status": CommandListed(START, "status.status", "Show problems and activity."),
    "doctor": CommandListed(START, "status.doctor", "Find problems on this machine and in the gateway."),
    "chat": CommandListed(TALK, "chat.chat", "Talk to an agent."),
    "send": CommandListed(TALK, "send.send", "Send a message into a session, as an agent would."),
    "spawn": CommandListed(TALK, "spawn.spawn", "Start a sub-agent, as an agent would."),
    "watch": CommandListed(LOOK, "watch.watch", "Watch sessions, runs and deliveries until Ctrl-C."),
    "history": CommandListed(LOOK, "history.history", "Show the last messages of a session, oldest first."),
    "search": CommandListed(LOOK, "search.search", "Find what was said, in all sessions."),
    "tree": CommandListed(LOOK, "tree.tree", "Show which session spawned which, and the state of sub-agents."),
    "mcp": CommandListed(MOVE, "mcp.mcp", "Serve the session tools to an MCP client."),
    "import": CommandListed(MOVE, "import_.import_", "Import sessions from OpenClaw, Clawdbot or an export."),
    "export": CommandListed(MOVE, "export.export", "Export sessions and transcripts in OpenClaw's form."),
    "migrate": CommandListed(MOVE, "migrate.migrate", "Move everything from the SQLite file into PostgreSQL, or back."),
    "config": CommandListed(START, "config.app", "Check, show and migrate the configuration."),
    "cron": CommandListed(TALK, "cron.app", "List, add, run and remove cron jobs."),
    "sessions": CommandListed(LOOK, "sessions.app", "List, change, compact and delete sessions."),
    "runs": CommandListed(LOOK, "runs.app", "List, show, wait for, stop and retry runs."),
    "budgets": CommandListed(LOOK, "budgets.app", "Show what is spent, and begin a budget anew."),
    "slots": CommandListed(LOOK, "slots.app", "List active and waiting work, and end it."),
    "channels": CommandListed(LOOK, "channels.app", "List and test channels."),
    "deliveries": CommandListed(LOOK, "deliveries.app", "Show deliveries to chats, and retry, re-route or drop them."),
    "agents": CommandListed(DECIDE, "agents.app", "List the agents, or let a model answer for one."),
    "approvals": CommandListed(DECIDE, "approvals.app", "List tool calls that wait for an approval, and answer them."),
    "pairing": CommandListed(DECIDE, "pairing.app", "Decide which strangers may speak."),
    "policy": CommandListed(DECIDE, "policy.app", "Explain what a session may do."),
    "tokens": CommandListed(DECIDE, "tokens.app", "Create, list and revoke tokens."),
    "tools": CommandListed(MOVE, "tools.app", "List, show and call the session tools."),
    "transcripts": CommandListed(MOVE, "transcripts.app", "Rebuild transcript files."),
}
"""All commands, in the order of the reference. The text is the first sentence of the command's help."""


class _OnDemand(Mapping[str, Any]):
    """All commands by name, each imported and built when it is first asked for."""

    def __init__(self, shared: list[Any]) -> None:
        self._shared = shared
        self._built: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(CLI_COMMANDS)

    def __len__(self) -> int:
        return len(CLI_COMMANDS)

    def __contains__(self, name: object) -> bool:
        return name in CLI_COMMANDS

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._equip(CLI_COMMANDS[name].build(name))
        return self._built[name]

    def _equip(self, command: Any) -> Any:
        """Give the global options to a command and to those below it."""
        for each in (command, *_below(command)):
            spare_conversion(each)
            each.params += [_repeated(param) for param in self._shared if not _has(each, param.name)]
            each.epilog = AFTER_EVERY_HELP
        return command


class Commands(TyperGroup):
    """All commands. An expected error is printed without a traceback, with what to do about it."""

    def __init__(self, **attrs: Any) -> None:
        shared = [param for param in attrs["params"] if param.name in GLOBAL_OPTIONS]
        super().__init__(**attrs | {"commands": _OnDemand(shared)})
        spare_conversion(self)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:  # `get` would take a KeyError of a module for a command that is not there
            return None
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _MEANT and not ctx.resilient_parsing:  # completion has nobody to tell
            ctx.fail(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands under their themes."""
        limit = formatter.width - 6 - max(map(len, CLI_COMMANDS))
        themes: dict[str | None, list[tuple[str, str]]] = defaultdict(list)
        for name, listed in CLI_COMMANDS.items():
            themes[listed.rich_help_panel].append((name, listed.get_short_help_str(limit)))
        for theme, entries in themes.items():
            with formatter.section(theme):
                formatter.write_dl(entries)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a name or an option from the table, without building commands."""
        listing = copy(ctx)
        listing.command = TyperGroup(name=self.name, params=self.params, commands=dict(CLI_COMMANDS))
        return listing.command.shell_complete(listing, incomplete)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GatewayError as error:
            say_styled(message_of(error, options_of(ctx)), err=True, fg="red")
            if step := next_step(error, options_of(ctx)):
                say(step, err=True)
            raise typer.Exit(exit_code_of(error)) from None


def _below(command: Any) -> Iterator[Any]:
    """All commands of a group, and of the groups in it."""
    if isinstance(command, TyperGroup):
        for inner in command.commands.values():
            yield inner
            yield from _below(inner)


def _has(command: Any, name: str) -> bool:
    return any(param.name == name for param in command.params)


def _repeated(param: Any) -> Any:
    """Copy a global option for one command. After the command it means the same as before it."""
    again = copy(param)
    again.hidden, again.expose_value = True, False
    again.callback = _keep
    return again


def _keep(ctx: Any, param: Any, value: Any) -> None:
    if isinstance(value, Path) and param.name == "state":
        _refuse_status(ctx.command, value)
    if value:
        root = ctx.find_root()
        root.obj = replace(options_of(ctx), **{param.name: value})


def _refuse_status(command: Any, folder: Path) -> None:
    """Refuse `--state failed` and the like: the status was meant, and `--state` is the state folder."""
    from backchannel.core.delivery.delivery import DeliveryState
    from backchannel.core.runs import RunState

    if _has(command, "status") and str(folder) in {*RunState, *DeliveryState} and not folder.exists():
        raise typer.BadParameter(f"that is the state folder; to choose by status: --status {folder}")


app = typer.Typer(
    name="backchannel",
    cls=Commands,
    help="A gateway for agent sessions: start it, talk to agents, watch them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"backchannel {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    state: Annotated[
        Path | None, typer.Option(help="The state folder. [env: BACKCHANNEL_STATE_DIR; default: ~/.backchannel]")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="The configuration file. [env: BACKCHANNEL_CONFIG; default: backchannel.json5 in the state folder]"
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="The gateway to talk to. [env: BACKCHANNEL_URL; default: that of the state folder]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    ctx.obj = Options(state, config, url, as_json=as_json)


def _open_missing_streams() -> None:
    """Open closed standard streams, as after `up <&-`. Otherwise a socket would get the number 0, 1 or 2."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - to stay open


def main() -> None:
    """Run the command line."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal's encoding lacks is shown as `?`
            stream.reconfigure(errors="replace")
    app()
