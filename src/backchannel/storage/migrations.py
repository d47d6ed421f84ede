"""Schema versions: what a database file is, and how an older one becomes current.

A migration is a file `schema/NNNN_name.sql`; its number is the version it leads to. All that are missing run in one
transaction. A file that is corrupt, not ours or newer than this program is refused before anything is written.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from backchannel.errors import DatabaseUnusable
from backchannel.storage.sqlite import COUNTER, connect

APPLICATION_ID = 0x42434831  # "BCH1"


def prepare_sqlite(path: Path) -> None:
    """Make the file current, creating it if there is none.

    Raises:
        DatabaseUnusable: it is corrupt, not ours, or newer than this program.
    """
    scripts = _scripts()
    current = _version(path) if path.exists() and path.stat().st_size else 0
    if current > len(scripts):
        raise _too_new(path, current, len(scripts))
    try:
        if not path.exists():
            path.touch(mode=0o600)  # SQLite would ask the umask; the files that it makes beside it take this mode
        if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, "it may only be read")  # SQLite would leave files beside it first
        _migrate(path, scripts, current)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseUnusable(
            f"{path} cannot be written ({error}): check the folder's owner and free space"
        ) from error


def refuse_emptied(path: Path, *, has_past: Callable[[], bool]) -> None:
    """Refuse a file that is empty or missing and was not always so: `has_past` tells whether there are transcripts.

    Raises:
        DatabaseUnusable: a start would hide that everything is lost, or discard the commits that wait beside the file.
    """
    if path.exists() and (not path.is_file() or path.stat().st_size):
        return
    log = path.with_name(path.name + "-wal")
    if (log.exists() and log.stat().st_size) or has_past():
        lost = "empty" if path.exists() else "missing"
        raise DatabaseUnusable(
            f"{path} is {lost}, but what lies beside it tells of earlier sessions: its content is lost, and nothing "
            f"was changed; restore it from a backup, or move {path.name}* and the folder `agents` away to start anew"
        )


def check_sqlite(path: Path) -> None:
    """Make sure that a file can be read as it is; nothing is written.

    Raises:
        DatabaseUnusable: it is corrupt, not ours, or of another version.
    """
    current, known = _version(path), len(_scripts())
    if current > known:
        raise _too_new(path, current, known)
    if current < known:
        raise DatabaseUnusable(
            f"{path} was written by an older Backchannel: start the gateway once to bring it up to date"
        )


def _too_new(path: Path, current: int, known: int) -> DatabaseUnusable:
    return DatabaseUnusable(
        f"{path} was written by a newer Backchannel (its schema is {current}, this program knows {known}): "
        "update the program, or use another state folder"
    )


def _scripts() -> list[str]:
    folder = resources.files("backchannel.storage") / "schema"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(folder / name).read_text() for name in names]


def _version(path: Path) -> int:
    """Read a file's version without touching it."""
    # Where no commits wait beside the file, SQLite need not make files of its own there to read it.
    log = path.with_name(path.name + "-wal")
    mode = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise DatabaseUnusable(
            f"{path} cannot be read as a database ({error}): nothing was changed; "
            "restore it from a backup, or move it and the folder `agents` away to start anew"
        ) from error
    is_empty = not (application or version or tables)
    if application != APPLICATION_ID and not is_empty:
        raise DatabaseUnusable(
            f"{path} is a database of another program: nothing was changed; use another state folder"
        )
    return int(version)


def _migrate(path: Path, scripts: list[str], current: int) -> None:
    connection = connect(path)
    try:
        if current < len(scripts):
            connection.execute("BEGIN IMMEDIATE")
            for script in scripts[current:]:
                for statement in _statements(script):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(scripts)}")
            connection.execute("COMMIT")
    finally:
        connection.close()


def _statements(script: str) -> list[str]:
    lines = [line.split("--")[0] for line in script.replace("{counter}", COUNTER).splitlines()]
    return [statement for statement in "\n".join(lines).split(";") if statement.strip()]
