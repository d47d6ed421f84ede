"""Exchanges: two sessions side by side, their turns, what was announced, and the map of all."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.support.stub_provider import Answer, Asked, Call

from .browser import Person
from .chats import open_chat
from .gateways import GatewayProcess, said

ASKED = "agent:main:desk:group:hedgehogs"


def play(asked: Asked) -> Answer:
    """Play both sides: the writer asks, main answers, the writer has one more question, and that is all."""
    text = said(asked)
    if asked.messages[-1]["role"] == "tool":
        return Answer(text="Now I know.")
    if "announce step" in text:
        return Answer(text="Hedgehogs were discussed.")
    if "reply-back turn 1" in text:
        return Answer(text="And in winter?")
    if "reply-back turn 2" in text:
        return Answer(text="In winter they *sleep*.")
    if "reply-back turn" in text:
        return Answer(text="REPLY_SKIP")
    if "What do hedgehogs eat" in text:
        return Answer(text="What they find:\n\n1. beetles\n2. worms")
    arguments = {"sessionKey": ASKED, "message": "What do hedgehogs eat?", "timeoutSeconds": 20}
    return Answer(calls=(Call("sessions_send", arguments),))


def exchange(gateway: GatewayProcess) -> str:
    """Let the writer ask a session with a chat, and wait until all is said; returns the id of the exchange."""
    gateway.write("desk", chatType="group", chatId="Hedgehogs", messageId="in-1", text="hello", mentioned=True)
    gateway.rest()
    gateway.stub.reply = play
    gateway.call("chat.send", sessionKey="agent:writer:main", message="Ask", idempotencyKey="hedgehogs")
    gateway.rest()
    return str(gateway.call("exchanges.list", limit=1)["exchanges"][0]["id"])


def test_an_exchange_is_a_conversation_in_two_columns_with_its_turns_and_its_end(
    person: Person, gateway: GatewayProcess
) -> None:
    id = exchange(gateway)
    page = person.open(f"#/exchanges/{id}")
    talk = page.get_by_role("list", name="Conversation")

    steps = talk.locator("li.said")
    expect(steps).to_have_count(6)
    for n, (side, text) in enumerate(
        [
            ("Requester", "What do hedgehogs eat?"),
            ("Target", "beetles"),
            ("Requester", "And in winter?"),
            ("Target", "In winter they sleep."),
            ("Requester", "nothing more to say"),
        ]
    ):
        expect(steps.nth(n)).to_contain_text(side)
        expect(steps.nth(n)).to_contain_text(text)
    expect(steps.nth(5)).to_contain_text("Hedgehogs were discussed.")
    expect(talk.locator(".receipt-line")).to_contain_text("sent")
    numbered = steps.nth(1).locator(".bubble li").first
    assert numbered.evaluate("item => getComputedStyle(item).listStyleType") == "decimal"
    left, right = steps.nth(0).bounding_box(), steps.nth(1).bounding_box()
    assert left is not None and right is not None
    assert left["x"] < right["x"]
    expect(page.get_by_text("REPLY_SKIP")).to_have_count(0)


def test_in_a_transcript_the_other_agent_is_read_as_markdown_and_control_words_are_nowhere_in_sight(
    person: Person, gateway: GatewayProcess
) -> None:
    exchange(gateway)
    chat = open_chat(person, "agent:writer:main")
    turn = chat.messages.filter(has_text="turn 3").last
    expect(turn.locator("em")).to_have_text("sleep")
    expect(chat.page.get_by_text("nothing more to say").last).to_be_visible()

    row = chat.page.get_by_role("list", name="Sessions").locator("a", has_text="writer").first
    expect(row).to_contain_text("In winter they")
    expect(row).not_to_contain_text("REPLY_SKIP")


def test_exchanges_are_listed_filtered_and_opened(person: Person, gateway: GatewayProcess) -> None:
    id = exchange(gateway)
    page = person.open("#/exchanges")
    row = page.get_by_role("table", name="Exchanges").get_by_role("row").filter(has_text="What do hedgehogs eat?")
    expect(row.first).to_contain_text("writer")
    page.get_by_role("button", name="Going on").click()
    expect(page.get_by_text("No exchange is like that")).to_be_visible()
    page.get_by_role("button", name="Over").click()
    expect(row.first.get_by_role("link", name="What do hedgehogs eat?")).to_have_attribute("href", f"#/exchanges/{id}")
    row.first.focus()
    row.first.press("Enter")

    expect(page.get_by_role("list", name="Conversation")).to_be_visible()
    assert page.url.endswith(id)


def test_the_map_counts_who_talked_to_whom_and_leads_to_their_exchanges(
    person: Person, gateway: GatewayProcess
) -> None:
    exchange(gateway)
    page = person.open("#/map")
    table = page.get_by_role("table", name="Who talked to whom")
    row = table.get_by_role("row").filter(has_text="writer")

    expect(row).to_be_visible()
    expect(page.get_by_role("group", name="Picture of who talked to whom", exact=False)).to_be_visible()
    row.get_by_role("link", name="see the exchanges").click()
    expect(page.get_by_role("table", name="Exchanges")).to_contain_text("What do hedgehogs eat?")
