"""Databases by their URL. Each kind is an adapter in a folder of its own."""

from __future__ import annotations

from backchannel.config.adapters import DATABASES, AdapterUnusable, database_kind
from backchannel.core.adapters import Adapter
from backchannel.errors import StartupError
from backchannel.storage.driver import Database


def database_at(url: str, *, locks_rows: bool = False) -> Database:
    """Name the database of a URL; nothing is opened. Where several gateways share it, they may all lock rows.

    Raises:
        StartupError: there is no store of this kind, the URL is not one of it, or a package is missing.
    """
    try:
        adapter = database_kind(url)
        if adapter is None:
            kind, there = url.partition(":")[0], ", ".join(DATABASES.names)
            raise StartupError(f"database.url: there is no store for {kind}: (there are: {there}; or leave it out)")
        return _made(adapter, url, locks_rows)
    except AdapterUnusable as unusable:
        raise StartupError(f"database.url: {unusable.reason}") from unusable


def _made(adapter: Adapter, url: str, locks_rows: bool) -> Database:
    try:
        made: Database = DATABASES.make(adapter, url, locks_rows)
    except ImportError as error:
        raise StartupError(
            f"database.url: {adapter.title} needs a package that is not installed ({error}): "
            f"pip install 'backchannel[{adapter.extra}]'"
        ) from error
    return made
