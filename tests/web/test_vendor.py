"""The files of the page: those of others are as they were published, and none sends a browser to another host."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import backchannel

WEB = Path(backchannel.__file__).parent / "web"
VENDOR = WEB / "vendor"
_ROW = re.compile(r"^\| `(?P<file>[\w.]+)` \|.*\| `(?P<sha256>[0-9a-f]{64})` \|$", re.MULTILINE)
_ADDRESS = re.compile(r"(?:https?:|wss?:)?//[\w-]+(?:\.[\w-]+)+")
_NAMES_OF_FORMATS = {"http://www.w3.org"}


def test_each_file_of_others_is_the_published_one() -> None:
    rows = {row["file"]: row["sha256"] for row in _ROW.finditer((VENDOR / "README.md").read_text())}
    assert rows.keys() == {file.name for file in VENDOR.glob("*.js")}
    for name, sha256 in rows.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == sha256, name


def test_each_licence_that_is_named_is_there() -> None:
    named = set(re.findall(r"`(LICENSE\.\w+)`", (VENDOR / "README.md").read_text()))
    assert named == {file.name for file in VENDOR.glob("LICENSE.*")}


def test_no_file_of_the_page_names_another_host() -> None:
    files = [
        file for file in WEB.rglob("*") if file.suffix in {".js", ".css", ".html", ".svg"} and file.parent != VENDOR
    ]
    assert len(files) > 5
    named = {(file.name, found) for file in files for found in _ADDRESS.findall(file.read_text())}
    assert {found for _, found in named} <= _NAMES_OF_FORMATS, named


def test_no_file_of_the_page_makes_html_of_text() -> None:
    ours = [file for file in WEB.rglob("*.js") if VENDOR not in file.parents]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert not [file.name for file in ours if word in file.read_text()], word
