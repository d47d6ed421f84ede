"""The page on OpenClaw's clients has the table that `make interop` tries, and a server for the Control UI."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from backchannel.gateway.table import METHODS
from tests.interop.openclaw.rows import ROWS, table
from tests.interop.openclaw.static import PAGE, served
from tests.interop.openclaw.test_calls import EVERY
from tests.support.openclaw.violations import published

TESTS = Path(__file__).parents[1] / "interop" / "openclaw"


def test_the_table_is_the_one_that_is_tried() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "python -m tests.interop.openclaw.rows prints it"


def test_every_row_is_tried_by_a_test() -> None:
    tests = "\n".join(file.read_text(encoding="utf-8") for file in TESTS.glob("test_*.py"))
    assert [row for row in ROWS if f'@shows("{row.client}", "{row.what}")' not in tests] == []


def test_every_method_that_both_gateways_have_is_called_by_a_command_of_openclaw() -> None:
    assert METHODS.keys() & set(published()["methods"]) == EVERY, "test_calls.py calls them, in make interop"


def test_the_server_of_the_page_finds_the_files_of_the_control_ui_at_all_its_addresses(tmp_path: Path) -> None:
    files = {"index.html": "the page", "assets/app.js": "its program", "themes/dark.css": "a theme"}
    for name, text in files.items():
        (tmp_path / "ui" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ui" / name).write_text(text, encoding="utf-8")
    (tmp_path / "beside").write_text("not for the page", encoding="utf-8")
    found = {
        "/": "the page",
        "/chat/main": "the page",
        "/settings/": "the page",
        "/assets": "the page",
        "/assets/app.js": "its program",
        "/chat/assets/app.js?v=2": "its program",
        "/settings/skills/assets/app.js": "its program",
        "/themes/dark.css": "a theme",
        "/../beside": "the page",
        "/chat/assets/../../beside": "the page",
        "/%2e%2e/beside": "the page",
    }
    with served(tmp_path / "ui") as origin:
        assert {address: _read(origin, address) for address in found} == found


def _read(origin: str, address: str) -> str:
    """Ask for an address as it is: some libraries take the dots out of it."""
    connection = HTTPConnection(urlsplit(origin).netloc, timeout=10)
    connection.request("GET", address)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return text
