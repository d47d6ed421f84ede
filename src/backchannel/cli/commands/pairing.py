"""`backchannel pairing`: list the strangers who wait, and decide who may speak."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.options import AsJson, Limit, default_list, options_of
from backchannel.cli.output import age, say_or_json, until
from backchannel.cli.tables import RowTable, show_list
from backchannel.core.text import clean_name, made_visible, one_line

app = typer.Typer(help="Decide which strangers may speak.", rich_markup_mode=None)

Code = Annotated[str, typer.Argument(metavar="CODE", help="The code that the stranger got.")]
All = Annotated[bool, typer.Option("--all", help="Also admitted and denied senders.")]


_TABLE: RowTable[answers.PairingRow] = RowTable(
    {
        "code": lambda pairing: pairing.code,
        "state": lambda pairing: pairing.state,
        "age": lambda pairing: age(pairing.answered_at or pairing.created_at),
        "void in": lambda pairing: until(pairing.expires_at),
        "channel": lambda pairing: _place(pairing),
        "sender": lambda pairing: one_line(made_visible(pairing.sender_id)),
        "name": lambda pairing: clean_name(pairing.sender_name or ""),
    },
    empty="Nobody waits to be let in.",
    spare=("age", "void in"),
)


@default_list(app)
def list_pairings(ctx: typer.Context, every: All = False, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List the waiting strangers, the newest first. `pairing` alone does the same."""
    listed = ask(
        options_of(ctx), "pairing.list", answers.PairingsListed, state=None if every else "pending", limit=limit
    )
    table = replace(_TABLE, empty="Nobody was let in or denied, and nobody waits.") if every else _TABLE
    show_list(listed, table.of(listed.pairings), as_json=as_json, limit=limit)


@app.command()
def approve(ctx: typer.Context, code: Code, as_json: AsJson = False) -> None:
    """Admit a stranger. The stranger is told, and can then write."""
    pairing = ask(options_of(ctx), "pairing.approve", answers.PairingAnswered, code=code).pairing
    say_or_json(f"{_who(pairing)} may speak now, and is told so.", pairing, as_json=as_json)


@app.command()
def deny(ctx: typer.Context, code: Code, as_json: AsJson = False) -> None:
    """Ignore a stranger from now on. The stranger is not told."""
    pairing = ask(options_of(ctx), "pairing.deny", answers.PairingAnswered, code=code).pairing
    say_or_json(f"{_who(pairing)} is ignored from now on.", pairing, as_json=as_json)


@app.command()
def remove(
    ctx: typer.Context,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")],
    sender: Annotated[str, typer.Argument(metavar="SENDER", help="The sender's id, as `pairing list --all` shows it.")],
    account: Annotated[str | None, typer.Option("--account", help="Only on this account of the channel.")] = None,
    as_json: AsJson = False,
) -> None:
    """Forget the decision about a sender, who is then a stranger again."""
    whom = {"channel": channel, "senderId": sender, "accountId": account}
    answer = ask(options_of(ctx), "pairing.remove", answers.PairingsRemoved, **whom)
    say_or_json(f"{_who(answer.removed[0])} is a stranger again.", answer, as_json=as_json)


def _place(pairing: answers.PairingRow) -> str:
    from backchannel.core.delivery.channels import DEFAULT_ACCOUNT  # here, because it is slow to import

    account = pairing.account_id
    return pairing.channel if account == DEFAULT_ACCOUNT else f"{pairing.channel} {made_visible(account)}"


def _who(pairing: answers.PairingRow) -> str:
    name, sender = clean_name(pairing.sender_name or ""), made_visible(pairing.sender_id)
    return f"{name} ({_place(pairing)} {sender})" if name else f"{_place(pairing)} {sender}"
