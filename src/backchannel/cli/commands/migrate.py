"""`backchannel migrate`: move everything from SQLite into PostgreSQL, or back, without a gateway."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli.options import EXIT_INTERRUPTED, AsJson, CommandFailed, Options, options_of
from backchannel.cli.output import console, counted, is_terminal, say, show_json
from backchannel.cli.tables import show_table
from backchannel.errors import DatabaseUnusable, StartupError, Unavailable

if TYPE_CHECKING:
    from backchannel.config.schema import Config
    from backchannel.storage.driver import Database
    from backchannel.storage.files.folder import StateFolder
    from backchannel.storage.moves import OnRows

SQLITE = "sqlite"
_TO_POSTGRES = "Set database.url, or BACKCHANNEL_DATABASE_URL, to that database"
_TO_SQLITE = "Take database.url out of the configuration, and BACKCHANNEL_DATABASE_URL out of the environment"


def migrate(
    ctx: typer.Context,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="An empty database, as postgresql://user@host:5432/database, or `sqlite` to move back.",
            show_default=False,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Move everything from the SQLite file into PostgreSQL, or back.

    `--to sqlite` moves everything from the configured PostgreSQL database into the SQLite file of the state folder.

    Stop all gateways first. The source is not changed. If the command is interrupted, run it again. At the end it
    compares the row counts of both sides. Put a password into PGPASSWORD or ~/.pgpass, not on the command line.
    """
    from backchannel.storage.files.folder import StateFolder
    from backchannel.storage.moves import was_moved

    options = options_of(ctx)
    config = options.load_config(reads=("database", "cluster"))
    source, target, move = _route(config, to)
    with suppress(DatabaseUnusable, StartupError, Unavailable):  # what is wrong is said below
        if was_moved(source, target):
            _say_done_before(source, as_json)
            return
    folder = StateFolder.hold(config.state_dir)
    try:
        with _progress() as on_rows:
            counts = move(folder, on_rows)
    except KeyboardInterrupt:
        say("\nStopped. Run the same command again to go on.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        folder.release()
    _show(options, source, counts, as_json=as_json, next_step=_TO_SQLITE if to == SQLITE else _TO_POSTGRES)


Move = Callable[["StateFolder", "OnRows"], dict[str, int]]


def _route(config: Config, to: str) -> tuple[Database, Database, Move]:
    """Find the source and the target of the move.

    Raises:
        CommandFailed: there is nothing to move.
    """
    from backchannel.config.adapters import default_database_url, is_in_folder
    from backchannel.storage.databases import database_at
    from backchannel.storage.moves import is_postgres, move_state, return_state

    is_file = is_in_folder(config.database_url)  # else it is configured already, and the file is the usual one
    file = database_at(config.database_url if is_file else default_database_url(config.state_dir))
    if to == SQLITE:
        if not is_postgres(config.database_url):
            raise CommandFailed(
                "database.url names no PostgreSQL database: name the one to move from there, "
                "or in BACKCHANNEL_DATABASE_URL"
            )
        source = database_at(config.database_url, locks_rows=config.cluster.locks == "rows")
        return source, file, lambda folder, on_rows: return_state(source, file, folder.media, on_rows)
    if not file.exists():
        raise CommandFailed(f"there is nothing to move: {file.name} does not exist")

    def move(folder: StateFolder, on_rows: OnRows) -> dict[str, int]:
        file.hold(folder)
        file.prepare(has_past=folder.has_transcripts)
        return move_state(file, to, on_rows)

    return file, database_at(to), move


def _say_done_before(source: Database, as_json: bool) -> None:
    if as_json:
        show_json({"from": source.name, "tables": {}, "wasDone": True})
    else:
        say(f"Everything in {source.name} was moved before: nothing was changed.")


def _show(options: Options, source: Database, counts: dict[str, int], *, as_json: bool, next_step: str) -> None:
    if as_json:
        show_json({"from": source.name, "tables": counts, "wasDone": False})
        return
    show_table(["table", "rows"], [[name, rows] for name, rows in counts.items() if rows], empty="There was no row.")
    say(f"\nMoved {counted(sum(counts.values()), 'row')}; both sides have the same number in every table.")
    say(f"{next_step}, and start with: {options.command('up')}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """Show on a terminal which table is moved, and how many rows so far."""
    if not is_terminal(sys.stderr):
        yield lambda table, rows: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed} rows, now {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda table, rows: progress.update(task, description=table, advance=rows)
