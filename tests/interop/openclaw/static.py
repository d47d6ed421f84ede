"""A web server for the files of OpenClaw's Control UI, on an origin of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class _Files(SimpleHTTPRequestHandler):
    """The files; the page has addresses of its own, such as `/chat/main`, and names its files relative to them."""

    def translate_path(self, path: str) -> str:
        steps = urlsplit(path).path.strip("/").split("/")
        for n in range(len(steps)):
            if (file := Path(self.directory, *steps[n:])).is_file():
                return str(file)
        return str(Path(self.directory, "index.html"))

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder, and give its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
