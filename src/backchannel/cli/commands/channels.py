"""`backchannel channels`: list the channels with their state, and test one."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import GatewayClient, ask, connected
from backchannel.cli.options import FAILED, AsJson, Options, default_list, options_of
from backchannel.cli.output import age, as_plain, clock_time, patience, say, show_json
from backchannel.cli.tables import RowTable, show_list
from backchannel.core.text import one_line

app = typer.Typer(help="List and test channels.", rich_markup_mode=None)

TEST_TEXT = "This is a test of Backchannel: what agents say arrives here."
RECEIPT_S = 30.0
"""How long a test waits for its receipt."""
_LOOK_AGAIN_S = 1.0


@default_list(app)
def list_channels(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the channels: state, since when, and the problem. `channels` alone does the same."""
    listed = ask(options_of(ctx), "channels.list", answers.ChannelsListed)
    show_list(listed, _TABLE.of(listed.channels), as_json=as_json)


_TABLE: RowTable[answers.ChannelShown] = RowTable(
    {
        "name": lambda channel: channel.name,
        "adapter": lambda channel: channel.adapter,
        "state": lambda channel: state_word(channel),
        "for": lambda channel: age(channel.since),
        "account": lambda channel: ", ".join(channel.accounts or ()),
        "waiting": lambda channel: channel.waiting,
        "failed": lambda channel: channel.failed,
        "uncertain": lambda channel: channel.uncertain,
        "last error": lambda channel: _last_error(channel),
    },
    empty="There are no channels.",
    spare=("adapter", "uncertain", "failed", "account"),
)


def state_word(channel: answers.ChannelState) -> str:
    return "up" if channel.status == "ok" else channel.status


def _last_error(channel: answers.ChannelState) -> str:
    """Show the last error. Of an error that is over, show its time too."""
    error = one_line(channel.last_error or "", 120)
    is_over = channel.status != "down" and channel.last_error_at is not None
    return f"{error} ({age(channel.last_error_at)} ago)" if error and is_over else error


@app.command()
def test(
    ctx: typer.Context,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="CHAT", help="Also send a test message to this chat.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the platform which account this is. With --to, send a test message. Exits with 1 on failure."""
    options = options_of(ctx)
    with connected(options) as client:
        result = client.call("channels.test", answers.ChannelTested, name=channel)
        receipt = _send(client, channel, to) if to is not None and result.status != "failed" else None
    if as_json:
        show_json(as_plain(result) | ({} if receipt is None else {"delivery": receipt}))
    else:
        _show(options, result, receipt)
    if not (result.status == "ok" if receipt is None else receipt.state == "sent"):
        raise typer.Exit(FAILED)


def _send(client: GatewayClient, channel: str, to: str) -> answers.ReceiptRow:
    """Send an ordinary message, and wait for its receipt."""
    client.call("sessions.subscribe", answers.EventsSubscribed)  # events say when it is worth looking
    receipt = client.call("send", answers.ReceiptRow, channel=channel, to=to, message=TEST_TEXT)
    deadline = time.monotonic() + RECEIPT_S
    with patience("waiting for the receipt"):
        while receipt.state in ("pending", "sending") and time.monotonic() < deadline:
            list(client.events(_LOOK_AGAIN_S))
            receipt = client.call("deliveries.get", answers.ReceiptRow, id=receipt.id)
    return receipt


def _show(options: Options, result: answers.ChannelTested, receipt: answers.ReceiptRow | None) -> None:
    if result.status == "untested" and receipt is None:
        say(f"{result.name} can only be tried by sending: ", end="")
        say(options.command("channels", "test", result.name, "--to", "CHAT"))
        return
    if result.status != "untested":
        say(f"{result.name}: {'' if result.status == 'ok' else 'failed: '}{result.detail}")
    if receipt is not None:
        reason = f": {receipt.error}" if receipt.error else ""
        later = f" (tried again at {clock_time(receipt.due_at)})" if receipt.due_at is not None else ""
        say(f"delivery {receipt.id} to {receipt.to} is {receipt.state}{reason}{later}")
