"""Everything can be done with the keyboard alone, and focus is always somewhere that one sees."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from .browser import Person
from .chats import ChatPage
from .gateways import GatewayProcess


def focused(page: Page) -> str:
    """Name what has the focus."""
    name: str = page.evaluate(
        """() => {
            const it = document.activeElement;
            return it === document.body ? "" : it.getAttribute("aria-label") || it.innerText || it.tagName;
        }"""
    )
    return " ".join(name.split())


def tab_to(page: Page, name: str, *, most: int = 60) -> None:
    """Press Tab until something of this name has the focus."""
    for _ in range(most):
        if name in focused(page):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{name!r} cannot be reached, the last is {focused(page)!r}")


def test_from_the_login_to_a_stopped_reply_and_on_without_a_mouse(stranger: Person, gateway: GatewayProcess) -> None:
    gateway.call("agent.wait", runId=gateway.call("chat.send", sessionKey="main", message="hello")["runId"])
    page = stranger.open()
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.insert_text(gateway.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("list", name="Sessions")).to_be_visible()

    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search sessions")).to_be_focused()
    tab_to(page, "You said: hello")
    page.keyboard.press("Enter")
    chat = ChatPage(page)
    expect(chat.field).to_be_focused()

    gateway.hold("It begins ", "and ends.")
    page.keyboard.type("Tell me a story")
    page.keyboard.press("Enter")
    expect(chat.live).to_contain_text("It begins")
    page.keyboard.press("Escape")
    expect(page.get_by_text("The run was stopped.")).to_be_visible()

    page.keyboard.press("ArrowUp")
    expect(chat.field).to_have_value("Tell me a story")
    for place in ("Runs", "Health"):
        page.evaluate("document.activeElement.blur()")
        tab_to(page, place)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=place, level=1)).to_be_visible()


def test_the_arrows_go_through_the_list(person: Person, gateway: GatewayProcess) -> None:
    for name in ("a", "b", "c"):
        sent = gateway.call("chat.send", sessionKey=f"agent:writer:arrow-{name}", message="hello")
        gateway.call("agent.wait", runId=sent["runId"])
    page = person.open()
    page.get_by_role("list", name="Sessions").get_by_role("link").first.focus()
    first = focused(page)
    page.keyboard.press("j")
    page.wait_for_function("before => !document.activeElement.innerText.startsWith(before)", arg=first.split(" ")[0])
    assert "arrow-b" in focused(page)
    page.keyboard.press("ArrowUp")
    page.wait_for_function("name => document.activeElement.innerText.includes(name)", arg="arrow-c")


def test_the_search_lets_go_of_the_keyboard(person: Person, gateway: GatewayProcess) -> None:
    for name in ("left", "right"):
        sent = gateway.call("chat.send", sessionKey=f"agent:writer:find-{name}", message="hello")
        gateway.call("agent.wait", runId=sent["runId"])
    page = person.open()
    rows = page.get_by_role("list", name="Sessions").get_by_role("link")
    expect(rows.filter(has_text="find-left")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("find-left")
    page.keyboard.press("ArrowDown")
    expect(rows.filter(has_text="find-left")).to_be_focused()

    page.keyboard.press("/")
    page.keyboard.type("find-right")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="find-right")).to_be_visible()

    field = page.get_by_role("searchbox", name="Search sessions")
    field.focus()
    page.keyboard.press("Escape")
    expect(field).to_have_value("")
    expect(rows.filter(has_text="find-right")).to_be_focused()
    page.keyboard.press("j")
    expect(rows.filter(has_text="find-left")).to_be_focused()


def test_a_dialog_keeps_the_focus_and_gives_it_back(person: Person) -> None:
    page = person.open()
    button = page.get_by_role("button", name="New chat")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")

    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()


def test_the_skip_link_leads_past_the_navigation(person: Person) -> None:
    page = person.open("#/runs")
    expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.get_by_role("main")).to_be_focused()
