"""The adapter of SQLite: one file, in the state folder unless the configuration names another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from backchannel.core.adapters import Adapter
from backchannel.core.settings import SettingIssue

if TYPE_CHECKING:
    from backchannel.storage.driver import Database

_PREFIX = "sqlite:///"


def url_in(folder: Path) -> str:
    """Give the URL of the file in the state folder."""
    return f"{_PREFIX}{folder / 'backchannel.db'}"


def find_issues(name: str, url: str) -> Iterator[SettingIssue]:
    """Find what is wrong with a URL."""
    if not url.startswith(_PREFIX):
        yield SettingIssue("error", (), f"expected {_PREFIX}<path>")


def make_database(url: str, locks_rows: bool) -> Database:
    """Name the file of a URL. One process writes to it, so nothing is locked."""
    from backchannel.storage.sqlite.file import SqliteDatabase

    return SqliteDatabase.at(url)


ADAPTER = Adapter(
    name="sqlite",
    title="SQLite",
    make="backchannel.storage.sqlite.adapter:make_database",
    is_default=True,
    url_in=url_in,
    check=find_issues,
)
