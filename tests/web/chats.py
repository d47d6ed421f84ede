"""A session as it stands on the page: its messages, its live reply, and the field below them."""

from __future__ import annotations

from urllib.parse import quote

from playwright.sync_api import Locator, Page, expect

from .browser import Person


class ChatPage:
    """The view of one session."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def messages(self) -> Locator:
        """The rows of the transcript."""
        return self.page.get_by_role("log", name="Messages").locator("article")

    @property
    def live(self) -> Locator:
        """The reply that is being written."""
        return self.page.locator(".message.live")

    @property
    def field(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message to", exact=False)

    def send(self, text: str) -> None:
        self.field.fill(text)
        self.field.press("Enter")

    def expect_said(self, *texts: str) -> None:
        """Wait until these are the messages, in this order and no other."""
        expect(self.messages.locator(".message-body")).to_have_text(list(texts))


def open_chat(person: Person, key: str) -> ChatPage:
    """Open a session in a tab of its own: `agent:main:tea`."""
    page = person.open(f"#/sessions/{quote(key, safe='')}")
    chat = ChatPage(page)
    expect(chat.field).to_be_visible()
    return chat
