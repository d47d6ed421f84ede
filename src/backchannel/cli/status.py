"""`backchannel status`: whether the gateway works, and how much it has to do."""

from __future__ import annotations

import typer

from backchannel.cli.errors import FAILED
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.output import age, show_facts, show_json


def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show whether the gateway works. Exits with 1 if it cannot accept messages."""
    from backchannel.cli.client import connected, find_gateway

    options = options_of(ctx)
    with connected(options) as client:
        told = {**client.call("status"), "health": client.call("health")}
    health = told["health"]
    if as_json:
        show_json(told)
    else:
        show_facts(
            {
                "gateway": f"{find_gateway(options).url} (version {told['version']})",
                "health": "ok" if health["ok"] else health["store"],
                "up for": age(told["ts"] - told["uptimeMs"], told["ts"]),
                "agents": ", ".join(
                    f"{agent} (default)" if agent == told["defaultAgentId"] else agent for agent in told["agents"]
                ),
                "model": told["model"],
                "runs": f"{told['runs']['running']} running, {told['runs']['queued']} queued",
                "connections": told["connections"],
            }
        )
    if not health["ok"]:
        raise typer.Exit(FAILED)
