"""The command line: `backchannel`.

`up`, `init`, `config`, `import` and `export` work on this machine; every other command is a client of the running
gateway. What a command needs is imported when it runs, so that `--help` and completion are quick.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from backchannel.cli import (
    agents,
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
from backchannel.cli.commands import Commands
from backchannel.cli.options import Options
from backchannel.version import __version__

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
app.command(rich_help_panel=START)(init.init)
app.command(rich_help_panel=START)(status.status)
app.add_typer(config.app, name="config", rich_help_panel=START)
app.command(rich_help_panel=TALK)(chat.chat)
app.command(rich_help_panel=TALK)(send.send)
app.command(rich_help_panel=TALK)(spawn.spawn)
app.add_typer(cron.app, name="cron", rich_help_panel=TALK)
app.add_typer(sessions.app, name="sessions", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(history.history)
app.command(rich_help_panel=LOOK)(tree.tree)
app.add_typer(runs.app, name="runs", rich_help_panel=LOOK)
app.add_typer(deliveries.app, name="deliveries", rich_help_panel=LOOK)
app.add_typer(agents.app, name="agents", rich_help_panel=DECIDE)
app.add_typer(policy.app, name="policy", rich_help_panel=DECIDE)
app.add_typer(tokens.app, name="tokens", rich_help_panel=DECIDE)
app.add_typer(tools.app, name="tools", rich_help_panel=MOVE)
app.command(rich_help_panel=MOVE)(mcp.mcp)
app.command(name="import", rich_help_panel=MOVE)(import_.import_)
app.command(rich_help_panel=MOVE)(export.export)
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
