"""`backchannel open`: the page in the browser, logged in, and the token in nothing that is printed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from .program import Program


@pytest.fixture
def browser(program: Program) -> Path:
    """A browser that writes down which address it is opened at."""
    opened = program.home / "opened.txt"
    script = program.home / "browser"
    script.write_text(f"#!{sys.executable}\nimport sys\nopen({str(opened)!r}, 'a').write(sys.argv[1] + '\\n')\n")
    script.chmod(0o755)
    program.env["BROWSER"] = f"{shlex.quote(str(script))} %s"
    return opened


def test_the_browser_is_opened_logged_in_and_the_token_is_not_printed(program: Program, browser: Path) -> None:
    with program.up() as up:
        said = program.answer("open")
        as_json = program.json("open")

    assert browser.read_text().splitlines() == [f"{up.url}/#token={program.token}"] * 2
    assert said == f"Opened {up.url}/\n"
    assert as_json == {"url": f"{up.url}/"}


def test_the_link_is_printed_for_those_who_ask_and_nothing_is_opened(program: Program, browser: Path) -> None:
    with program.up() as up:
        said = program.answer("open", "--print")

    assert said == f"{up.url}/#token={program.token}\n"
    assert not browser.exists()


def test_a_gateway_elsewhere_is_opened_with_the_token_of_the_environment(program: Program, browser: Path) -> None:
    token = "a token of my own & choice"
    with program.up("--host", "0.0.0.0", BACKCHANNEL_TOKEN=token) as up:
        port = up.url.rpartition(":")[2]
        program.answer("open", "--url", f"ws://localhost:{port}/ws", BACKCHANNEL_TOKEN=token)
        assert f"page: http://127.0.0.1:{port}/ " in up.said

    assert browser.read_text() == f"http://localhost:{port}/#token=a%20token%20of%20my%20own%20%26%20choice\n"


def test_without_a_browser_it_says_what_to_do(program: Program) -> None:
    program.env |= {"BROWSER": str(program.home / "no-such-browser"), "PATH": str(program.home), "TERM": "dumb"}
    with program.up() as up:
        done = program.run("open")

    assert done.returncode == 1
    assert f"Open {up.url}/ in one" in done.stderr and "open --print" in done.stderr
    assert program.token not in done.stderr


def test_without_a_gateway_or_with_a_wrong_token_nothing_is_opened(program: Program, browser: Path) -> None:
    assert program.run("open").returncode == 3
    with program.up():
        assert program.run("open", BACKCHANNEL_TOKEN="bc_a-wrong-token-of-the-usual-length").returncode == 4
    assert not browser.exists()
