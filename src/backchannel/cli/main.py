"""The command line: `backchannel`.

`up`, `init`, `config`, `import`, `export` and `migrate` work on this machine; every other command is a client of the
running gateway. What a command needs is imported when it runs, so that `--help` and completion are quick. `Commands`
gives all of them the global options, before and after each, help by theme, and errors without a traceback.
"""

from __future__ import annotations

import io
import sys
from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backchannel.cli import (
    agents,
    approvals,
    channels,
    chat,
    config,
    cron,
    deliveries,
    export,
    history,
    import_,
    mcp,
    migrate,
    page,
    pairing,
    policy,
    runs,
    send,
    sessions,
    spawn,
    status,
    tokens,
    tools,
    transcripts,
    tree,
    up,
    watch,
)
from backchannel.cli.options import GLOBAL_OPTIONS, Options, exit_code_of, message_of, next_step, options_of
from backchannel.cli.output import say, say_styled
from backchannel.errors import GatewayError
from backchannel.version import __version__

AFTER_EVERY_HELP = "--state, --config, --url and --json go with every command, before or after it: backchannel --help"

_MEANT = {"list": "sessions", "ls": "sessions", "start": "up", "serve": "up"}
"""What people try first, and which command it is here."""


class Commands(TyperGroup):
    """All commands. An expected error is printed without a traceback, with what to do about it."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        shared = [param for param in self.params if param.name in GLOBAL_OPTIONS]
        for command in _below(self):
            command.params += [_repeated(param) for param in shared if not _has(command, param.name)]
            command.epilog = AFTER_EVERY_HELP

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _MEANT:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands under their themes."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        themes: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, command in self.commands.items():
            themes[getattr(command, "rich_help_panel", "")].append((name, command.get_short_help_str(limit)))
        for theme, entries in themes.items():
            with formatter.section(theme):
                formatter.write_dl(entries)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GatewayError as error:
            say_styled(message_of(error, options_of(ctx)), err=True, fg="red")
            if step := next_step(error, options_of(ctx)):
                say(step, err=True)
            raise typer.Exit(exit_code_of(error)) from None


def _below(group: TyperGroup) -> Iterator[Any]:
    """All commands of a group, and of the groups in it."""
    for command in group.commands.values():
        yield command
        if isinstance(command, TyperGroup):
            yield from _below(command)


def _has(command: Any, name: str) -> bool:
    return any(param.name == name for param in command.params)


def _repeated(param: Any) -> Any:
    """Copy a global option for one command; given there, it counts as if it stood before the command."""
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
    """Refuse `--state failed` and the like: `--state` is the state folder, and the status of a run was meant."""
    from backchannel.core.delivery import DeliveryState
    from backchannel.core.runs import RunState

    if _has(command, "status") and str(folder) in {*RunState, *DeliveryState} and not folder.exists():
        raise typer.BadParameter(f"that is the state folder; to choose by status: --status {folder}")


app = typer.Typer(
    name="backchannel",
    cls=Commands,
    help="A gateway for agent sessions: start it, talk to agents, look at what they do.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

START, TALK, LOOK, DECIDE, MOVE = (
    "Start it",
    "Talk to agents",
    "See what they do",
    "Decide who may do what",
    "Files, and other programs",
)

app.command(rich_help_panel=START)(up.up)
app.command(rich_help_panel=START)(up.init)
app.command(name="open", rich_help_panel=START)(page.open_)
app.command(rich_help_panel=START)(status.status)
app.command(rich_help_panel=START)(status.doctor)
app.add_typer(config.app, name="config", rich_help_panel=START)
app.command(rich_help_panel=TALK)(chat.chat)
app.command(rich_help_panel=TALK)(send.send)
app.command(rich_help_panel=TALK)(spawn.spawn)
app.add_typer(cron.app, name="cron", rich_help_panel=TALK)
app.command(rich_help_panel=LOOK)(watch.watch)
app.add_typer(sessions.app, name="sessions", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(history.history)
app.command(rich_help_panel=LOOK)(tree.tree)
app.add_typer(runs.app, name="runs", rich_help_panel=LOOK)
app.add_typer(channels.app, name="channels", rich_help_panel=LOOK)
app.add_typer(deliveries.app, name="deliveries", rich_help_panel=LOOK)
app.add_typer(agents.app, name="agents", rich_help_panel=DECIDE)
app.add_typer(approvals.app, name="approvals", rich_help_panel=DECIDE)
app.add_typer(pairing.app, name="pairing", rich_help_panel=DECIDE)
app.add_typer(policy.app, name="policy", rich_help_panel=DECIDE)
app.add_typer(tokens.app, name="tokens", rich_help_panel=DECIDE)
app.add_typer(tools.app, name="tools", rich_help_panel=MOVE)
app.command(rich_help_panel=MOVE)(mcp.mcp)
app.command(name="import", rich_help_panel=MOVE)(import_.import_)
app.command(rich_help_panel=MOVE)(export.export)
app.command(rich_help_panel=MOVE)(migrate.migrate)
app.add_typer(transcripts.app, name="transcripts", rich_help_panel=MOVE)


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


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal's encoding lacks is shown as `?`
            stream.reconfigure(errors="replace")
    app()
