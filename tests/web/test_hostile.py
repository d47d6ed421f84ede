"""Hostile text from people and models: none of it runs, and the page stays usable."""

from __future__ import annotations

from playwright.sync_api import expect

from .browser import Person
from .chats import open_chat
from .gateways import GatewayProcess

MARKUP = '<img src=x onerror="document.title=\'pwned\'"><script>document.title="pwned"</script><b>bold</b>'
LINKS = "\n\n".join(
    [
        "[a](javascript:document.title='pwned')",
        "[b](JaVaScRiPt:document.title='pwned')",
        "[c](data:text/html,<script>1</script>)",
        "[d](vbscript:1)",
        "<javascript:document.title='pwned'>",
        "![e](https://elsewhere.example/pixel.png)",
        "[ok](https://backchannel.example/docs)",
    ]
)
DEEP = {
    "quotes": "> " * 50_000 + "deep",
    "brackets": "[" * 50_000 + "deep" + "]" * 50_000,
    "stars": "*" * 50_000 + "deep" + "*" * 50_000,
    "lists": "\n".join("  " * n + "- deep" for n in range(400)),
    "fences": "```\ndeep\n" * 2_000,
    "backticks": "`" * 50_000 + " deep",
    "a table": "|a" * 20_000 + "|\n" + "|-" * 20_000 + "|\n" + "|deep" * 20_000 + "|",
    "entities": "&" * 50_000 + "deep",
    "links": "[deep](" * 20_000,
}


def test_markup_of_a_person_and_of_a_model_is_shown_as_it_was_typed(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:markup")
    gateway.answer(f"Here it is:\n\n{MARKUP}\n\nand `inline` {MARKUP}")
    chat.send(MARKUP)
    expect(chat.messages).to_have_count(2)

    for message in chat.messages.all():
        expect(message).to_contain_text("<img src=x onerror=")
        expect(message.locator(".message-body").locator("img, script, b, iframe")).to_have_count(0)
    assert "pwned" not in chat.page.title()


def test_links_lead_only_where_one_may_go_and_pictures_are_not_fetched(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:links")
    gateway.answer(LINKS)
    chat.send("links, please")
    expect(chat.messages).to_have_count(2)

    links = chat.messages.last.locator(".message-body a").all()
    assert [link.get_attribute("href") for link in links] == [
        "https://elsewhere.example/pixel.png",
        "https://backchannel.example/docs",
    ]
    assert all("noopener" in (link.get_attribute("rel") or "") for link in links)


def test_control_characters_and_direction_marks_are_made_visible(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:marks")
    gateway.answer("\x1b[31mred\x1b[0m and \u202egnp.exe\u202c and \u2066isolated\u2069 bell\x07")
    chat.send("marks, please")
    expect(chat.messages).to_have_count(2)

    shown = chat.messages.last.locator(".message-body").inner_text()
    assert "red" in shown and "gnp.exe" in shown
    for character in "\x1b\x07\u202e\u202c\u2066\u2069":
        assert character not in shown


def test_hostile_names_stay_in_their_place(person: Person, gateway: GatewayProcess) -> None:
    gateway.call("chat.send", sessionKey="agent:main:named", message="hello")
    gateway.call("sessions.patch", key="agent:main:named", displayName="<b>\u202eevil</b>\u2066")
    chat = open_chat(person, "agent:main:named")

    expect(chat.page.get_by_role("heading", level=1).filter(has_text="<b>")).to_be_visible()
    assert "\u202e" not in chat.page.locator("body").inner_text()


def test_a_megabyte_of_text_leaves_the_page_usable(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:long")
    gateway.answer("word " * 200_000)
    chat.send("a megabyte, please")
    expect(chat.messages).to_have_count(2)
    assert len(chat.messages.last.inner_text()) < 200_000
    chat.page.get_by_role("button", name="Show more").click()
    expect(chat.page.get_by_text("are left", exact=False)).to_be_visible()

    chat.send("still there?")
    expect(chat.messages).to_have_count(4)
    expect(chat.messages.last).to_contain_text("still there?")


def test_a_word_without_an_end_makes_no_horizontal_scroll(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:wide")
    gateway.answer("W" * 5_000 + "\n\n```\n" + "C" * 5_000 + "\n```\n\n| " + "T" * 3_000 + " |\n|---|\n| 1 |")
    chat.send("wide")
    expect(chat.messages).to_have_count(2)

    assert chat.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    inner = chat.page.locator(".log").evaluate("log => log.scrollWidth - log.clientWidth")
    assert inner <= 0


def test_what_is_nested_without_end_is_shown_and_the_page_goes_on(person: Person, gateway: GatewayProcess) -> None:
    for kind, text in DEEP.items():
        chat = open_chat(person, f"agent:main:deep-{kind.replace(' ', '-')}")
        gateway.answer(text, "Still here.")
        chat.send("deep, please")
        expect(chat.messages, kind).to_have_count(2)
        chat.send("still there?")
        expect(chat.messages.last, kind).to_contain_text("Still here.")
        chat.page.close()
