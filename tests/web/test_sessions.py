"""The list of sessions: live, filtered, searched; and the tree of who spawned whom."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.support.stub_provider import Answer, Asked, Call

from .browser import Person
from .chats import ChatPage, open_chat
from .gateways import GatewayProcess, said


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("list", name="Sessions").get_by_role("listitem").filter(has_text=name)


def talk(gateway: GatewayProcess, key: str, text: str) -> None:
    """Let a session answer something."""
    run = gateway.call("chat.send", sessionKey=key, message=text)["runId"]
    gateway.call("agent.wait", runId=run, timeoutMs=15_000)


def test_a_session_is_listed_with_what_was_said_last_its_tokens_and_cost_and_opens(
    person: Person, gateway: GatewayProcess
) -> None:
    gateway.answer(Answer(text="All quiet.", input_tokens=1_000_000, output_tokens=100_000))
    talk(gateway, "agent:writer:listed", "How is it?")
    page = person.open()
    listed = row(page, "listed")

    for text in ("All quiet.", "idle", "1.1m", "$4.50"):
        expect(listed).to_contain_text(text)
    listed.get_by_role("link").click()
    ChatPage(page).expect_said("How is it?", "All quiet.")


def test_the_list_moves_by_itself_as_sessions_speak(person: Person, gateway: GatewayProcess) -> None:
    page = person.open()
    talk(gateway, "agent:main:first", "one")
    talk(gateway, "agent:main:second", "two")
    rows = page.get_by_role("list", name="Sessions").get_by_role("listitem")
    expect(rows.nth(0)).to_contain_text("You said: two")
    held = gateway.hold("Three ", "is here.")
    gateway.call("chat.send", sessionKey="agent:main:first", message="three")

    expect(rows.nth(0)).to_contain_text("first")
    expect(rows.nth(0)).to_contain_text("running")
    held.release()
    expect(rows.nth(0)).to_contain_text("Three is here.")
    expect(rows.nth(0)).to_contain_text("idle")


def test_a_search_finds_messages_of_all_sessions_and_opens_one_in_its_transcript(
    person: Person, gateway: GatewayProcess
) -> None:
    page = person.open()
    talk(gateway, "agent:researcher:otter", "the walrus ate all oysters")
    page.get_by_role("searchbox", name="Search sessions").fill("walrus oyst")
    hit = page.get_by_role("list", name="Messages found").get_by_role("link").filter(has_text="otter").last
    expect(hit).to_contain_text("the walrus ate all oysters")
    hit.click()
    expect(page.locator("[id^=m-]").filter(has_text="the walrus ate all oysters").first).to_be_visible()


def test_a_search_opens_what_was_said_before_a_reset_and_the_way_back_leads_to_the_present(
    person: Person, gateway: GatewayProcess
) -> None:
    page = person.open()
    key = "agent:researcher:heron"
    talk(gateway, key, "the narwhal lost its compass")
    gateway.call("sessions.reset", key=key)
    talk(gateway, key, "a new day")
    page.get_by_role("searchbox", name="Search sessions").fill("narwhal comp")
    hit = page.get_by_role("list", name="Messages found").get_by_role("link").filter(has_text="earlier").last
    expect(hit).to_contain_text("the narwhal lost its compass")
    hit.click()
    expect(page.locator("[id^=m-]").filter(has_text="the narwhal lost its compass").first).to_be_visible()
    expect(page.get_by_role("textbox", name="Message")).to_have_count(0)
    page.get_by_role("link", name="The present one").click()
    expect(page.locator("[id^=m-]").filter(has_text="a new day").first).to_be_visible()
    page.get_by_role("link", name="The earlier one").click()
    expect(page.locator("[id^=m-]").filter(has_text="the narwhal lost its compass").first).to_be_visible()


def test_filters_and_search_narrow_the_list_and_stay_after_a_reload(person: Person, gateway: GatewayProcess) -> None:
    talk(gateway, "agent:main:hedgehog", "hello")
    talk(gateway, "agent:researcher:badger", "hello")
    page = person.open()
    page.get_by_role("combobox", name="Agent").select_option("researcher")
    expect(row(page, "badger")).to_be_visible()
    expect(row(page, "hedgehog")).to_have_count(0)
    page.reload()
    expect(row(page, "badger")).to_be_visible()
    expect(row(page, "hedgehog")).to_have_count(0)
    page.get_by_role("searchbox", name="Search sessions").fill("no animal of this name")
    page.get_by_role("button", name="Clear the filters").click()
    page.get_by_role("searchbox", name="Search sessions").fill("hedgehog")

    expect(row(page, "hedgehog")).to_be_visible()
    expect(row(page, "badger")).to_have_count(0)


def test_a_chat_is_started_with_a_session_of_its_own(person: Person) -> None:
    page = person.open()
    page.get_by_role("button", name="New chat").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Or to a session of its own").fill("fresh")
    dialog.get_by_label("Of the agent").select_option("writer")
    dialog.get_by_role("button", name="Open").click()
    chat = ChatPage(page)
    chat.send("the first word")

    chat.expect_said("the first word", "You said: the first word")
    expect(row(page, "fresh")).to_contain_text("the first word")
    assert page.url.endswith("agent%3Awriter%3Afresh")


def work(asked: Asked) -> Answer:
    """Be a sub-agent that reports what it found."""
    text = said(asked)
    return Answer(text="There are seven hedgehogs." if "announce step" in text else "I counted seven.")


def test_a_sub_agent_is_spawned_and_watched_in_the_tree_until_its_result_is_there(
    person: Person, gateway: GatewayProcess
) -> None:
    gateway.stub.reply = work
    talk(gateway, "agent:main:parent", "hello")
    chat = open_chat(person, "agent:main:parent")
    page = chat.page
    held = gateway.hold("I count: ", "seven.")
    page.get_by_role("button", name="Session menu").click()
    page.get_by_role("menuitem", name="Spawn a sub-agent").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Task").fill("Count the hedgehogs")
    dialog.get_by_label("Label").fill("counter")
    dialog.get_by_role("button", name="Spawn", exact=True).click()
    expect(dialog.get_by_label("Outcome")).to_contain_text("accepted")
    dialog.get_by_role("button", name="Close", exact=True).last.click()
    page.get_by_role("button", name="Tree", exact=True).click()
    child = page.get_by_role("tree", name="Spawn tree").get_by_role("treeitem").filter(has_text="counter")
    expect(child).to_contain_text("running")
    expect(child.get_by_role("link")).to_have_attribute("title", "Count the hedgehogs")
    held.release()

    expect(child).to_contain_text("ok")
    expect(child).to_contain_text("receipt:")
    assert re.search(r"\$\d", child.inner_text())
    child.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1).filter(has_text="counter")).to_be_visible()
    expect(page.get_by_text("spawned by")).to_be_visible()


def test_the_tree_folds_and_unfolds(person: Person, gateway: GatewayProcess) -> None:
    gateway.stub.reply = work
    talk(gateway, "agent:main:trunk", "hello")
    task = {"task": "count", "label": "leaf"}
    gateway.call("tools.invoke", tool="sessions_spawn", args=task, sessionKey="agent:main:trunk")
    page = person.open("#/sessions?tree=1")
    tree = page.get_by_role("tree", name="Spawn tree")
    leaf = tree.get_by_role("treeitem").filter(has_text="leaf")
    expect(leaf).to_be_visible()
    trunk = tree.get_by_role("treeitem").filter(has_text="trunk")
    trunk.get_by_role("button", name="Fold").click()

    expect(leaf).to_have_count(0)
    trunk.get_by_role("link").focus()
    page.keyboard.press("ArrowRight")
    expect(leaf).to_be_visible()


def test_who_spoke_is_unmistakable_and_the_machinery_is_one_click_away(person: Person, gateway: GatewayProcess) -> None:
    def play(asked: Asked) -> Answer:
        text = said(asked)
        if asked.messages[-1]["role"] == "tool":
            return Answer(text="It is known.")
        if "announce step" in text:
            return Answer(text="ANNOUNCE_SKIP")
        if "reply-back turn" in text:
            return Answer(text="REPLY_SKIP")
        if "Who are you?" in text:
            return Answer(text="I am the writer.")
        arguments = {"sessionKey": "agent:writer:asked", "message": "Who are you?", "timeoutSeconds": 20}
        return Answer(calls=(Call("sessions_send", arguments),))

    gateway.stub.reply = play
    talk(gateway, "agent:writer:asked", "Who are you? I am a person")
    talk(gateway, "agent:main:asking", "Ask the writer")
    chat = open_chat(person, "agent:writer:asked")
    speakers = chat.messages.locator(".speaker")
    expect(speakers).to_have_text(["Operator", "writer", re.compile("asking"), "writer"])
    prompt = chat.messages.filter(has_text="announce step")
    expect(prompt).to_have_count(0)
    chat.page.get_by_role("button", name="Show the machinery").click()

    expect(prompt).to_be_visible()
    expect(chat.messages.last.locator(".message-body")).to_have_text("ANNOUNCE_SKIP")


def test_older_messages_are_loaded_found_and_linked_to(person: Person, gateway: GatewayProcess) -> None:
    talk(gateway, "agent:main:long", "the first message")
    with gateway.connected() as client:
        for n in range(250):
            client.call("chat.inject", sessionKey="agent:main:long", message=f"note number {n}")
    talk(gateway, "agent:main:long", "the last message")
    chat = open_chat(person, "agent:main:long")
    expect(chat.messages.last).to_contain_text("the last message")
    expect(chat.messages.filter(has_text="the first message")).to_have_count(0)
    chat.page.get_by_role("button", name="Search in this session").click()
    chat.page.get_by_role("searchbox", name="Search in this session").fill("the first message")
    chat.page.get_by_role("list", name="Matches").get_by_role("link").last.click()

    target = chat.page.locator(".message.target")
    expect(target).to_contain_text("the first message")
    expect(target).to_be_in_viewport()
    expect(chat.page.get_by_role("button", name="To the end")).to_be_visible()  # what is older is no news
    chat.page.reload()
    expect(target).to_be_in_viewport()
