"""The browser of these tests sees what it has to see."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from .browser import Person, findings
from .gateways import GatewayProcess

VENDOR = Path(__file__).parent / "vendor"


def test_an_error_a_warning_and_a_request_elsewhere_are_noticed(stranger: Person, gateway: GatewayProcess) -> None:
    page = stranger.context.new_page()
    page.goto(f"{gateway.url}/healthz")
    page.evaluate("console.error('a trouble of the test')")
    page.evaluate("setTimeout(() => { throw new Error('another trouble') })")
    page.evaluate("fetch('http://127.0.0.2:9/').catch(() => 0)")

    with pytest.raises(AssertionError) as failed:
        stranger.leave()
    for trouble in ("a trouble of the test", "another trouble", "a request to another host: http://127.0.0.2:9/"):
        assert trouble in str(failed.value)
    stranger.troubles.seen.clear()


def test_axe_finds_what_keeps_people_out(stranger: Person, gateway: GatewayProcess) -> None:
    page = stranger.context.new_page()
    page.goto(f"{gateway.url}/healthz")
    page.set_content("<html lang=en><title>t</title><main><h1>t</h1><button></button></main>")

    (found,) = findings(page, (VENDOR / "axe.min.js").read_text())
    assert found["rule"] == "button-name"


def test_vendored_files_are_the_published_ones() -> None:
    stated = (VENDOR / "README.md").read_text()

    assert hashlib.sha256((VENDOR / "axe.min.js").read_bytes()).hexdigest() in stated
