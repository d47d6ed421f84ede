"""Two gateways on one database: the page of one shows what runs on the other, as that one's own page does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.postgres import new_database
from tests.support.stub_provider import Answer, Call

from .chats import ChatPage, open_chat
from .conftest import MakePerson
from .gateways import GatewayProcess, gateway_process


class Two(NamedTuple):
    """The gateway whose page is looked at, and the one that works."""

    here: GatewayProcess
    there: GatewayProcess


@pytest.fixture(scope="module")
def two(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    shared = {
        "database": {"url": new_database()},
        "cluster": {"leaseSeconds": 30},
        "tools": {
            "sessions": {"visibility": "all"},
            "agentToAgent": {"enabled": True},
            "approval": [{"tool": "sessions_list", "ask": "always"}],
        },
    }
    with (
        gateway_process(tmp_path_factory.mktemp("here"), lambda gateway: shared) as here,
        gateway_process(tmp_path_factory.mktemp("there"), lambda gateway: shared) as there,
    ):
        while len(here.call("status")["gateways"]) < 2:
            pass
        yield Two(here, there)


def opened(two: Two, make_person: MakePerson, key: str) -> ChatPage:
    """Look at a session that the other gateway has answered in."""
    for_it = two.there.call("chat.send", sessionKey=key, message="hello")
    two.there.call("agent.wait", runId=for_it["runId"], timeoutMs=20_000)
    chat = open_chat(make_person(two.here, token=two.here.token), key)
    chat.expect_said("hello", "You said: hello")
    return chat


def test_a_reply_is_seen_as_it_is_written_by_another_gateway(two: Two, make_person: MakePerson) -> None:
    chat = opened(two, make_person, "agent:main:streaming")
    held = two.there.hold("It rains ", "in Bergen.")
    two.there.call("chat.send", sessionKey="agent:main:streaming", message="What is the weather?")
    expect(chat.live).to_contain_text("It rains")
    expect(chat.live).not_to_contain_text("Bergen")
    chat.page.reload()
    expect(chat.messages).to_have_count(3)
    held.release()

    chat.expect_said("hello", "You said: hello", "What is the weather?", "It rains in Bergen.")
    expect(chat.live).to_have_count(0)
    chat.page.reload()
    chat.expect_said("hello", "You said: hello", "What is the weather?", "It rains in Bergen.")


def test_a_message_from_the_page_is_answered_where_its_session_is_at_work(two: Two, make_person: MakePerson) -> None:
    chat = opened(two, make_person, "agent:main:busy")
    held = two.there.hold("One ", "moment.")
    two.there.call("chat.send", sessionKey="agent:main:busy", message="Wait")
    expect(chat.live).to_contain_text("One")
    chat.send("and now?")
    held.release()

    chat.expect_said("hello", "You said: hello", "Wait", "One moment.", "and now?", "You said: and now?")


def test_a_tool_that_another_gateway_uses_is_shown_once(two: Two, make_person: MakePerson) -> None:
    two.there.call("agent.wait", runId=two.there.call("chat.send", sessionKey="agent:writer:x", message="hi")["runId"])
    chat = opened(two, make_person, "agent:main:tooled")
    ask = Call("sessions_send", {"sessionKey": "agent:writer:x", "message": "and now?", "timeoutSeconds": 20})
    two.there.answer(Answer(text="I ask.", calls=(ask,)))
    held = two.there.hold("It ", "is so.")
    two.there.call("chat.send", sessionKey="agent:main:tooled", message="Ask the writer")
    expect(chat.live).to_contain_text("using sessions_send")

    expect(chat.page.locator(".tool-name")).to_have_count(1)
    expect(chat.page.get_by_role("log", name="Messages").get_by_text("I ask.")).to_have_count(1)
    held.release()
    expect(chat.live).to_have_count(0)


def test_a_reply_of_another_gateway_is_stopped_and_what_was_written_stays(two: Two, make_person: MakePerson) -> None:
    chat = opened(two, make_person, "agent:main:stopped")
    two.there.hold("I begin ", "and go on.")
    two.there.call("chat.send", sessionKey="agent:main:stopped", message="Tell me a story")
    expect(chat.live).to_contain_text("I begin")
    chat.page.get_by_role("button", name="Stop the run (Esc)").click()

    expect(chat.live).to_have_count(0)
    expect(chat.page.get_by_text("The run was stopped.")).to_be_visible()
    expect(chat.messages.last).to_contain_text("I begin")


def test_a_call_that_waits_on_another_gateway_is_approved(two: Two, make_person: MakePerson) -> None:
    chat = opened(two, make_person, "agent:main:asking")
    two.there.answer(Answer(text="I look.", calls=(Call("sessions_list", {"limit": 7}),)), "Here they are.")
    two.there.call("chat.send", sessionKey="agent:main:asking", message="List the sessions")
    _question(chat.page, "asks to call sessions_list")
    chat.page.get_by_role("button", name="Approve").click()

    expect(chat.messages.last).to_contain_text("Here they are.")
    expect(chat.page.get_by_role("region", name="A call waits for your word")).to_have_count(0)


def _question(page: Page, text: str) -> None:
    expect(page.get_by_role("region", name="A call waits for your word")).to_contain_text(text)
