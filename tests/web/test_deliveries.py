"""Deliveries: what did not arrive stands out, and is sent again, sent elsewhere or given up, one or all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.support.far_end import Fault

from .browser import Person
from .gateways import GatewayProcess

GONE = Fault(400, body='{"error": "there is no such chat"}')


def fail(gateway: GatewayProcess, *texts: str) -> list[str]:
    """Let messages to a chat fail; returns the ids of their deliveries."""
    gateway.tell_far_end(*(GONE for _ in texts))
    ids = []
    for text in texts:
        sent = gateway.call("send", channel="desk", to=f"Room of {text}", message=text)
        state(gateway, sent["id"], "failed")
        ids.append(str(sent["id"]))
    return ids


def state(gateway: GatewayProcess, id: str, wanted: str) -> dict[str, Any]:
    """Wait until a delivery is in this state."""
    with gateway.connected() as client:
        client.call("sessions.subscribe")
        while (found := client.call("deliveries.get", id=id))["state"] != wanted:
            client.event("delivery")
    return found


def troubled(page: Page) -> Locator:
    return page.get_by_role("region", name="Deliveries that are failed")


def test_what_failed_stands_first_with_the_reason(person: Person, gateway: GatewayProcess) -> None:
    fail(gateway, "a lost note")
    page = person.open("#/deliveries")

    expect(troubled(page)).to_contain_text("did not arrive")
    row = troubled(page).get_by_role("row").filter(has_text="a lost note")
    expect(row).to_contain_text("there is no such chat")
    expect(row).to_contain_text("Room of a lost note")


def test_one_is_sent_again(person: Person, gateway: GatewayProcess) -> None:
    (id,) = fail(gateway, "once more")
    page = person.open(f"#/deliveries?id={id}")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("there is no such chat")
    dialog.get_by_role("button", name="Send again").click()

    expect(dialog.locator(".headline")).to_contain_text("It has arrived")
    assert "once more" in gateway.far_end.texts


def test_one_is_sent_elsewhere(person: Person, gateway: GatewayProcess) -> None:
    (id,) = fail(gateway, "to another room")
    page = person.open(f"#/deliveries?id={id}")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Re-route").click()
    dialog.get_by_label("To", exact=True).fill("Room-2")
    dialog.get_by_role("button", name="Send it there").click()

    expect(dialog.locator(".headline")).to_contain_text("It has arrived")
    assert ("Room-2", "to another room") in [(message.to, message.text) for message in gateway.far_end.messages]


def test_one_that_is_uncertain_is_confirmed_by_who_saw_it_in_the_chat(person: Person, gateway: GatewayProcess) -> None:
    (id,) = fail(gateway, "seen in the chat")
    with closing(sqlite3.connect(gateway.program.state / "backchannel.db")) as database, database:
        database.execute("UPDATE deliveries SET state = 'uncertain' WHERE id = ?", (id,))
        database.execute("UPDATE delivery_parts SET state = 'uncertain' WHERE delivery_id = ?", (id,))
    page = person.open(f"#/deliveries?id={id}")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Confirm that it arrived").click()

    expect(dialog.locator(".headline")).to_contain_text("It has arrived")
    expect(dialog.get_by_role("button", name="Confirm that it arrived")).to_have_count(0)
    assert "seen in the chat" not in gateway.far_end.texts


def test_the_chosen_are_dropped_and_all_others_sent_again(person: Person, gateway: GatewayProcess) -> None:
    dropped, *sent = fail(gateway, "drop this", "send this", "and this")
    page = person.open("#/deliveries")
    troubled(page).get_by_label("Choose the delivery to", exact=False).and_(
        page.get_by_label("Room of drop this", exact=False)
    ).check()
    troubled(page).get_by_role("button", name="Drop 1 chosen").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop", exact=True).click()
    expect(troubled(page).get_by_role("row").filter(has_text="drop this")).to_have_count(0)
    assert gateway.call("deliveries.get", id=dropped)["state"] == "dropped"
    troubled(page).get_by_role("button", name="again").click()

    expect(page.get_by_text("in line to be sent again.")).to_be_visible()
    expect(troubled(page)).to_have_count(0)
    for id in sent:
        state(gateway, id, "sent")


def test_a_delivery_that_fails_is_seen_without_a_reload(person: Person, gateway: GatewayProcess) -> None:
    page = person.open("#/deliveries")
    expect(page.get_by_role("heading", name="Deliveries", level=1)).to_be_visible()
    fail(gateway, "just now")

    expect(troubled(page)).to_contain_text("just now")
