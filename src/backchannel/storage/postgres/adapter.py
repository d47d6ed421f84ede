"""The adapter of PostgreSQL. Its driver is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backchannel.core.adapters import Adapter

if TYPE_CHECKING:
    from backchannel.storage.driver import Database


def make_database(url: str, locks_rows: bool) -> Database:
    """Name the database of a URL."""
    from backchannel.storage.postgres.database import PostgresDatabase

    return PostgresDatabase.at(url, locks_rows=locks_rows)


ADAPTER = Adapter(
    name="postgres",
    also=("postgresql",),
    title="PostgreSQL",
    make="backchannel.storage.postgres.adapter:make_database",
    needs=("psycopg",),
    extra="postgres",
)
