"""`backchannel status`: whether the gateway works, what is wrong, and how much it has to do."""

from __future__ import annotations

from typing import Any

import typer

from backchannel.cli.channels import state_word
from backchannel.cli.client import connected, find_gateway
from backchannel.cli.options import DEGRADED, FAILED, AsJson, Options, options_of
from backchannel.cli.output import age, counted, one_line, say, say_styled, show_facts, show_json, show_table

_COLOURS = {"degraded": "yellow", "unavailable": "red"}


def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show what is wrong and what runs. Exits with 1 if no message can be accepted, with 5 if it is degraded."""
    options = options_of(ctx)
    with connected(options) as client:
        state = {**client.call("status"), "health": client.call("health")}
    if as_json:
        show_json(state)
    else:
        _show(options, state)
    if not state["health"]["ok"]:
        raise typer.Exit(FAILED)
    if state["status"] != "ok":
        raise typer.Exit(DEGRADED)


def _show(options: Options, state: dict[str, Any]) -> None:
    runs, deliveries = state["runs"], state["deliveries"]
    show_facts(
        {
            "gateway": f"{find_gateway(options).url} (version {state['version']})",
            "health": state["status"],
            "up for": age(state["ts"] - state["uptimeMs"], state["ts"]),
            "agents": ", ".join(
                f"{agent} (default)" if agent == state["defaultAgentId"] else agent for agent in state["agents"]
            ),
            "model": state["model"],
            "runs": f"{runs['running']} running, {runs['queued']} queued, {runs['failed']} failed in 24 hours",
            "channels": "\n".join(_channel(channel, state["ts"]) for channel in state["channels"]),
            "deliveries": ", ".join(f"{deliveries[state]} {state}" for state in ("waiting", "failed", "uncertain")),
            "approvals": f"{state['approvals']['pending']} waiting (backchannel approvals)"
            if state["approvals"]["pending"]
            else None,
            "strangers": f"{state['pairings']['pending']} waiting to be let in (backchannel pairing)"
            if state["pairings"]["pending"]
            else None,
            "connections": state["connections"],
        }
    )
    if state["problems"]:
        say()
        say_styled(f"{counted(len(state['problems']), 'problem')}:", fg=_COLOURS[state["status"]])
        problems = [
            [found["code"], options.spell(f"{found['message']} {found['hint']}")] for found in state["problems"]
        ]
        show_table(["problem", "what is wrong, and what to do"], problems, empty="")


def _channel(channel: dict[str, Any], now_ms: int) -> str:
    error = f": {one_line(channel['lastError'], 120)}" if channel["status"] == "down" and "lastError" in channel else ""
    return f"{channel['name']} {state_word(channel)} for {age(channel['since'], now_ms)}{error}"
