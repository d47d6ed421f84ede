"""`backchannel export`: writes sessions as files that other programs read, and `backchannel import` too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli.errors import CommandFailed
from backchannel.cli.options import AsJson, Options, options_of
from backchannel.cli.output import patience, say, show_json

if TYPE_CHECKING:
    from backchannel.cli.exporting import Exported


def export(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Where to write; made if it is not there.")] = Path(
        "backchannel-export"
    ),
    session: Annotated[
        list[str] | None,
        typer.Option("--session", "-s", metavar="KEY", help="Only this one: a key, `main`, or a session id. Repeats."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Also those that were deleted.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write sessions and their transcripts in the form of OpenClaw: sessions.json and JSONL files for each agent.

    Reads the database of the state folder, whether a gateway runs or not.
    """
    folder = folder.expanduser()
    _check_folder(folder, force=force)
    with patience("writing sessions"):
        written = _write(options_of(ctx), folder, session or [], agent, archived=archived)
    if as_json:
        show_json({"folder": str(folder), "count": len(written), "sessions": [_told(one) for one in written]})
    elif written:
        messages = sum(one.messages for one in written)
        say(f"Wrote {_counted(len(written), 'session')} with {_counted(messages, 'message')} to {folder}")
    else:
        say("There are no such sessions: nothing was written (deleted ones need --archived).")


def _check_folder(folder: Path, *, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise CommandFailed(f"{folder} is no folder: name another")
    if folder.is_dir() and not force and any(folder.iterdir()):
        raise CommandFailed(f"{folder} is not empty, and stays as it is. To write into it all the same: --force")


def _write(options: Options, folder: Path, texts: list[str], agent: str | None, *, archived: bool) -> list[Exported]:
    from backchannel.cli.exporting import Exporting, Wanted, find_keys
    from backchannel.core.keys import normalise_agent_id
    from backchannel.storage.folder import database_file
    from backchannel.storage.reading import open_reader

    config = options.load_config()
    database = database_file(config.database_url)
    if not database.exists():
        raise CommandFailed(f"there are no sessions yet: {database} is not there (--state names another state folder)")
    with open_reader(database) as reader:
        with reader.snapshot() as tx:
            keys = find_keys(tx, config.key_scheme, texts)
        wanted = Wanted(keys, None if agent is None else normalise_agent_id(agent), archived)
        try:
            return list(Exporting(reader, config.key_scheme, folder, wanted).run())
        except OSError as error:
            raise CommandFailed(f"cannot write to {folder}: {error.strerror}") from error


def _told(one: Exported) -> dict[str, object]:
    return {"key": one.key, "sessionId": one.session_id, "messages": one.messages, "file": str(one.file)}


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
