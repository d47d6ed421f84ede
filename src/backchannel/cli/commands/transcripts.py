"""`backchannel transcripts`: the transcript files beside the database."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import GatewayClient, connected
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.output import console, is_terminal, say, show_json

app = typer.Typer(help="Rebuild transcript files.", no_args_is_help=True, rich_markup_mode=None)

_PAGE = 500


@app.callback()
def _group() -> None:
    """Keeps `rebuild` a command of its own, so that more can come beside it."""


@app.command()
def rebuild(
    ctx: typer.Context,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help=f"The session: {WHICH}. Archived ones work too."),
    ] = None,
    all_transcripts: Annotated[
        bool, typer.Option("--all", help="All transcripts, including ended and archived ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild transcript files from the database."""
    if bool(keys) == all_transcripts:
        raise typer.BadParameter("name sessions, or give --all", param_hint="KEY / --all")
    options = options_of(ctx)
    names = [find_key(options, key) for key in keys or ()]
    with connected(options) as client:
        wanted = _all_ids(client) if all_transcripts else names
        rebuilt = [
            client.call("transcripts.rebuild", answers.TranscriptRebuilt, key=name) for name in _with_progress(wanted)
        ]
    if as_json:
        show_json({"count": len(rebuilt), "rebuilt": rebuilt})
        return
    lines = sum(entry.lines for entry in rebuilt)
    what = f"the transcript of {rebuilt[0].key}" if len(names) == 1 else f"{len(rebuilt)} transcripts"
    say(f"Wrote {what} anew: {lines} lines.")


def _all_ids(client: GatewayClient) -> list[str]:
    ids: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = client.call("transcripts.list", answers.TranscriptsListed, limit=_PAGE, cursor=cursor)
        ids += (entry.session_id for entry in page.transcripts)
        cursor = page.next_cursor
    return ids


def _with_progress(keys: Sequence[str]) -> Iterator[str]:
    if len(keys) < 2 or not is_terminal(sys.stderr):
        yield from keys
        return
    from rich.progress import track

    yield from track(keys, "writing transcripts", console=console(sys.stderr))
