"""The page at `/`, and its files at `/page/<path>` from the folder `web/`.

The files hold no data, so they need no token; the page logs in over its connection. A file is read and compressed at
its first request, and again after a change. Browsers check each time whether their copy is current, so that an upgrade
shows at the next reload.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backchannel.errors import NotFound

PAGE_FOLDER = Path(__file__).parents[1] / "web"
INDEX = "index.html"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""The kinds of files that are served."""
_COMPRESSED_ALREADY = (".png", ".woff2")
_PATH = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
"""No part begins with a dot, so that no path leaves the folder or names a hidden file."""
_MIN_SAVING = 200
"""The bytes that compression must save."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    version: tuple[int, int]
    """The time of its last change, and its size."""
    kind: str
    tag: str
    plain: bytes
    compressed: bytes | None

    @classmethod
    def load(cls, path: Path, version: tuple[int, int]) -> PageFile:
        plain = path.read_bytes()
        compressed = None
        if path.suffix not in _COMPRESSED_ALREADY:
            smaller = gzip.compress(plain, mtime=0)
            compressed = smaller if len(smaller) + _MIN_SAVING <= len(plain) else None
        return cls(version, _TYPES[path.suffix], sha256(plain).hexdigest()[:32], plain, compressed)


class PageDoor:
    """Serves the page."""

    def __init__(self, folder: Path = PAGE_FOLDER) -> None:
        self._folder = folder.resolve()
        self._files: dict[str, PageFile] = {}

    def routes(self) -> list[Route]:
        return [Route("/", self._index), Route("/page/{path:path}", self._file)]

    async def _index(self, request: Request) -> Response:
        return _answer(request, self._load(INDEX))

    async def _file(self, request: Request) -> Response:
        return _answer(request, self._load(request.path_params["path"]))

    def _load(self, name: str) -> PageFile:
        """Give a file of the folder.

        Raises:
            NotFound: there is none of this name, or it lies elsewhere.
        """
        path = self._folder / name
        if not _PATH.fullmatch(name) or path.suffix not in _TYPES:
            raise NotFound("the page has no such file")
        try:
            if not path.resolve(strict=True).is_relative_to(self._folder) or not path.is_file():
                raise NotFound("the page has no such file")
            found = path.stat()
            version = (found.st_mtime_ns, found.st_size)
            kept = self._files.get(name)
            if kept is None or kept.version != version:
                kept = self._files[name] = PageFile.load(path, version)
        except OSError:
            raise NotFound("the page has no such file") from None
        return kept


def _answer(request: Request, file: PageFile) -> Response:
    body, headers = file.plain, {**_HEADERS, "ETag": f'"{file.tag}"'}
    if file.compressed is not None and _takes_gzip(request):
        body = file.compressed
        headers |= {"Content-Encoding": "gzip", "ETag": f'"{file.tag}-gzip"'}
    if _is_known(request, headers["ETag"]):
        headers.pop("Content-Encoding", None)
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=file.kind)


def _takes_gzip(request: Request) -> bool:
    for coding in ",".join(request.headers.getlist("accept-encoding")).lower().split(","):
        name, _, quality = coding.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _is_known(request: Request, tag: str) -> bool:
    """Whether the client has this very file, by its tags."""
    named = [one.strip().removeprefix("W/") for one in ",".join(request.headers.getlist("if-none-match")).split(",")]
    return tag in named or "*" in named
