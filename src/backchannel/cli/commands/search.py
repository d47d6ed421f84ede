"""`backchannel search`: find what was said, in all sessions or in one."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import FAILED, AsJson, options_of
from backchannel.cli.output import age, clean, is_terminal, say, say_dim, show_json
from backchannel.cli.short_forms import short_key

_ROLES = {"assistant": "agent", "toolResult": "tool", "system": "note"}


def search(
    ctx: typer.Context,
    words: Annotated[list[str], typer.Argument(help='Words, "a phrase" in quotes, or the beginning of a word*.')],
    session: Annotated[str | None, typer.Option("--session", "-s", help=f"Only this session: {WHICH}.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", help="Only sessions of this kind: main, group, cron, hook, node or other. May be repeated."
        ),
    ] = None,
    since: Annotated[
        int | None, typer.Option("--since", min=1, help="Only messages of the last so many minutes.")
    ] = None,
    tools: Annotated[bool, typer.Option("--tools", help="Also search tool calls and their results.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=50, help="How many hits at most.")] = 20,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where an earlier search ended.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find what was said, in all sessions.

    A message must have all words; case and accents do not matter. The best matches come first.
    """
    options = options_of(ctx)
    query = " ".join(words)
    given: dict[str, Any] = {
        "query": query,
        "sessionKey": None if session is None else find_key(options, session),
        "kinds": kind or None,
        "since": since,
        "includeTools": tools or None,
        "limit": limit,
        "cursor": cursor,
    }
    args = {name: value for name, value in given.items() if value is not None}
    found = ask(options, "tools.invoke", answers.HitsInvoked, tool="sessions_search", args=args).result
    if as_json:
        show_json(found)
    elif found.error is None:
        _show(found, query)
    if found.error is not None:
        say(found.error, err=True)
        raise typer.Exit(FAILED)


def _show(found: answers.HitsSeen, query: str) -> None:
    if not found.hits:
        say("Nothing was found.")
    for hit in found.hits:
        who = _ROLES.get(hit.role, hit.role)
        say_dim(f"{short_key(hit.session_key)} · {who} · {age(hit.timestamp)} ago · {hit.message_id}")
        say_marked(hit.snippet, query)
    if found.note is not None:
        say_dim(f"Note: {found.note}.", err=True)
    if found.next_cursor is not None:
        say_dim(f"There are more: --cursor {found.next_cursor}", err=True)


def say_marked(text: str, query: str) -> None:
    """Print a text; on a terminal, what was searched for is bold."""
    text = clean(text)
    if not is_terminal(sys.stdout) or os.environ.get("NO_COLOR"):
        say(f"  {text}")
        return
    from backchannel.core.full_text.queries import all_places, parse_query

    shown, at = "", 0
    for start, end in all_places(text, parse_query(query)):
        shown += text[at:start] + typer.style(text[start:end], bold=True)
        at = end
    sys.stdout.write(f"  {shown}{text[at:]}\n")
