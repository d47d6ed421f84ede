"""The web server for OpenClaw's Control UI that the page on its clients shows, run as a reader runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.pages import ROOT, snippets

PAGE = ROOT / "docs" / "how-to" / "use-openclaw-clients.md"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port, and give its origin."""
    [program] = snippets("python", of=PAGE)
    server = subprocess.Popen(
        [sys.executable, "-c", program.text, str(folder), "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        origin = server.stdout.readline().strip()
        assert origin, "the server of the page did not start"
        yield origin
    finally:
        server.kill()
        server.communicate()
