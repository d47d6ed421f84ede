"""A real browser, and what it must never do: run into an error, or ask another host for anything."""

from __future__ import annotations

import os
import shutil
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, WebError, WebSocket, expect

from tests.web.gateways import GatewayProcess

PATIENCE_MS = 30_000
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 800}
TOKEN = "backchannel.token"
"""Where the page keeps its token."""


def find_chromium() -> str:
    """Find the browser; without it tests are skipped, and fail where CI is set.

    The one without windows takes a fifth of the processor's time: Chromium makes each page a window with all its parts.
    """
    found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    return found or _missing("there is no chromium here (on Debian: apt-get install chromium-headless-shell)")


def _missing(reason: str) -> NoReturn:
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


class Troubles:
    """What went wrong in the pages of a test."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._allowed = ["/favicon.ico"]  # a browser asks for it of itself
        self.seen: list[str] = []

    def allow(self, text: str) -> None:
        """Pass over what the test itself brings about, such as the failed connections to a gateway that it killed."""
        self._allowed.append(text)

    def watch(self, context: BrowserContext) -> None:
        context.on("console", self._hear)
        context.on("weberror", self._note_error)
        context.on("request", self._note_request)
        context.on("page", lambda page: page.on("websocket", self._note_socket))

    def check(self) -> None:
        left = [trouble for trouble in self.seen if not any(text in trouble for text in self._allowed)]
        assert not left, "\n".join(left)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.seen.append(f"console {message.type}: {message.text} ({message.location['url']})")

    def _note_error(self, error: WebError) -> None:
        self.seen.append(f"uncaught: {error.error.stack or error.error.message}")

    def _note_request(self, request: Request) -> None:
        self._note_url(request.url)

    def _note_socket(self, socket: WebSocket) -> None:
        self._note_url(socket.url)

    def _note_url(self, url: str) -> None:
        place = urlsplit(url)
        if place.scheme not in ("data", "blob") and place.netloc != self._host:
            self.seen.append(f"a request to another host: {url}")


class Person:
    """Somebody with a browser of their own, who looks at one gateway; with a token, they have logged in."""

    def __init__(
        self,
        chromium: Browser,
        gateway: GatewayProcess,
        *,
        token: str | None = None,
        size: dict[str, int] = DESK,
        scheme: Literal["light", "dark"] = "light",
    ) -> None:
        self.gateway = gateway
        kept: Any = [{"origin": gateway.url, "localStorage": [{"name": TOKEN, "value": token}]}] if token else []
        self.context = chromium.new_context(
            storage_state={"origins": kept},
            viewport={"width": size["width"], "height": size["height"]},
            color_scheme=scheme,
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.troubles = Troubles(urlsplit(gateway.url).netloc)
        self.troubles.watch(self.context)

    def open(self, place: str = "") -> Page:
        """Open a page in a tab of its own: `#/sessions`."""
        page = self.context.new_page()
        page.goto(f"{self.gateway.url}/{place}")
        return page

    def leave(self) -> None:
        """Close everything, and look at what went wrong."""
        self.context.close()
        self.troubles.check()


def settle(page: Page) -> None:
    """Wait until a view shows its rows."""
    expect(page.locator("#main h1:visible").first).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)
    if "message=" in page.url:
        expect(page.locator(".target")).to_be_in_viewport()


def findings(page: Page, axe: str) -> list[dict[str, Any]]:
    """List what keeps people out of this page, as far as axe finds it serious."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {preload: false, resultTypes: ['violations']})")
    return [
        {
            "rule": violation["id"],
            "help": violation["help"],
            "at": [f"{node['target']} {node['failureSummary']}" for node in violation["nodes"]][:5],
        }
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
