"""`backchannel migrate`: moves everything from the SQLite file into PostgreSQL, without a gateway."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from backchannel.cli.options import INTERRUPTED, AsJson, CommandFailed, options_of
from backchannel.cli.output import console, counted, is_terminal, say, show_json, show_table


def migrate(
    ctx: typer.Context,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="An empty database, as postgresql://user@host:5432/database.",
            show_default=False,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Move everything from the SQLite file into PostgreSQL.

    Works on the state folder itself, so no gateway may be running on it. The file stays as it is. If it is broken off,
    the same command goes on from there; in the end the rows of both sides are counted. A password is better in
    PGPASSWORD or ~/.pgpass than on the command line.
    """
    from backchannel.storage.databases import database_at, move_state
    from backchannel.storage.folder import StateFolder

    options = options_of(ctx)
    config = options.load_config(reads=("database",))
    is_file = config.database_url.startswith("sqlite:")  # else it is configured already, and the file is the usual one
    source = database_at(config.database_url if is_file else f"sqlite:///{config.state_dir / 'backchannel.db'}")
    if not source.exists():
        raise CommandFailed(f"there is nothing to move: {source.name} does not exist")
    folder = StateFolder.hold(config.state_dir)
    try:
        source.hold(folder)
        source.prepare(has_past=folder.has_transcripts)
        with _progress() as on_rows:
            counts = move_state(source, to, on_rows)
    except KeyboardInterrupt:
        say("\nStopped. What was moved stays; the same command goes on from there.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        folder.release()
    if as_json:
        show_json({"from": source.name, "tables": counts})
        return
    show_table(["table", "rows"], [[name, rows] for name, rows in counts.items() if rows], empty="There was no row.")
    say(f"\nMoved {counted(sum(counts.values()), 'row')}; both sides have the same number in every table.")
    say(f"Set database.url, or BACKCHANNEL_DATABASE_URL, to that database, and start with: {options.command('up')}")


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
