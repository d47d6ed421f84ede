"""`backchannel channels`: whether each channel works, and trying one."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from backchannel.cli.client import GatewayClient, ask, connected
from backchannel.cli.options import FAILED, AsJson, Options, options_of
from backchannel.cli.output import age, clock_time, one_line, patience, say, show_json, show_table

app = typer.Typer(help="List the channels, and try one.", rich_markup_mode=None)

TEST_TEXT = "This is a test of Backchannel: what agents say arrives here."
RECEIPT_S = 30.0
"""How long the receipt of a test is waited for."""
_LOOK_AGAIN_S = 1.0


@app.callback(invoke_without_command=True)
@app.command("list")
def list_channels(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the channels: whether each is up, since when, and what is wrong. `channels` alone does the same."""
    if ctx.invoked_subcommand is not None:
        return
    listed = ask(options_of(ctx), "channels.list")
    if as_json:
        show_json(listed)
        return
    rows = [
        [
            channel["name"],
            channel["adapter"],
            state_word(channel),
            age(channel.get("since")),
            ", ".join(channel.get("accounts", ())),
            channel["waiting"],
            channel["failed"],
            channel["uncertain"],
            _last_error(channel),
        ]
        for channel in listed["channels"]
    ]
    columns = ["name", "adapter", "state", "for", "account", "waiting", "failed", "uncertain", "last error"]
    show_table(columns, rows, empty="There are no channels.", spare=("adapter", "uncertain", "failed", "account"))


def state_word(channel: dict[str, Any]) -> str:
    return "up" if channel["status"] == "ok" else str(channel["status"])


def _last_error(channel: dict[str, Any]) -> str:
    """Tell what went wrong last, and of what is over when that was."""
    error = one_line(channel.get("lastError", ""), 120)
    is_over = channel["status"] != "down" and "lastErrorAt" in channel
    return f"{error} ({age(channel['lastErrorAt'])} ago)" if error and is_over else error


@app.command()
def test(
    ctx: typer.Context,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")],
    to: Annotated[str | None, typer.Option("--to", metavar="CHAT", help="Also send a line to this chat.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask its platform who we are, and with --to send a line. Exits with 1 if that fails."""
    options = options_of(ctx)
    with connected(options) as client:
        result = client.call("channels.test", name=channel)
        if to is not None and result["status"] != "failed":
            result["delivery"] = _send(client, channel, to)
    if as_json:
        show_json(result)
    else:
        _show(options, result)
    works = result["delivery"]["state"] == "sent" if "delivery" in result else result["status"] == "ok"
    if not works:
        raise typer.Exit(FAILED)


def _send(client: GatewayClient, channel: str, to: str) -> dict[str, Any]:
    """Send a line like any other, and wait for what becomes of it."""
    client.call("sessions.subscribe")  # events say when it is worth looking
    receipt = client.call("send", channel=channel, to=to, message=TEST_TEXT)
    deadline = time.monotonic() + RECEIPT_S
    with patience("waiting for the receipt"):
        while receipt["state"] in ("pending", "sending") and time.monotonic() < deadline:
            list(client.events(_LOOK_AGAIN_S))
            receipt = client.call("deliveries.get", id=receipt["id"])
    return receipt


def _show(options: Options, result: dict[str, Any]) -> None:
    if result["status"] == "untested" and "delivery" not in result:
        say(f"{result['name']} can only be tried by sending: ", end="")
        say(options.command("channels", "test", result["name"], "--to", "CHAT"))
        return
    if result["status"] != "untested":
        say(f"{result['name']}: {'' if result['status'] == 'ok' else 'failed: '}{result['detail']}")
    if (delivery := result.get("delivery")) is not None:
        reason = f": {delivery['error']}" if "error" in delivery else ""
        later = f" (tried again at {clock_time(delivery['dueAt'])})" if "dueAt" in delivery else ""
        say(f"delivery {delivery['id']} to {delivery['to']} is {delivery['state']}{reason}{later}")
