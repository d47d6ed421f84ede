"""OpenClaw's Control UI in a real browser, from the files of its package, on another origin than the gateway's."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, WebSocket, expect, sync_playwright

from tests.interop.conftest import Node
from tests.support.stub_provider import Answer
from tests.support.stub_wires import Call
from tests.web.browser import DESK, find_chromium
from tests.web.gateways import GatewayProcess, gateway_process

from .conftest import ASKING, let_ask
from .rows import shows
from .static import served

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PATIENCE_MS = 45_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=find_chromium())
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def origin(packages: Node) -> Iterator[str]:
    with served(packages.folder / "node_modules" / "openclaw" / "dist" / "control-ui") as at:
        yield at


@pytest.fixture(scope="module")
def gateway(origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    settings = {"gateway": {"controlUi": {"allowedOrigins": [origin]}}, **ASKING}
    with gateway_process(tmp_path_factory.mktemp("gateway"), lambda _: settings) as started:
        yield started


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(viewport={"width": DESK["width"], "height": DESK["height"]})
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext, origin: str, gateway: GatewayProcess) -> Iterator[Page]:
    """The page, logged in with a link that names the gateway and its token.

    It shows a session that is begun anew for each test: of a long one it draws only what is in view.
    """
    for key, text in (("main", "from before"), ("agent:main:beside", "what stands beside")):
        gateway.call("chat.send", sessionKey=key, message=text)
    gateway.rest()
    yield logged_in(context, origin, gateway)
    for key in ("agent:main:main", "agent:main:beside"):
        gateway.call("sessions.reset", key=key)


def logged_in(context: BrowserContext, origin: str, gateway: GatewayProcess) -> Page:
    return log_in(context.new_page(), origin, gateway)


def log_in(page: Page, origin: str, gateway: GatewayProcess) -> Page:
    page.goto(f"{origin}/?gatewayUrl={quote(gateway.url.replace('http:', 'ws:'), safe='')}#token={gateway.token}")
    page.get_by_role("button", name="Switch to").click()
    return page


class Frames:
    """Which methods a page asks for, and which of them were refused."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._asked: dict[str, str] = {}
        self.answered: set[str] = set()
        self.refused: set[str] = set()
        page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framesent", self._sent)
        socket.on("framereceived", self._received)

    def _sent(self, written: str | bytes) -> None:
        frame = json.loads(written)
        self._asked[frame["id"]] = frame["method"]

    def _received(self, written: str | bytes) -> None:
        frame = json.loads(written)
        if frame["type"] == "res":
            method = self._asked[frame["id"]]
            (self.answered if frame["ok"] else self.refused).add(method)

    def wait_for(self, method: str) -> None:
        """Wait until a method was answered or refused."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while method not in self.answered | self.refused:
            assert time.monotonic() < deadline, f"{method} was not asked for; refused: {self.refused}"
            self._page.wait_for_timeout(100)  # lets frames in


def say(page: Page, text: str) -> None:
    composer = page.get_by_role("textbox", name="Chat composer")
    composer.fill(text)
    composer.press("Enter")


def said(page: Page, text: str) -> Locator:
    """Find a message of the conversation: its text also stands in the list, and where screen readers are told of it."""
    return page.locator(".chat-bubble").get_by_text(text)


@shows("Control UI", "logging in, and the list of sessions")
def test_it_connects_and_lists_sessions(page: Page) -> None:
    expect(page.get_by_role("textbox", name="Chat composer")).to_be_visible()
    expect(page.get_by_text("what stands beside").first).to_be_visible()


@shows("Control UI", "a conversation: its history, a message, its reply")
def test_a_message_is_sent_and_answered(page: Page) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    say(page, "hello from the page")
    expect(said(page, "You said: hello from the page")).to_have_count(1)


@shows("Control UI", "searching messages")
def test_what_was_said_is_found(page: Page, origin: str) -> None:
    expect(page.get_by_role("textbox", name="Chat composer")).to_be_visible()
    page.goto(f"{origin}/sessions")
    search = page.get_by_placeholder("Search exact words")
    search.fill("Stands BESIDE")
    search.press("Enter")
    expect(page.get_by_text("Transcript matches")).to_be_visible()
    expect(page.get_by_text("You said: what stands beside")).to_be_visible()


@shows("Control UI", "aborting a run")
def test_a_run_is_aborted(page: Page, gateway: GatewayProcess) -> None:
    gateway.hold("never to end ", "ended")
    say(page, "wait for ever")
    expect(said(page, "never to end")).to_be_visible()
    page.get_by_role("button", name="Stop").first.click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    gateway.rest()
    assert gateway.call("runs.list", states=["aborted"])["runs"]


@shows("Control UI", "a tool call that waits for permission")
def test_a_call_that_waits_is_shown_and_allowed(page: Page, gateway: GatewayProcess) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    let_ask(gateway, "main")
    expect(page.get_by_text("May main call sessions_history?").last).to_be_visible()
    page.get_by_role("button", name="Allow once").first.click()
    expect(said(page, "so be it")).to_have_count(1)


@shows("Control UI", "a tool call, and the text before and after it")
def test_what_is_said_around_a_call_of_a_tool_is_shown_once(page: Page, gateway: GatewayProcess) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    gateway.answer(Answer(text="Let me look.", calls=(Call("sessions_list", {"limit": 7}),)), "There they are.")
    say(page, "which are there?")
    expect(said(page, "There they are.").last).to_be_visible()
    gateway.rest()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    say(page, "thank you")  # its answer comes after all that was told of the run before
    expect(said(page, "You said: thank you")).to_have_count(1)
    for text in ("Let me look.", "There they are."):
        expect(said(page, text)).to_have_count(1)


@shows("Control UI", "the report of a sub-agent")
def test_a_report_is_shown_once_as_the_words_of_another(page: Page, gateway: GatewayProcess) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    gateway.answer("found", "found", "you are welcome")
    args = {"task": "look", "agentId": "researcher"}
    gateway.call("tools.invoke", tool="sessions_spawn", args=args, sessionKey="agent:main:main")
    expect(said(page, "Result: found")).to_have_count(1)
    say(page, "thank you")
    expect(said(page, "you are welcome")).to_have_count(1)
    expect(said(page, "Result: found")).to_have_count(1)
    own = page.locator(".chat-group.user")
    expect(own.filter(has_text="thank you")).to_have_count(1)
    expect(own.filter(has_text="Result: found")).to_have_count(0)


@shows("Control UI", "reloading the page: no duplicates")
def test_nothing_is_shown_twice_after_the_page_is_loaded_anew(page: Page) -> None:
    say(page, "said once")
    expect(said(page, "You said: said once")).to_have_count(1)
    page.reload()
    expect(said(page, "You said: said once")).to_have_count(1)


@shows("Control UI", "staying logged in after a reload")
def test_the_page_is_still_logged_in_when_it_is_loaded_anew(page: Page, gateway: GatewayProcess) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    page.reload()
    expect(said(page, "You said: from before")).to_have_count(1)
    say(page, "still here")
    expect(said(page, "You said: still here")).to_have_count(1)
    assert gateway.call("device.pair.list")["paired"][-1]["connected"]
    assert "login refused" not in gateway.process.logged


@shows("Control UI", "staying logged in after a reload")
def test_every_tab_is_still_logged_in_after_a_restart(
    page: Page, context: BrowserContext, origin: str, gateway: GatewayProcess
) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    other = context.new_page()
    other.goto(origin)
    expect(said(other, "You said: from before")).to_have_count(1)
    gateway.kill()
    gateway.start()
    for tab in (page, other):
        say(tab, "after the restart")
        expect(said(tab, "You said: after the restart").last).to_be_visible()
        expect(tab.get_by_text("Server updated")).to_have_count(0)
        tab.reload()
        expect(said(tab, "You said: from before")).to_have_count(1)
    assert "login refused" not in gateway.process.logged


@shows("Control UI", "staying logged in after a reload")
def test_a_page_whose_token_was_revoked_asks_for_another(page: Page, gateway: GatewayProcess) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    page.reload()
    expect(said(page, "You said: from before")).to_have_count(1)
    for token in gateway.call("tokens.list")["tokens"]:
        gateway.call("tokens.revoke", id=token["id"])
    secret = page.get_by_role("textbox", name="Gateway secret")
    expect(secret).to_be_visible()
    page.reload()
    secret.fill(gateway.token)
    page.get_by_role("button", name="Connect").click()
    expect(said(page, "You said: from before")).to_have_count(1)
    page.reload()
    expect(said(page, "You said: from before")).to_have_count(1)


VIEWS = {
    "/agents": "agents.list",
    "/automations": "cron.list",
    "/plugins": "plugins.catalog.browse",
    "/systems": "system.info",
    "/logs": "logs.tail",
    "/usage": "sessions.usage",
    "/skills": "skills.search",
    "/skills/workshop": "skills.proposals.list",
    "/activity": "artifacts.list",
    "/settings/approvals": "approval.history",
    "/settings/updates": "update.status",
    "/settings/skills": "skills.library.list",
    "/settings/devices": "exec.approvals.get",
    "/settings/channels": "channels.pairing.list",
    "/settings/appearance": "themes.list",
    "/settings/connection": "system.info",
}
"""Views of the page, and what each asks for, or has asked for before."""
FORMS = {
    "/settings/ai-agents": "Global agent defaults",
    "/settings/mcp": "No MCP servers configured",
    "/settings/security": "Review gateway access",
    "/settings/infrastructure": "node host, discovery",
    "/settings/advanced": "Every remaining config section",
    "/settings/communications": "meeting capture",
    "/settings/automation": "Commands, hooks",
}
"""Views that are made of a schema of the configuration, of which there is none here, and what is read on each."""


@shows("Control UI", "agents, automations, plugins, systems, logs, approvals, updates, skills")
@shows("Control UI", "usage, activity, and settings: devices, channels, appearance, gateway, security and the like")
def test_views_ask_for_nothing_in_vain_and_show_no_error(
    context: BrowserContext, origin: str, gateway: GatewayProcess
) -> None:
    gateway.call("chat.send", sessionKey="main", message="something to show")
    gateway.rest()
    page = context.new_page()
    frames = Frames(page)
    log_in(page, origin, gateway)
    expect(page.get_by_role("textbox", name="Chat composer")).to_be_visible()
    frames.wait_for("sessions.companion.state")
    for address, method in VIEWS.items():
        go_to(page, address)
        frames.wait_for(method)
        page.wait_for_load_state("networkidle")
        expect(complaints(page), address).to_have_count(0)
    for address, text in FORMS.items():
        go_to(page, address)
        expect(page.get_by_text(text).last, address).to_be_visible()
        expect(complaints(page), address).to_have_count(0)
    assert frames.refused == set()


@shows("Control UI", "usage, activity, and settings: devices, channels, appearance, gateway, security and the like")
def test_what_sessions_have_used_is_shown(page: Page, gateway: GatewayProcess) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    used = gateway.call("sessions.usage", agentId="main", range="30d")["totals"]["totalTokens"]
    go_to(page, "/usage")
    expect(page.get_by_text(str(used), exact=True).first).to_be_visible()


@shows("Control UI", "usage, activity, and settings: devices, channels, appearance, gateway, security and the like")
def test_channels_are_listed_and_who_chooses_another_platform_is_told_where_to_set_it_up(page: Page) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    go_to(page, "/settings/channels")
    for name in ("desk", "door"):
        expect(page.get_by_role("button", name=f"{name} Open details Running")).to_be_visible()
    page.get_by_role("button", name="Set up").first.click()
    expect(page.get_by_text("`channels` in the gateway's configuration")).to_be_visible()
    expect(complaints(page)).to_have_count(0)


@shows("Control UI", "opening and reloading any of its addresses")
def test_it_is_loaded_at_every_address(page: Page, origin: str) -> None:
    expect(said(page, "You said: from before")).to_have_count(1)
    for address, method in {"/chat/main": "chat.startup", **VIEWS}.items():
        for load in (partial(page.goto, f"{origin}{address}"), page.reload):
            frames = Frames(page)
            load()
            frames.wait_for(method)
            assert method in frames.answered


@shows("Control UI", "opening and reloading any of its addresses")
@pytest.mark.parametrize("name", ["beside", "9fe58684c0b84fa0800ea3662a8e702a"])
def test_any_session_is_shown_again_when_its_page_is_loaded_anew(
    page: Page, origin: str, gateway: GatewayProcess, name: str
) -> None:
    gateway.call("chat.send", sessionKey=f"agent:main:{name}", message="of this one")
    gateway.rest()
    expect(said(page, "You said: from before")).to_have_count(1)
    for load in (partial(page.goto, f"{origin}/chat/main/{name}"), page.reload):
        load()
        expect(said(page, "You said: of this one")).to_have_count(1)
        expect(complaints(page)).to_have_count(0)


@shows("Control UI", "the other pages of settings")
def test_pages_of_settings_ask_for_nothing_in_vain(
    context: BrowserContext, origin: str, gateway: GatewayProcess
) -> None:
    page = context.new_page()
    frames = Frames(page)
    log_in(page, origin, gateway)
    expect(page.get_by_role("textbox", name="Chat composer")).to_be_visible()
    go_to(page, "/settings/search")
    frames.wait_for("webSearch.status")
    assert "webSearch.status" not in frames.refused


def go_to(page: Page, address: str) -> None:
    """Go to another view without loading the page anew."""
    page.evaluate("at => { history.pushState({}, '', at); dispatchEvent(new PopStateEvent('popstate')); }", address)


COMPLAINTS = re.compile(
    "unknown method|Schema unavailable|previews are unavailable|could not be refreshed|refresh failed|Could not load"
)


def complaints(page: Page) -> Locator:
    """Find what people are told of methods that are not there."""
    return page.get_by_text(COMPLAINTS).locator("visible=true")


@shows("Control UI", "another origin is refused")
def test_another_origin_is_told_so(context: BrowserContext, packages: Node, gateway: GatewayProcess) -> None:
    with served(packages.folder / "node_modules" / "openclaw" / "dist" / "control-ui") as elsewhere:
        page = logged_in(context, elsewhere, gateway)
        expect(page.get_by_text("origin", exact=False).first).to_be_visible(timeout=15_000)
