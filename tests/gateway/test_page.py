"""The page: its files are served to anybody, and nothing else is; what it may load and who may frame it is said."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from backchannel.errors import NotFound
from backchannel.gateway.page import PAGE_FOLDER, PageDoor

from .conftest import World

pytestmark = pytest.mark.anyio

FILES = sorted(
    path for path in PAGE_FOLDER.rglob("*") if path.is_file() and path.suffix in (".html", ".js", ".css", ".svg")
)


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as client:
        yield client


async def test_the_page_is_served_without_a_token_and_says_what_it_may_load(http: httpx.AsyncClient) -> None:
    answer = await http.get("/")

    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.content == (PAGE_FOLDER / "index.html").read_bytes()
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"} <= set(policy)
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in answer.headers["Permissions-Policy"]


async def test_every_file_of_the_page_is_served_as_what_it_is(http: httpx.AsyncClient) -> None:
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for path in FILES:
        answer = await http.get(f"/page/{path.relative_to(PAGE_FOLDER).as_posix()}")
        assert answer.status_code == 200 and answer.content == path.read_bytes()
        assert answer.headers["Content-Type"].split(";")[0] == kinds[path.suffix]
        assert answer.headers["Content-Security-Policy"]


async def test_what_a_browser_has_already_is_not_sent_again(http: httpx.AsyncClient) -> None:
    first = await http.get("/")
    again = await http.get("/", headers={"If-None-Match": f'"another", W/{first.headers["ETag"]}'})
    head = await http.head("/", headers={"If-None-Match": first.headers["ETag"]})
    other = await http.get("/", headers={"If-None-Match": '"another"'})

    assert first.headers["Cache-Control"] == "no-cache"
    assert [again.status_code, head.status_code, other.status_code] == [304, 304, 200]
    assert again.content == b"" and again.headers["ETag"] == first.headers["ETag"]


async def test_only_its_head_is_sent_to_whoever_asks_for_that(http: httpx.AsyncClient) -> None:
    whole, head = await http.get("/"), await http.head("/")
    assert head.status_code == 200 and head.content == b""
    for name in ("Content-Length", "Content-Type", "ETag"):
        assert head.headers[name] == whole.headers[name]


async def test_other_methods_are_refused(http: httpx.AsyncClient) -> None:
    for path in ("/", "/page/main.js"):
        answer = await http.post(path)
        assert answer.status_code == 405 and set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD"}


async def test_a_foreign_host_or_page_gets_nothing(http: httpx.AsyncClient) -> None:
    assert (await http.get("/", headers={"Host": "evil.example"})).status_code == 403
    assert (await http.get("/", headers={"Origin": "https://evil.example"})).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "missing.js",
            "../gateway/page.py",
            "..%2fgateway%2fpage.py",
            "%2e%2e/version.py",
            "views/%2e%2e/main.js",
        ),
        *(
            "/etc/hostname",
            "%2fetc%2fhostname",
            "views",
            "views/",
            ".hidden.js",
            "main.js%00",
            "main.js/",
        ),
        *("..%5cversion.py", "x" * 3000 + ".js"),
    ],
)
async def test_nothing_but_its_files_is_served(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(f"/page/{path}")
    assert answer.status_code == 404 and answer.json()["ok"] is False


@pytest.fixture
async def drafts(tmp_path: Path) -> AsyncIterator[tuple[Path, httpx.AsyncClient]]:
    """A page in a folder of its own, whose files a test may write."""
    folder = tmp_path / "web"
    folder.mkdir()
    app = Starlette(routes=PageDoor(folder).routes(), exception_handlers={NotFound: _missing})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://page") as client:
        yield folder, client


async def _missing(request: Request, error: Exception) -> Response:
    return Response(status_code=404)


async def test_a_file_is_compressed_for_those_who_take_it(drafts: tuple[Path, httpx.AsyncClient]) -> None:
    folder, client = drafts
    text = b"export const one = 1;\n" * 100
    (folder / "main.js").write_bytes(text)
    tags = {}
    for accepted, is_small in (("gzip, br", True), ("br, *;q=0.5", True), ("gzip;q=0, br", False), ("br", False)):
        async with client.stream("GET", "/page/main.js", headers={"Accept-Encoding": accepted}) as answer:
            sent = b"".join([piece async for piece in answer.aiter_raw()])
        assert (answer.headers.get("Content-Encoding") == "gzip") is is_small
        assert (gzip.decompress(sent) if is_small else sent) == text
        assert answer.headers["Vary"] == "Accept-Encoding"
        tags[is_small] = answer.headers["ETag"]
    assert tags[True] != tags[False], "a cache must not take one for the other"


async def test_a_changed_file_is_seen_at_the_next_reload(drafts: tuple[Path, httpx.AsyncClient]) -> None:
    folder, client = drafts
    (folder / "main.js").write_text("one")
    first = await client.get("/page/main.js")
    (folder / "main.js").write_text("another")
    second = await client.get("/page/main.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (second.status_code, second.text) == (200, "another")


async def test_what_is_hidden_of_another_kind_or_lies_elsewhere_is_not_served(
    drafts: tuple[Path, httpx.AsyncClient],
) -> None:
    folder, client = drafts
    (folder / ".git").mkdir()
    for name in (".git/config.js", ".env.js", "key.pem", "main"):
        (folder / name).write_text("secret")
    (folder.parent / "outside.js").write_text("secret")
    (folder / "link.js").symlink_to(folder.parent / "outside.js")
    (folder / "folder.js").mkdir()
    for name in (".git/config.js", ".env.js", "key.pem", "main", "link.js", "folder.js"):
        assert (await client.get(f"/page/{name}")).status_code == 404, name
