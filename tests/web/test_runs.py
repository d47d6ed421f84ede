"""Runs: what each did, step by step, over a crash too, and what can be done about it."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.support.stub_provider import Answer, Call, Fault, Hang

from .browser import Person
from .conftest import MakePerson
from .gateways import GatewayProcess


def run(gateway: GatewayProcess, session: str, text: str = "go", *, id: str | None = None) -> str:
    """Let a session answer something, and wait for the end."""
    sent = gateway.call(
        "chat.send", sessionKey=f"agent:main:{session}", message=text, idempotencyKey=id or f"run-of-{session}"
    )
    gateway.call("agent.wait", runId=sent["runId"], timeoutMs=15_000)
    return str(sent["runId"])


def timeline(page: Page) -> list[str]:
    """Read the lines of what a run did."""
    rows = page.get_by_role("group", name="What it did").locator("ol > li")
    return [" ".join(text.split()) for text in rows.all_inner_texts()]


def test_a_run_is_listed_with_its_state_tokens_cost_and_session_and_opens(
    person: Person, gateway: GatewayProcess
) -> None:
    gateway.answer(Answer(text="It is done.", input_tokens=2_000_000, output_tokens=100_000))
    run(gateway, "listed")
    page = person.open("#/runs?session=agent%3Amain%3Alisted")
    row = page.get_by_role("table", name="Runs").get_by_role("row").nth(1)

    expect(row).to_contain_text("ok")
    expect(row).to_contain_text("It is done.")
    expect(row).to_contain_text("2.1m")
    expect(row).to_contain_text("$7.50")  # 2 million in at 3 dollars, 100,000 out at 15
    row.focus()
    row.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Run")
    assert page.url.endswith("#/runs/run-of-listed")


def test_the_steps_of_a_run_are_shown_with_what_they_were_asked_and_answered(
    person: Person, gateway: GatewayProcess
) -> None:
    looks = Answer(text="I look.", calls=(Call("agents_list", {}),), input_tokens=2000, cached_tokens=1840)
    gateway.answer(looks, "There are three of us.")
    run(gateway, "steps")
    page = person.open("#/runs/run-of-steps")
    expect(page.get_by_role("group", name="What it did")).to_be_visible()

    lines = timeline(page)
    order = [
        next(n for n, line in enumerate(lines) if word in line) for word in ("I look.", "agents_list", "There are")
    ]
    assert order == sorted(order)
    assert "2.0k in (92 % cached), 5 out" in lines[order[0]]
    page.get_by_role("group", name="What it did").locator("summary", has_text="agents_list").click()
    expect(page.get_by_role("group", name="What it did")).to_contain_text('"researcher"')


def test_the_timeline_tells_where_the_process_died_and_that_the_run_went_on(
    make_person: MakePerson, mortal: GatewayProcess
) -> None:
    mortal.answer(Answer(text="I look.", calls=(Call("agents_list", {}),)), Hang())
    mortal.call("chat.send", sessionKey="main", message="look around", idempotencyKey="look")
    mortal.asked(2)
    person = make_person(mortal, token=mortal.token)
    person.troubles.allow("ERR_CONNECTION_REFUSED")
    page = person.open("#/runs/look")
    shown = page.get_by_role("group", name="What it did")
    expect(shown).to_contain_text("agents_list")
    expect(page.get_by_text("running", exact=True).first).to_be_visible()
    mortal.kill()
    mortal.answer("There are three of us.")
    mortal.start()

    expect(shown).to_contain_text("The process was last seen here, then it died, and it went on after")
    expect(shown).to_contain_text("There are three of us.")
    expect(shown).to_contain_text("Ended: ok")
    assert len([line for line in timeline(page) if "agents_list" in line]) == 1
    assert mortal.call("runs.get", runId="look")["run"]["reply"] == "There are three of us."


def test_a_failed_run_says_why_and_is_retried(person: Person, gateway: GatewayProcess) -> None:
    gateway.answer(Fault(400, "this model takes no questions"), "Now it does.")
    run(gateway, "failing")
    page = person.open("#/runs/run-of-failing")
    expect(page.get_by_role("heading", name="Why it failed")).to_be_visible()
    expect(page.locator("section")).to_contain_text("this model takes no questions")
    page.get_by_role("button", name="Retry").click()

    expect(page.get_by_role("heading", name="Reply")).to_be_visible()
    expect(page.locator("section")).to_contain_text("Now it does.")
    expect(page.get_by_role("button", name="Retry")).to_have_attribute("title", re.compile("It ended ok"))


def test_a_run_at_work_is_stopped(person: Person, gateway: GatewayProcess) -> None:
    gateway.answer(Hang())
    gateway.call("chat.send", sessionKey="agent:main:endless", message="go", idempotencyKey="endless")
    page = person.open("#/runs/endless")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop it").click()

    expect(page.locator(".headline")).to_contain_text("aborted")
    expect(page.get_by_text("It was stopped here")).to_be_visible()
    expect(page.get_by_text("Why it failed")).to_have_count(0)
    assert gateway.call("runs.get", runId="endless")["run"]["status"] == "aborted"


def test_only_runs_of_the_chosen_state_are_listed_and_a_new_one_comes_by_itself(
    person: Person, gateway: GatewayProcess
) -> None:
    gateway.answer(Fault(400, "no"))
    run(gateway, "stated")
    page = person.open("#/runs?session=agent%3Amain%3Astated")
    rows = page.get_by_role("table", name="Runs").locator("tbody tr")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Ok", exact=True).click()
    expect(page.get_by_text("No run is like that")).to_be_visible()

    run(gateway, "stated", id="another")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("You said: go")
    page.get_by_role("button", name="All", exact=True).click()
    expect(rows).to_have_count(2)


def test_while_a_model_fails_and_is_asked_again_the_page_says_so(person: Person, gateway: GatewayProcess) -> None:
    gateway.answer(Fault(503, "overloaded"))
    held = gateway.hold("Here I am.", at=0)
    said = "asked again, 2 of 5: overloaded (HTTP 503 from stub)"
    page = person.open("#/sessions/agent%3Amain%3Aretried")
    gateway.call("chat.send", sessionKey="agent:main:retried", message="go", idempotencyKey="run-of-retried")
    expect(page.locator(".message.live")).to_contain_text(said)
    page.reload()
    expect(page.locator(".message.live")).to_contain_text(said)  # as it is now, not as it was heard
    page.goto(f"{page.url.split('#')[0]}#/runs/run-of-retried")
    expect(page.locator(".headline")).to_contain_text(said)
    page.goto(f"{page.url.split('#')[0]}#/runs?session=agent%3Amain%3Aretried")
    row = page.get_by_role("table", name="Runs").get_by_role("row").nth(1)
    expect(row).to_contain_text(said)
    held.release()
    expect(row).to_contain_text("Here I am.")
    expect(row).not_to_contain_text("asked again")
