"""Schema versions, and the statements that lead from each to the next.

A version is a file `NNNN_name.sql` in `schema/`; its number is the version it leads to. The file is for every
database, with `{counter}` for a primary key that grows. `NNNN_name.<dialect>.sql` has what only one kind of database
needs; it runs after the file for all. All missing steps run in one transaction.

A step with a line `-- additive` may run while older programs work on the same database. Such a step adds tables,
indexes, and columns that an INSERT may leave out. It may drop a table that no version has ever used. Any other step
waits until no older program is at work.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from backchannel.errors import DatabaseUnusable

ADDITIVE = "-- additive"


def load_versions(dialect: str, counter: str) -> list[list[str]]:
    """Read the statements of each version, oldest first."""
    texts = _texts()
    shared = _shared(texts)
    own = [texts.get(f"{name.removesuffix('.sql')}.{dialect}.sql", "") for name in shared]
    return [_statements(texts[name] + more, counter) for name, more in zip(shared, own, strict=True)]


def load_oldest_beside() -> int:
    """Read the oldest version whose program can work beside this one."""
    texts = _texts()
    is_additive = [ADDITIVE in texts[name].splitlines() for name in _shared(texts)]
    return max((number for number, is_so in enumerate(is_additive, 1) if not is_so), default=0)


def _texts() -> dict[str, str]:
    folder = resources.files("backchannel.storage") / "schema"
    return {entry.name: entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".sql")}


def _shared(texts: Iterable[str]) -> list[str]:
    """List the files for every database in order; each is a version."""
    return sorted(name for name in texts if name.count(".") == 1)


def _statements(script: str, counter: str) -> list[str]:
    lines = [line.split("--")[0] for line in script.replace("{counter}", counter).splitlines()]
    statements, rest = [], ""
    for part in "\n".join(lines).split(";"):
        rest += part
        if "CREATE TRIGGER" in rest and not rest.rstrip().endswith("END"):
            rest += ";"  # a trigger has statements of its own
        else:
            statements.append(rest)
            rest = ""
    return [statement for statement in statements if statement.strip()]


def refuse_newer(name: str, current: int, known: int) -> None:
    """Refuse a database that a newer program has written.

    Raises:
        DatabaseUnusable
    """
    if current > known:
        raise DatabaseUnusable(
            f"{name} was written by a newer Backchannel (its schema is {current}, this program knows {known}): "
            "update the program, or use another state folder"
        )


def refuse_other(name: str, current: int, known: int) -> None:
    """Refuse to read a database that is not of this program's version.

    Raises:
        DatabaseUnusable
    """
    refuse_newer(name, current, known)
    if current < known:
        raise DatabaseUnusable(
            f"{name} was written by an older Backchannel: start the gateway once to bring it up to date"
        )
