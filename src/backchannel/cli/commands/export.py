"""`backchannel export`: write sessions as files that OpenClaw and `backchannel import` read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli.client import Link
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import AsJson, CommandFailed, Options, options_of
from backchannel.cli.output import counted, patience, say, say_dim, show_json

if TYPE_CHECKING:
    from backchannel.openclaw.exporting import SessionExported


def export(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder to write to. It is created if missing.")] = Path(
        "backchannel-export"
    ),
    session: Annotated[
        list[str] | None,
        typer.Option("--session", "-s", metavar="KEY", help=f"Only this session: {WHICH}. May be repeated."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Also archived sessions.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write even if the folder is not empty.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export sessions and transcripts in OpenClaw's form. Each agent gets a sessions.json and JSONL files.

    The gateway keeps running. Each session is a snapshot.
    """
    folder = folder.expanduser()
    _check_folder(folder, force=force)
    with patience("writing sessions"):
        written = _write(options_of(ctx), folder, session or [], agent, archived=archived)
    if as_json:
        show_json({"folder": str(folder), "count": len(written), "sessions": [_as_json(one) for one in written]})
    elif written:
        messages = sum(one.messages for one in written)
        say(f"Wrote {counted(len(written), 'session')} with {counted(messages, 'message')} to {folder}")
    else:
        say("There are no such sessions: nothing was written (deleted ones need --archived).")


def _check_folder(folder: Path, *, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise CommandFailed(f"{folder} is no folder: name another")
    from backchannel.openclaw.staging import is_left_over

    if folder.is_dir() and not force and not all(map(is_left_over, folder.iterdir())):
        raise CommandFailed(f"{folder} is not empty, and stays as it is. To write into it all the same: --force")


def _write(
    options: Options, folder: Path, names: list[str], agent: str | None, *, archived: bool
) -> list[SessionExported]:
    from backchannel.openclaw.exporting import ExportFilter, SessionExport

    keys = tuple(find_key(options, name) for name in names)
    with Link(options, lambda text: say_dim(text, err=True)) as link:
        try:
            return list(SessionExport(link, folder, ExportFilter(keys, agent, archived)).run())
        except OSError as error:
            raise CommandFailed(f"cannot write to {folder}: {error.strerror}") from error


def _as_json(one: SessionExported) -> dict[str, object]:
    return {"key": one.key, "sessionId": one.session_id, "messages": one.messages, "file": str(one.file)}
