"""Every message with which a gateway refuses to start is on the page that says what to do about it."""

from __future__ import annotations

import re
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backchannel.config import load_config
from backchannel.errors import StartupError
from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import load_operator_token
from backchannel.gateway.server import check_start
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.sqlite.file import SqliteDatabase

from .pages import ROOT, fits

pytestmark = pytest.mark.anyio
PAGE = ROOT / "docs" / "how-to" / "startup-problems.md"
HEADINGS = re.findall(r"^### `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def _configure(text: str) -> Callable[[Path], None]:
    return lambda state: _write(state / "backchannel.json5", text)


def _write(file: Path, text: str | bytes) -> None:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


def _other_database(state: Path) -> None:
    database = sqlite3.connect(state / "backchannel.db")
    database.execute("CREATE TABLE theirs (x)")
    database.close()


def _newer_database(state: Path) -> None:
    SqliteDatabase(state / "backchannel.db").prepare()
    database = sqlite3.connect(state / "backchannel.db")
    database.execute("PRAGMA user_version = 999")
    database.close()


def _emptied_database(state: Path) -> None:
    _write(state / "backchannel.db", b"")
    _lost_database(state)


def _lost_database(state: Path) -> None:
    (state / "agents" / "main" / "sessions").mkdir(parents=True)
    _write(state / "agents" / "main" / "sessions" / "old.jsonl", b"{}\n")


def _file_for_folder(state: Path) -> None:
    state.rmdir()
    _write(state, "")


PROBLEMS: dict[str, Callable[[Path], None]] = {
    "…: unknown setting…": _configure("{ gatway: {} }"),
    "…: got …, expected …": _configure('{ gateway: { port: "high" } }'),
    "…: the environment variable … is not set …": _configure('{ gateway: { auth: { token: "${NOT_SET}" } } }'),
    "…: column …": _configure("{ gateway: "),
    "the database … cannot be reached …": _configure('{ database: { url: "postgresql://127.0.0.1:1/x" } }'),
    "the state folder … cannot be written …": _file_for_folder,
    "cannot keep the operator token in …": lambda state: (state / "token").mkdir(),
    "…token is empty …": lambda state: _write(state / "token", "\n"),
    "… cannot be read as a database …": lambda state: _write(state / "backchannel.db", b"no database at all" * 400),
    "… is empty, but what lies beside it tells of earlier sessions…": _emptied_database,
    "… is missing, but what lies beside it tells of earlier sessions…": _lost_database,
    "… was written by a newer Backchannel …": _newer_database,
    "… is a database of another program…": _other_database,
    "… cannot be written (…): check the folder's owner and free space": _configure(
        '{ database: { url: "sqlite:////nowhere/at/all.db" } }'
    ),
    "listening on … needs a token of your own …": _configure('{ gateway: { host: "0.0.0.0" } }'),
}


@asynccontextmanager
async def _started(state: Path, config: Path | None = None) -> AsyncIterator[None]:
    """Go through a start as `backchannel up` does, as far as it can be refused."""
    gateway = Gateway.open(load_config(config, {}, state=state))
    check_start(gateway)
    async with gateway:
        load_operator_token(state, gateway.config.gateway.auth.token)
        yield


@pytest.mark.parametrize("heading", PROBLEMS)
async def test_a_start_that_is_refused_says_what_the_page_explains(heading: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    PROBLEMS[heading](state)
    config = state / "backchannel.json5"
    if not config.exists():
        config = tmp_path / "backchannel.json5"
        _write(config, "{ gateway: { port: 0 } }")

    with pytest.raises(StartupError) as refused:
        async with _started(state, config):
            pass

    assert heading in HEADINGS
    assert fits(heading, refused.value.message), refused.value.message


async def test_a_missing_file_a_held_folder_and_a_taken_port_are_explained(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as missing:
        load_config(tmp_path / "none.json5", {}, state=tmp_path)
    folder = StateFolder.hold(tmp_path)
    try:
        with pytest.raises(StartupError) as held:
            StateFolder.hold(tmp_path)
    finally:
        folder.release()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        _write(tmp_path / "backchannel.json5", f"{{ gateway: {{ port: {taken.getsockname()[1]} }} }}")
        with pytest.raises(StartupError) as busy:
            async with _started(tmp_path):
                pass

    explained = {
        "…: there is no such file …": missing,
        "another gateway (process …) uses …": held,
        "cannot listen on … port …": busy,
    }
    for heading, refused in explained.items():
        assert heading in HEADINGS
        assert fits(heading, refused.value.message), refused.value.message
    assert set(HEADINGS) == {*explained, *PROBLEMS}
