"""`backchannel transcripts`: the transcript files beside the database."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli.naming import find_key
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.output import console, is_terminal, say, show_json

if TYPE_CHECKING:
    from backchannel.cli.client import Client, Payload

app = typer.Typer(help="Care for the transcript files.", no_args_is_help=True, rich_markup_mode=None)

PAGE = 500


@app.callback()
def _group() -> None:
    """Keeps `rebuild` a command of its own, so that more can come beside it."""


@app.command()
def rebuild(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(help="The session whose file is written anew.")] = None,
    all_sessions: Annotated[bool, typer.Option("--all", help="The files of all sessions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write transcript files anew. They are made from the database, which is the truth."""
    from backchannel.cli.client import connected

    if (key is None) != all_sessions:
        raise typer.BadParameter("name a session, or give --all", param_hint="KEY / --all")
    options = options_of(ctx)
    key = find_key(options, key)
    with connected(options) as client:
        rebuilt = _rebuild_all(client) if key is None else [client.call("transcripts.rebuild", key=key)]
    if as_json:
        show_json({"count": len(rebuilt), "rebuilt": rebuilt})
        return
    lines = sum(entry["lines"] for entry in rebuilt)
    what = f"the transcript of {rebuilt[0]['key']}" if key is not None else f"{len(rebuilt)} transcripts"
    say(f"Wrote {what} anew: {lines} lines.")


def _rebuild_all(client: Client) -> list[Payload]:
    from backchannel.cli.client import CallFailed

    rebuilt: list[Payload] = []
    for key in _with_progress(_all_keys(client)):
        try:
            rebuilt.append(client.call("transcripts.rebuild", key=key))
        except CallFailed as refused:
            if refused.reason != "session_not_found":  # it was deleted a moment ago
                raise
    return rebuilt


def _all_keys(client: Client) -> list[str]:
    keys: dict[str, None] = {}  # a session that moves up while pages are read is seen twice
    cursor: str | None = None
    while True:
        page: Payload = client.call("sessions.list", limit=PAGE, cursor=cursor)
        keys |= dict.fromkeys(row["key"] for row in page["sessions"])
        cursor = page.get("nextCursor")
        if cursor is None:
            return list(keys)


def _with_progress(keys: list[str]) -> Iterator[str]:
    if len(keys) < 2 or not is_terminal(sys.stderr):
        yield from keys
        return
    from rich.progress import track

    yield from track(keys, "writing transcripts", console=console(sys.stderr))
