"""`backchannel agents`: list the agents, and forget a function agent whose program is gone."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.options import AsJson, default_list, options_of
from backchannel.cli.output import say_or_json
from backchannel.cli.tables import RowTable, show_list

app = typer.Typer(help="List the agents, or let a model answer for one.", rich_markup_mode=None)

FUNCTION = "(a function of a program)"


@default_list(app)
def list_agents(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the agents, the default one first. `agents` alone does the same."""
    listed = ask(options_of(ctx), "agents.list", answers.AgentsListed)
    table: RowTable[answers.AgentShown] = RowTable(
        {
            "id": lambda agent: f"{agent.id} (default)" if agent.id == listed.default_id else agent.id,
            "name": lambda agent: agent.name,
            "model": lambda agent: agent.model.primary if agent.model else FUNCTION,
            "thinking": lambda agent: agent.thinking_default,
        },
        empty="There are no agents.",
    )
    show_list(listed, table.of(listed.agents), as_json=as_json)


@app.command()
def forget(
    ctx: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id, as `agents` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Let the configured model answer for an agent whose program is gone."""
    options = options_of(ctx)
    forgotten = ask(options, "agents.forget", answers.AgentForgotten, agentId=agent)
    text = f"The agent {forgotten.agent_id} is no longer a function: its model now answers, also what has waited."
    say_or_json(text, forgotten, as_json=as_json)
