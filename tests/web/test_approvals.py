"""A call that waits for an owner's word is asked about wherever one is on the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.stub_provider import Answer
from tests.support.stub_wires import Call

from .chats import open_chat
from .conftest import MakePerson
from .gateways import GatewayProcess, gateway_process


@pytest.fixture(scope="module")
def asking(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose agents have to ask before they list sessions."""
    settings = {"tools": {"approval": [{"tool": "sessions_list", "ask": "always"}]}}
    with gateway_process(tmp_path_factory.mktemp("asking"), lambda gateway: settings) as started:
        yield started


def _question(page: Page, text: str) -> None:
    expect(page.get_by_role("region", name="A call waits for your word")).to_contain_text(text)


def test_a_call_is_approved_and_another_denied(asking: GatewayProcess, make_person: MakePerson) -> None:
    chat = open_chat(make_person(asking, token=asking.token), "agent:main:one")
    asking.answer(Answer(text="I look.", calls=(Call("sessions_list", {"limit": 7}),)), "Here they are.")
    chat.send("List the sessions")
    _question(chat.page, "asks to call sessions_list")
    expect(chat.messages.last).to_contain_text("I look.")
    expect(chat.page.get_by_text("I look.")).to_have_count(1)
    _question(chat.page, '"limit": 7')
    chat.page.get_by_role("button", name="Approve").click()
    expect(chat.messages.last).to_contain_text("Here they are.")
    asking.answer(Answer(calls=(Call("sessions_list", {}),)), "Then not.")
    chat.send("And again")
    chat.page.get_by_role("button", name="Deny").click()

    expect(chat.messages.last).to_contain_text("Then not.")
    expect(chat.page.get_by_role("region", name="A call waits for your word")).to_have_count(0)


def test_a_run_that_waits_for_a_word_is_shown_as_waiting_everywhere(
    asking: GatewayProcess, make_person: MakePerson
) -> None:
    asking.answer(Answer(calls=(Call("sessions_list", {}),)), "Here they are.")
    run_id = asking.call("chat.send", sessionKey="agent:main:waits", message="List them")["runId"]
    page = make_person(asking, token=asking.token).open("#/runs?states=running")
    row = page.get_by_role("table", name="Runs").get_by_role("row").filter(has_text="main:waits")
    expect(row).to_contain_text("waiting")
    expect(row).to_contain_text("waits for an owner to allow a call")
    page.goto(f"{page.url.split('#')[0]}#/runs/{run_id}")
    expect(page.locator(".headline")).to_contain_text("waits for an owner to allow a call")
    page.goto(f"{page.url.split('#')[0]}#/sessions")
    session = page.get_by_role("list", name="Sessions").get_by_role("link").filter(has_text="waits")
    expect(session).to_contain_text("waiting")
    assert asking.call("runs.get", runId=run_id)["run"]["waitingFor"] == "approval"

    page.get_by_role("button", name="Approve").click()
    expect(session).not_to_contain_text("waiting")
    asking.call("agent.wait", runId=run_id)
    assert "waitingFor" not in asking.call("runs.get", runId=run_id)["run"]


def test_a_second_click_on_one_question_does_not_answer_the_next(
    asking: GatewayProcess, make_person: MakePerson
) -> None:
    for name in ("first", "second"):
        asking.answer(Answer(calls=(Call("sessions_list", {}),)))
        asking.call("chat.send", sessionKey=f"agent:main:{name}", message="List them")
        while not any(row["sessionKey"].endswith(name) for row in asking.call("approvals.list")["approvals"]):
            pass
    page = make_person(asking, token=asking.token).open("#/sessions/agent%3Amain%3Asecond")
    _question(page, "main:second asks")
    button = page.get_by_role("button", name="Approve")
    expect(button).to_be_enabled()
    button.dblclick()
    _question(page, "main:first asks")

    (waiting,) = asking.call("approvals.list", state="pending")["approvals"]
    assert waiting["sessionKey"] == "agent:main:first"
    asking.call("approvals.answer", id=waiting["id"], decision="deny")


def test_it_is_asked_elsewhere_on_the_page_too_and_after_a_kill(
    asking: GatewayProcess, make_person: MakePerson
) -> None:
    person = make_person(asking, token=asking.token)
    person.troubles.allow("WebSocket")
    page = person.open("#/health")
    expect(page.get_by_role("heading", name="Health")).to_be_visible()
    asking.answer(Answer(calls=(Call("sessions_list", {}),)), "Done.")
    sent = asking.call("chat.send", sessionKey="agent:writer:two", message="List them")
    _question(page, "writer")
    asking.kill()
    asking.start()
    _question(page, "writer")
    page.get_by_role("button", name="Always").click()
    expect(page.get_by_role("region", name="A call waits for your word")).to_have_count(0)

    assert asking.call("agent.wait", runId=sent["runId"])["reply"] == "Done."
