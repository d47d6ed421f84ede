"""The command line: `backchannel`.

`up`, `init`, `config`, `import` and `export` work on this machine; every other command is a client of the running
gateway. What a command needs is imported when it runs, so that `--help` and completion are quick.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backchannel.cli import (
    chat,
    config,
    cron,
    deliveries,
    export,
    history,
    import_,
    init,
    mcp,
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
)
from backchannel.cli.errors import exit_code_of, next_step, told
from backchannel.cli.options import Options, options_of
from backchannel.cli.output import say, say_styled
from backchannel.errors import GatewayError
from backchannel.version import __version__

_MEANT = {"list": "sessions", "ls": "sessions", "start": "up", "serve": "up"}
"""What people try first, and which command it is here."""


class _Commands(TyperGroup):
    """All commands. An error that can be expected is told without a traceback, with what to do about it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _MEANT:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GatewayError as error:
            say_styled(told(error, options_of(ctx)), err=True, fg="red")
            if step := next_step(error, options_of(ctx)):
                say(step, err=True)
            raise typer.Exit(exit_code_of(error)) from None


app = typer.Typer(
    name="backchannel",
    cls=_Commands,
    help="A gateway for agent sessions: start it, talk to agents, look at what they do.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(up.up)
app.command()(init.init)
app.command()(chat.chat)
app.command()(send.send)
app.command()(spawn.spawn)
app.command()(sessions.sessions)
app.command()(history.history)
app.command()(tree.tree)
app.add_typer(runs.app, name="runs")
app.add_typer(deliveries.app, name="deliveries")
app.add_typer(cron.app, name="cron")
app.command()(status.status)
app.add_typer(tools.app, name="tools")
app.add_typer(policy.app, name="policy")
app.command()(mcp.mcp)
app.add_typer(tokens.app, name="tokens")
app.add_typer(transcripts.app, name="transcripts")
app.add_typer(config.app, name="config")
app.command(name="import")(import_.import_)
app.command()(export.export)


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
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    ctx.obj = Options(state, config, url)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal's encoding lacks is shown as `?`
            stream.reconfigure(errors="replace")
    app()
