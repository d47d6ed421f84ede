"""Jobs, agents, channels and health: in one place, with what to do."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.stub_provider import Fault

from .browser import Person
from .conftest import MakePerson
from .gateways import GatewayProcess, Refusal


def test_a_job_shows_when_it_comes_next_and_runs_now(person: Person, gateway: GatewayProcess) -> None:
    gateway.call("cron.add", id="nightly", schedule="0 3 * * *", message="count the hedgehogs")
    page = person.open("#/jobs")
    job = page.get_by_role("article", name="nightly")
    expect(job).to_contain_text("scheduled")
    expect(job).to_contain_text("count the hedgehogs")
    gateway.answer("Seven.")
    job.get_by_role("button", name="Run now").click()
    job.get_by_role("link", name="See its run").click()

    expect(page.get_by_role("group", name="What it did")).to_contain_text("Seven.")


def test_a_job_is_added_and_removed(person: Person, gateway: GatewayProcess) -> None:
    page = person.open("#/jobs")
    page.get_by_role("button", name="Add a job").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("weekly")
    dialog.get_by_label("When").fill("every nonsense")
    dialog.get_by_label("Message").fill("water the plants")
    dialog.get_by_role("button", name="Add it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("schedule")
    dialog.get_by_label("When").fill("0 9 * * 1")
    dialog.get_by_role("button", name="Add it").click()
    job = page.get_by_role("article", name="weekly")
    expect(job).to_contain_text("water the plants")
    job.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()

    expect(job).to_have_count(0)
    with pytest.raises(Refusal):
        gateway.call("cron.run", id="weekly")


def test_health_names_what_is_wrong_and_leads_there(make_person: MakePerson, mortal: GatewayProcess) -> None:
    page = make_person(mortal, token=mortal.token).open("#/health")
    expect(page.get_by_text("All is well")).to_be_visible()
    mortal.answer(Fault(400, "no more questions today"))
    run = mortal.call("chat.send", sessionKey="main", message="hello")["runId"]
    mortal.call("agent.wait", runId=run, timeoutMs=15_000)

    problem = page.get_by_role("list", name="Problems").get_by_role("listitem")
    expect(problem).to_contain_text("1 run failed")
    expect(page.get_by_role("navigation", name="Places").get_by_label("1 problem").first).to_be_visible()
    problem.get_by_role("link", name="See the runs").click()
    expect(page.get_by_role("table", name="Runs")).to_contain_text("no more questions today")


def test_what_works_is_shown_with_health_and_can_be_ended(person: Person, gateway: GatewayProcess) -> None:
    gateway.hold("half")
    run = gateway.call("chat.send", sessionKey="main", message="take your time")["runId"]
    page = person.open("#/health")
    table = page.get_by_role("table", name="What works and what waits")
    row = table.get_by_role("row").filter(has_text="stub/test")
    expect(row).to_contain_text("works")
    row.get_by_role("button", name="End").click()
    expect(row).to_have_count(0)
    ended = gateway.call("agent.wait", runId=run, timeoutMs=15_000)
    assert ended["status"] == "error"


def test_budgets_show_what_is_spent_who_waits_and_begin_anew(make_person: MakePerson, mortal: GatewayProcess) -> None:
    mortal.kill()
    ask = {"name": "talk", "scope": "session", "per": "month", "runs": 1, "then": "ask"}
    mortal.write_config(
        {"budgets": [ask, {"name": "all", "scope": "gateway", "per": "total", "usd": 9, "then": "warn"}]}
    )
    mortal.start()
    run = mortal.call("chat.send", sessionKey="main", message="hello")["runId"]
    mortal.call("agent.wait", runId=run, timeoutMs=15_000)
    run = mortal.call("chat.send", sessionKey="main", message="once more")["runId"]
    page = make_person(mortal, token=mortal.token).open("#/budgets")
    talk = page.get_by_role("article", name="talk")
    expect(talk).to_contain_text("1 run of 1 run")
    expect(talk).to_contain_text("100% spent")
    expect(page.get_by_role("article", name="By session, with its sub-agents")).to_contain_text("main")
    expect(page.get_by_role("img", name="Spent by day")).to_be_visible()
    talk.get_by_role("link", name="1 run waits for it").click()
    expect(page.get_by_role("table", name="Runs")).to_contain_text("waits for the budget talk")
    page.go_back()
    talk.get_by_role("button", name="Begin anew").click()
    page.get_by_role("dialog").get_by_role("button", name="Begin anew").click()
    expect(page.get_by_text("The budget talk begins anew.")).to_be_visible()
    assert mortal.call("agent.wait", runId=run, timeoutMs=15_000)["status"] == "ok"


def test_agents_are_shown_with_their_models_and_tools(person: Person) -> None:
    page = person.open("#/agents")
    agent = page.get_by_role("article", name="researcher")

    expect(agent).to_contain_text("stub/test")
    expect(agent.get_by_role("list", name="Tools that it has")).to_contain_text("sessions_send")


def test_channels_are_shown_with_their_health_and_without_their_secrets(
    person: Person, gateway: GatewayProcess
) -> None:
    page = person.open("#/channels")
    channel = page.get_by_role("article", name="desk")

    expect(channel).to_contain_text("bridge")
    channel.get_by_text("Settings").click()
    expect(channel).to_contain_text("requireMention")
    assert gateway.far_end.secret not in page.content()


def test_a_stranger_is_let_in_where_health_leads(person: Person, gateway: GatewayProcess) -> None:
    for name in ("ann", "eve"):
        gateway.write("door", senderId=name, senderName=f"<b>{name}</b>", chatId=name, messageId=f"door-{name}")
    page = person.open("#/health")
    page.get_by_role("link", name="2 Strangers who ask to be let in").click()
    strangers = page.get_by_role("table", name="Strangers")
    strangers.get_by_role("row").filter(has_text="<b>ann</b>").get_by_role("button", name="Let in").click()
    expect(strangers).not_to_contain_text("<b>ann</b>")
    strangers.get_by_role("row").filter(has_text="<b>eve</b>").get_by_role("button", name="Ignore").click()
    expect(strangers).to_have_count(0)

    found = gateway.call("pairing.list")["pairings"]
    assert {row["senderId"]: row["state"] for row in found} == {"ann": "approved", "eve": "denied"}
