"""The page on OpenClaw's clients has the table that `make interop` tries, row by row."""

from __future__ import annotations

from pathlib import Path

from tests.interop.openclaw.rows import ROWS, table

from .pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "use-openclaw-clients.md"
TESTS = Path(__file__).parents[1] / "interop" / "openclaw"


def test_the_table_is_the_one_that_is_tried() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "python -m tests.interop.openclaw.rows prints it"


def test_every_row_is_tried_by_a_test() -> None:
    tests = "\n".join(file.read_text(encoding="utf-8") for file in TESTS.glob("test_*.py"))
    assert [row for row in ROWS if f'@shows("{row.client}", "{row.what}")' not in tests] == []
