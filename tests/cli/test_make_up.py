"""`make up` on a terminal: it shows that it is working while pip is, and what went wrong when pip fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .program import PATIENCE_S, Terminal

PROJECT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
# Stands for Python and for the network: makes an environment whose pip takes until it is told to go on.
[ "$1" = -c ] && exit 0
mkdir -p "$3/bin"
cat > "$3/bin/pip" <<'END'
#!/bin/sh
echo "Collecting a package that takes its time"
read -r code < go_on
[ "$code" = 0 ] || echo "ERROR: No matching distribution found"
exit "$code"
END
cat > "$3/bin/backchannel" <<'END'
#!/bin/sh
trap 'echo stopped; exit 0' INT
echo "started with: $*"
[ ! -e stay ] || read -r forever < stay
END
chmod +x "$3/bin/pip" "$3/bin/backchannel"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project as somebody has it who has just fetched it."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(PROJECT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    os.mkfifo(tmp_path / "go_on")
    return tmp_path


@contextmanager
def _make_up(folder: Path) -> Iterator[Terminal]:
    command = ["make", "--no-print-directory", "up", "PYTHON=./python", "STATE=mine"]
    terminal = Terminal(command, {"PATH": os.environ["PATH"], "TERM": "xterm"}, folder)
    try:
        yield terminal
    finally:
        terminal.close()


def test_it_counts_the_seconds_and_names_what_pip_is_at_and_then_starts(folder: Path) -> None:
    with _make_up(folder) as terminal:
        terminal.expect("Installing Backchannel and what it needs into .venv")
        terminal.expect(" s  Collecting a package that takes its time")
        (folder / "go_on").write_text("0\n")
        terminal.expect("Installed in ")
        assert "pip" not in terminal.expect("started with: --state mine up --init")
        assert terminal.wait() == 0
    assert not any("Collecting" in line for line in terminal.screen), "the progress is gone once it is done"


def test_an_installation_that_fails_shows_why_and_starts_nothing(folder: Path) -> None:
    with _make_up(folder) as terminal:
        terminal.expect("Collecting")
        (folder / "go_on").write_text("1\n")
        terminal.expect("ERROR: No matching distribution found")
        terminal.expect("The installation failed; all of it is in .venv/install.log.")
        assert terminal.wait() == 2
    assert "started with" not in terminal.shown


def test_ctrl_c_stops_the_gateway_and_make_adds_nothing(folder: Path) -> None:
    os.mkfifo(folder / "stay")
    with _make_up(folder) as terminal:
        terminal.expect("Collecting")
        (folder / "go_on").write_text("0\n")
        terminal.expect("started with: ")
        terminal.type("\x03")
        terminal.expect("stopped")
        terminal.wait()
    assert "make" not in terminal.shown.partition("stopped")[2]


def test_where_nobody_watches_there_is_no_progress(folder: Path) -> None:
    with subprocess.Popen(
        ["make", "up", "PYTHON=./python"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as making:
        (folder / "go_on").write_text("0\n")
        said, _ = making.communicate(timeout=PATIENCE_S)
    assert "started with: --state .state up --init" in said
    assert "\r" not in said and "Collecting" not in said
