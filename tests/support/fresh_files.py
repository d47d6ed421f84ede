"""New files of SQLite, copied: the steps that lead to a schema take ten times as long as a copy of what they gave.

Thousands of tests begin with an empty state folder. The first one in a process goes the whole way. All checks of a
start are made as ever. Tests of the steps themselves take `every_step`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backchannel.storage.sqlite import file

_migrate = file._migrate
_made: dict[str, bytes] = {}


def copy_schemas() -> None:
    """Copy from now on, in this process and those that are forked off it."""
    file._migrate = _migrate_or_copy


@contextmanager
def every_step() -> Iterator[None]:
    """Take every step of the schema, also for a new file."""
    before, file._migrate = file._migrate, _migrate
    try:
        yield
    finally:
        file._migrate = before


def _migrate_or_copy(path: Path, versions: list[list[str]], current: int) -> None:
    if path.stat().st_size:
        return _migrate(path, versions, current)
    wanted = repr(versions)
    if wanted in _made:
        path.write_bytes(_made[wanted])
    else:
        _migrate(path, versions, current)
        _made[wanted] = path.read_bytes()
    return None
