"""Every example runs without keys or network, ends soon, and prints what its first lines say."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .pages import ROOT, complaints, fits

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONGEST_S = 5.0
"""Of the processor's time: how long that takes on a busy machine is chance."""


def _head(example: Path) -> tuple[str, str]:
    """What an example says of itself, and what it says it prints."""
    said = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")), clean=False) or ""
    about, _, printed = said.partition("\nPrints:\n")
    return about.strip(), textwrap.dedent(printed).strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_prints_what_it_says(example: Path, tmp_path: Path) -> None:
    before = _spent_s()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        # No key and no home; a proxy that does not answer fails whatever would use the network.
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HTTPS_PROXY": "http://127.0.0.1:9"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert complaints(done.stderr) == []
    assert fits(_head(example)[1], done.stdout), done.stdout
    assert _spent_s() - before < LONGEST_S


def _spent_s() -> float:
    """The processor's time that processes took which this one started."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_opens_with_two_lines_on_what_it_shows(example: Path) -> None:
    about, printed = _head(example)

    assert len(about.splitlines()) == 2
    assert printed


def test_every_example_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")

    assert EXAMPLES
    for example in EXAMPLES:
        assert f"(../examples/{example.name})" in index, f"{example.name} is not in docs/README.md"
