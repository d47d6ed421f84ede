"""A token that may only read: everything is seen, and what cannot be done says why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.far_end import Fault

from .browser import Person
from .chats import ChatPage
from .conftest import MakePerson
from .gateways import GatewayProcess


@pytest.fixture(scope="module")
def reader_token(gateway: GatewayProcess) -> Iterator[str]:
    yield str(gateway.call("tokens.create", scopes=["read"])["token"])


@pytest.fixture
def reader(make_person: MakePerson, gateway: GatewayProcess, reader_token: str) -> Person:
    return make_person(gateway, token=reader_token)


def expect_off(button: Locator) -> None:
    """Expect that something cannot be pressed, and says which scope is missing."""
    expect(button).to_have_attribute("aria-disabled", "true")
    title = button.get_attribute("title") or ""
    assert "operator." in title or "only read" in title, title


def test_who_may_only_read_sees_the_conversation_and_cannot_write(reader: Person, gateway: GatewayProcess) -> None:
    run = gateway.call("chat.send", sessionKey="main", message="hello")["runId"]
    gateway.call("agent.wait", runId=run)
    page = reader.open("#/sessions/agent%3Amain%3Amain")
    chat = ChatPage(page)

    chat.expect_said("hello", "You said: hello")
    expect(chat.field).to_be_disabled()
    expect(chat.field).to_have_attribute("placeholder", "This token may only read.")
    page.get_by_role("button", name="Session menu").click()
    for name in ("Spawn a sub-agent", "Send as this session", "Change settings", "Reset", "Archive"):
        expect_off(page.get_by_role("menuitem", name=name))


def press(page: Page, button: Locator) -> None:
    """Press what is off: it must do nothing."""
    expect_off(button)
    button.click(force=True)
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_what_cannot_be_done_is_disabled_with_the_reason(reader: Person, gateway: GatewayProcess) -> None:
    gateway.call("cron.add", id="daily", schedule="0 3 * * *", message="count")
    gateway.tell_far_end(Fault(400))
    gateway.call("send", channel="desk", to="nowhere", message="lost")
    page = reader.open("#/jobs")
    press(page, page.get_by_role("button", name="Add a job"))
    press(page, page.get_by_role("article", name="daily").get_by_role("button", name="Run now"))
    page.goto(f"{gateway.url}/#/agents")
    press(page, page.get_by_role("article", name="main").get_by_role("button", name="Spawn a sub-agent"))
    page.goto(f"{gateway.url}/#/deliveries")
    trouble = page.get_by_role("region", name="Deliveries that are failed")
    press(page, trouble.get_by_role("button", name="Drop"))
    press(page, trouble.get_by_role("button", name="again"))

    assert gateway.call("deliveries.list", state="failed")["count"] == 1


def test_why_not_explains_a_refusal_in_place(person: Person, gateway: GatewayProcess) -> None:
    gateway.call("chat.send", sessionKey="agent:writer:quiet", message="hello")
    gateway.call("sessions.patch", key="agent:writer:quiet", sendPolicy="deny")
    page = person.open("#/sessions/agent%3Awriter%3Aquiet")
    page.get_by_role("button", name="Session menu").click()
    page.get_by_role("menuitem", name="Why not?").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("radio", name="the operator").check()
    dialog.get_by_label("To", exact=True).fill("agent:writer:quiet")

    expect(dialog.get_by_role("listitem").filter(has_text="sessions_history")).to_contain_text("allowed")
    denied = dialog.get_by_role("listitem").filter(has_text="sessions_send")
    expect(denied).to_contain_text("denied")
    expect(denied).to_contain_text("sendPolicy")


def test_the_settings_of_a_session_are_changed(person: Person, gateway: GatewayProcess) -> None:
    gateway.call("chat.send", sessionKey="agent:writer:renamed", message="hello")
    page = person.open("#/sessions/agent%3Awriter%3Arenamed")
    page.get_by_role("button", name="Session menu").click()
    page.get_by_role("menuitem", name="Change settings").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Display name").fill("The new name")
    dialog.get_by_role("button", name="Save").click()

    expect(page.get_by_role("heading", name="The new name")).to_be_visible()
    session = gateway.call("sessions.describe", key="agent:writer:renamed")["session"]
    assert session["displayName"] == "The new name"


def test_a_message_is_sent_as_the_session_shown_and_answered_in_place(person: Person, gateway: GatewayProcess) -> None:
    gateway.answer("I am the researcher.")
    page = person.open("#/sessions/agent%3Awriter%3Amain")
    page.get_by_role("button", name="Session menu").click()
    page.get_by_role("menuitem", name="Send as this session").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill("agent:researcher:main")
    dialog.get_by_role("textbox", name="Message").fill("Who are you?")
    dialog.get_by_role("button", name="Send", exact=True).click()

    expect(dialog.get_by_label("Outcome")).to_contain_text("I am the researcher.")
    dialog.get_by_role("link", name="See the exchange").click()
    expect(page.get_by_role("list", name="Conversation")).to_contain_text("Who are you?")
