"""`backchannel agents`: what programs have brought, and letting go of it."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli.options import AsJson, ask, options_of
from backchannel.cli.output import say, show_json

app = typer.Typer(help="Let go of an agent whose program is gone.", rich_markup_mode=None)


@app.command()
def forget(
    ctx: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id, as `status` names it.")],
    as_json: AsJson = False,
) -> None:
    """Let the configured model answer for an agent that was a function of a program."""
    options = options_of(ctx)
    forgotten = ask(options, "agents.forget", agentId=agent)
    if as_json:
        show_json(forgotten)
    else:
        say(f"The agent {forgotten['agentId']} is no function any more: its model answers what waited for it.")
