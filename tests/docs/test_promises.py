"""The page of promises: each promise names a test that exists."""

from __future__ import annotations

import ast
import re

from tests.docs.pages import ROOT

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_ROW = re.compile(r"^\| (?!\||-)[^|]+\|.*\|$", re.MULTILINE)


def test_each_promise_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    rows = _ROW.findall(page)
    assert rows and all(_TEST.search(row) for row in rows), [row for row in rows if not _TEST.search(row)]
    missing = [f"{path}::{name}" for path, name in _TEST.findall(page) if name not in _tests_of(path)]
    assert missing == []


def test_each_platform_has_its_promises() -> None:
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").lower()
    adapters = [adapter.parent.name for adapter in (ROOT / "src/backchannel/channels").glob("*/adapter.py")]
    assert [name for name in [*adapters, "webchat"] if f"\n## {name}\n" not in page] == []


def _tests_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
