"""`backchannel tokens`: create, list and revoke tokens."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.naming import find_id, find_key
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.output import age, is_terminal, say, say_or_json, show_json
from backchannel.cli.short_forms import short_key
from backchannel.cli.tables import RowTable, show_list
from backchannel.core.short_ids import IdKind

app = typer.Typer(help="Create, list and revoke tokens.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def create(
    ctx: typer.Context,
    scope: Annotated[list[str] | None, typer.Option(help="Its rights: read, write or admin. May be repeated.")] = None,
    session: Annotated[str | None, typer.Option(help="Create an agent's token for this session.")] = None,
    label: Annotated[str | None, typer.Option(help="A label for `tokens list`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token for an operator (--scope) or an agent (--session). It is shown only once."""
    if bool(scope) == (session is not None):
        raise typer.BadParameter("give either --scope or --session", param_hint="--scope / --session")
    options = options_of(ctx)
    key = find_key(options, session)
    made = ask(options, "tokens.create", answers.TokenMade, scopes=scope or None, sessionKey=key, label=label)
    if as_json:
        show_json(made)
        return
    if is_terminal(sys.stdout):
        what = f"bound to {made.session_key}" if session else ", ".join(made.scopes)
        say(f"Token {made.id} ({what}). It is shown this once:")
    say(made.token)


@app.command("list")
def list_tokens(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the created tokens, and pages that stay logged in. The operator's own token is not listed."""
    listed = ask(options_of(ctx), "tokens.list", answers.TokensListed)
    show_list(listed, _TABLE.of(listed.tokens), as_json=as_json)


_TABLE: RowTable[answers.TokenShown] = RowTable(
    {
        "id": lambda token: token.id,
        "label": lambda token: token.label if token.device is None else _name(token.device),
        "for": lambda token: ", ".join(token.scopes) if token.session_key is None else short_key(token.session_key),
        "age": lambda token: age(token.created_at),
        "state": lambda token: _state(token),
    },
    empty="No tokens were made.",
)


def _name(device: answers.TokenDevice) -> str:
    """Name a page that stays logged in by its own client name and origin."""
    named = device.client or f"device {device.id[:12]}"
    return f"{named} at {device.origin}" if device.origin else named


def _state(token: answers.TokenShown) -> str:
    if token.revoked_at:
        return f"revoked {age(token.revoked_at)} ago"
    if token.device is None:
        return "valid"
    if token.device.is_stale:
        return "of another operator's token"
    return f"device of {token.device.made_from}, used {_used(token.device.last_used_at)}"


def _used(last_used_at: int) -> str:
    """Show when a device token was last used. That is stored at most once an hour."""
    passed = age(last_used_at)
    return f"about {passed} ago" if passed[-1] in "hd" else "in the last hour"


@app.command()
def revoke(
    ctx: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, or its beginning.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a token, with the device tokens made from it. Their connections are closed."""
    options = options_of(ctx)
    revoked = ask(options, "tokens.revoke", answers.TokenRevoked, id=find_id(options, IdKind.TOKEN, token_id))
    say_or_json(f"Token {revoked.id} is no longer valid.", revoked, as_json=as_json)
