"""Writing to a session: the reply streams, is stopped and retried, and nothing is lost or doubled."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.support.stub_provider import Answer, Call, Fault, Hang

from .browser import Person
from .chats import open_chat
from .conftest import MakePerson
from .gateways import GatewayProcess


def test_a_reply_is_seen_as_it_is_written(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:streaming")
    held = gateway.hold("It rains ", "in Bergen.")
    chat.send("What is the weather?")
    expect(chat.live).to_contain_text("It rains")
    expect(chat.live).not_to_contain_text("Bergen")
    expect(chat.messages).to_have_count(1)
    held.release()

    chat.expect_said("What is the weather?", "It rains in Bergen.")
    expect(chat.live).to_have_count(0)
    expect(chat.field).to_have_value("")
    expect(chat.field).to_be_focused()


def test_a_tool_that_is_at_work_is_shown_once(person: Person, gateway: GatewayProcess) -> None:
    gateway.call("agent.wait", runId=gateway.call("chat.send", sessionKey="agent:writer:busy", message="hi")["runId"])
    chat = open_chat(person, "agent:main:tooled")
    ask = Call("sessions_send", {"sessionKey": "agent:writer:busy", "message": "and now?", "timeoutSeconds": 20})
    gateway.answer(Answer(text="I ask.", calls=(ask,)))
    held = gateway.hold("It ", "is so.")
    chat.send("Ask the writer")
    expect(chat.live).to_contain_text("using sessions_send")

    expect(chat.page.locator(".tool-name")).to_have_count(1)
    expect(chat.page.get_by_role("log", name="Messages").get_by_text("I ask.")).to_have_count(1)
    held.release()
    expect(chat.live).to_have_count(0)


def test_the_conversation_is_there_after_a_reload(person: Person) -> None:
    chat = open_chat(person, "agent:main:reloaded")
    chat.send("remember this")
    chat.expect_said("remember this", "You said: remember this")
    chat.page.reload()

    chat.expect_said("remember this", "You said: remember this")


def test_a_reply_is_stopped_and_what_was_written_stays(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:stopped")
    gateway.hold("I begin ", "and go on.")
    chat.send("Tell me a story")
    expect(chat.live).to_contain_text("I begin")
    chat.page.get_by_role("button", name="Stop the run (Esc)").click()

    expect(chat.live).to_have_count(0)
    expect(chat.page.get_by_text("The run was stopped.")).to_be_visible()
    expect(chat.messages.last).to_contain_text("I begin")


def test_a_reply_that_failed_says_why_and_is_retried(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:failed")
    gateway.answer(Fault(400, "the model has a cold"), "I am well again.")
    chat.send("How are you?")
    expect(chat.page.get_by_text("the model has a cold", exact=False)).to_be_visible()
    chat.page.get_by_role("button", name="Retry").click()

    chat.expect_said("How are you?", "I am well again.")
    expect(chat.page.get_by_text("the model has a cold", exact=False)).to_have_count(0)


def test_a_message_of_several_lines_is_sent_as_it_was_written(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:lines")
    chat.field.type("first")
    chat.field.press("Shift+Enter")
    chat.field.type("second")
    chat.field.press("Enter")

    chat.expect_said("first\nsecond", "You said: first\nsecond")
    (asked, _) = gateway.call("chat.history", sessionKey="agent:main:lines")["messages"]
    assert asked["content"][0]["text"] == "first\nsecond"


def test_what_is_long_is_folded_and_copied_whole(person: Person) -> None:
    chat = open_chat(person, "agent:main:pasted")
    pasted = "\n".join(f"line {n} of a log" for n in range(400))
    chat.send(pasted)
    first = chat.messages.first
    expect(first.get_by_role("button", name="Show more")).to_be_visible()
    expect(first).not_to_contain_text("line 399")
    first.hover()
    first.get_by_role("button", name="Copy message").click()
    expect(first.get_by_role("button", name="Copied")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == pasted
    first.get_by_role("button", name="Show more").click()

    expect(first).to_contain_text("line 399")


def test_the_rest_of_a_long_reply_is_shown_as_its_beginning_is(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:essay")
    prose = "\n\n".join(f"**Point {n}** is as long as points are." for n in range(400))
    code = "\n".join(f"step_{n} = '**not bold**'" for n in range(600))
    gateway.answer(f"{prose}\n\n```python\n{code}\n```\n\n**The end.**")
    chat.send("an essay, please")
    reply = chat.messages.last
    reply.get_by_role("button", name="Show more").click()

    expect(reply.locator("strong").last).to_have_text("The end.")
    expect(reply.locator("pre").last).to_contain_text("step_599 = '**not bold**'")
    assert "**Point" not in reply.inner_text() and "```" not in reply.inner_text()


def test_a_draft_survives_a_reload_and_another_session(person: Person) -> None:
    chat = open_chat(person, "agent:main:drafted")
    chat.field.fill("half a thought")
    chat.page.reload()
    expect(chat.field).to_have_value("half a thought")
    chat.page.goto(chat.page.url.replace("drafted", "another"))
    expect(chat.field).to_have_value("")
    chat.page.go_back()

    expect(chat.field).to_have_value("half a thought")


def test_commands_are_completed_and_answered_at_once(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:commanded")
    chat.field.type("/")
    offered = chat.page.get_by_role("listbox", name="Commands")
    expect(offered.get_by_role("option")).to_have_count(len(gateway.call("commands.list")["commands"]))
    chat.field.press("ArrowUp")
    expect(offered.get_by_role("option").last).to_be_in_viewport()
    chat.field.type("sta")
    expect(offered.get_by_role("option")).to_contain_text("/status")
    chat.field.press("Tab")
    expect(chat.field).to_have_value("/status")
    chat.field.press("Enter")

    note = chat.page.locator(".said-note")
    expect(note).to_have_text(re.compile("Model: stub/test"))
    assert "\nModel: stub/test" in note.inner_text(), "each line is a line"
    expect(note).to_contain_text("not part of the conversation")
    assert "commanded" not in str(gateway.call("sessions.list"))  # a question about it makes no session


def test_a_long_inbox_is_read_on_demand(person: Person, gateway: GatewayProcess) -> None:
    key = "agent:main:flooded"
    held = gateway.hold("I ", "think.")
    gateway.call("chat.send", sessionKey=key, message="first")
    for n in range(103):
        gateway.call("chat.send", sessionKey=key, message=f"message {n}")
    chat = open_chat(person, key)
    inbox = chat.page.get_by_role("region", name="Inbox")
    expect(inbox).to_contain_text("In the inbox: 103 waiting")
    expect(inbox.locator(".pending-row")).to_have_count(100)
    inbox.get_by_role("button", name="Show more").click()
    expect(inbox.locator(".pending-row")).to_have_count(103)
    expect(inbox).to_contain_text("message 102")
    gateway.call("sessions.delete", key=key)
    held.release()


def test_a_conversation_that_began_anew_says_so(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:anew")
    chat.send("remember this")
    chat.expect_said("remember this", "You said: remember this")
    gateway.call("sessions.reset", key="agent:main:anew")
    chat.send("and now?")
    chat.expect_said("and now?", "You said: and now?")

    expect(chat.page.locator(".begun-anew")).to_contain_text("This conversation began anew")
    expect(chat.page.locator(".begun-anew")).to_contain_text("by a reset")


def test_what_waits_in_the_inbox_is_seen(person: Person, gateway: GatewayProcess) -> None:
    chat = open_chat(person, "agent:main:waiting")
    held = gateway.hold("One ", "moment.")
    chat.send("first question")
    expect(chat.live).to_contain_text("One")
    chat.send("second question")
    inbox = chat.page.get_by_role("region", name="Inbox")
    expect(inbox).to_contain_text("second question")
    held.release()

    chat.expect_said("first question", "One moment.", "second question", "You said: second question")
    expect(inbox).to_have_count(0)


def test_two_tabs_and_a_terminal_stay_in_step(person: Person, gateway: GatewayProcess) -> None:
    one, other = (open_chat(person, "agent:main:shared") for _ in range(2))
    held = gateway.hold("Both ", "see this.")
    one.send("from the first tab")
    for chat in (one, other):
        expect(chat.live).to_contain_text("Both")
    held.release()
    for chat in (one, other):
        chat.expect_said("from the first tab", "Both see this.")
    gateway.program.answer("chat", "--session", "agent:main:shared", "from a terminal")

    for chat in (one, other):
        chat.expect_said("from the first tab", "Both see this.", "from a terminal", "You said: from a terminal")


def test_a_gateway_killed_in_the_middle_of_a_reply_loses_and_doubles_nothing(
    make_person: MakePerson, mortal: GatewayProcess
) -> None:
    person = make_person(mortal, token=mortal.token)
    person.troubles.allow("ERR_CONNECTION_REFUSED")
    chat = open_chat(person, "agent:main:main")
    chat.send("before")
    chat.expect_said("before", "You said: before")
    mortal.hold("It was half ", "written.")
    chat.send("in the middle")
    expect(chat.live).to_contain_text("It was half")
    mortal.kill()
    expect(chat.page.get_by_text("The gateway does not answer.", exact=False)).to_be_visible()
    chat.send("while it was away")
    expect(chat.page.get_by_text("while it was away")).to_be_visible()
    mortal.answer("It was half written, and is whole now.", "Here I am.")
    mortal.start()

    chat.expect_said(
        "before",
        "You said: before",
        "in the middle",
        "It was half written, and is whole now.",
        "while it was away",
        "Here I am.",
    )
    expect(chat.live).to_have_count(0)
    chat.page.reload()
    expect(chat.messages).to_have_count(6)
    told = mortal.call("chat.history", sessionKey="main")["messages"]
    assert [message["role"] for message in told] == ["user", "assistant"] * 3


def test_a_message_sent_as_the_page_is_closed_is_sent_once_when_it_is_opened_again(
    make_person: MakePerson, mortal: GatewayProcess
) -> None:
    person = make_person(mortal, token=mortal.token)
    person.troubles.allow("ERR_CONNECTION_REFUSED")
    chat = open_chat(person, "agent:main:main")
    expect(chat.page.get_by_text("connected", exact=False)).to_be_visible()
    mortal.kill()
    chat.send("is anybody there?")
    chat.page.close()
    mortal.start()
    again = open_chat(person, "agent:main:main")

    again.expect_said("is anybody there?", "You said: is anybody there?")
    assert len(mortal.call("chat.history", sessionKey="main")["messages"]) == 2


def test_the_reply_of_a_run_that_nobody_watched_is_there_when_one_comes_back(
    person: Person, gateway: GatewayProcess
) -> None:
    chat = open_chat(person, "agent:main:away")
    gateway.answer(Hang())
    chat.send("take your time")
    expect(chat.page.get_by_role("button", name="Stop the run (Esc)")).to_be_visible()
    chat.page.goto(f"{gateway.url}/#/runs")
    gateway.call("chat.abort", sessionKey="agent:main:away")
    gateway.answer("Done.")
    run = gateway.call("chat.send", sessionKey="agent:main:away", message="and now?")["runId"]
    gateway.call("agent.wait", runId=run, timeoutMs=15_000)
    chat.page.go_back()

    expect(chat.messages.last).to_contain_text("Done.")
    expect(chat.live).to_have_count(0)


def test_a_summary_of_the_older_part_is_folded_and_one_that_was_taken_back_says_so(
    person: Person, gateway: GatewayProcess
) -> None:
    key = "agent:main:summarised"
    for n in range(3):
        run = gateway.call("chat.send", sessionKey=key, message=f"message {n}: {'and so on. ' * 60}")
        gateway.call("agent.wait", runId=run["runId"])
    gateway.answer(Answer(text="They said: and so on."))
    done = gateway.call("sessions.compact", key=key)
    assert done["compacted"], done
    chat = open_chat(person, key)
    summary = chat.page.locator(".machinery", has_text="compacted")
    expect(summary).to_contain_text(f"compacted {done['result']['messages']} messages")
    expect(chat.page.get_by_text("They said: and so on.")).not_to_be_visible()
    summary.locator("summary").click()
    expect(chat.page.get_by_text("They said: and so on.")).to_be_visible()

    gateway.call("sessions.compact", key=key, undo=True)
    expect(summary).to_contain_text("taken back")
    expect(chat.page.locator(".machinery", has_text="took back the summary")).to_have_count(1)
