"""Logging in and out: by the field, by the address, and never by a query string."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .browser import TOKEN, Person
from .conftest import MakePerson
from .gateways import GatewayProcess


def kept(page: Page) -> str | None:
    """Read the token that the browser has."""
    found: str | None = page.evaluate(f"localStorage.getItem('{TOKEN}')")
    return found


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def expect_frame(page: Page) -> None:
    expect(page.get_by_role("navigation", name="Places")).to_be_visible()


def expect_login(page: Page) -> None:
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_the_token_of_the_field_logs_in_and_a_reload_asks_for_it_no_more(
    stranger: Person, gateway: GatewayProcess
) -> None:
    page = stranger.open()
    expect_login(page)
    log_in(page, f"  {gateway.token}\n")
    expect_frame(page)

    page.reload()
    expect_frame(page)
    assert gateway.token not in page.url


def test_the_token_of_the_address_is_taken_once_and_is_gone_from_it_and_from_the_history(
    stranger: Person, gateway: GatewayProcess
) -> None:
    page = stranger.context.new_page()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.goto(f"{gateway.url}/#token={gateway.token}")
    expect_frame(page)

    assert page.url == f"{gateway.url}/#/sessions"
    page.goto(f"{gateway.url}/#/runs")
    page.go_back()
    assert "token" not in page.url
    assert not any(gateway.token in url for url in sent)


def test_a_token_in_a_query_string_is_not_taken(stranger: Person, gateway: GatewayProcess) -> None:
    page = stranger.open(f"?token={gateway.token}")

    expect_login(page)
    assert kept(page) is None


def test_a_wrong_token_is_refused_in_words_and_not_kept(stranger: Person, gateway: GatewayProcess) -> None:
    page = stranger.open()
    log_in(page, "bc_not-the-token-of-this-gateway")

    expect(page.get_by_role("alert")).to_contain_text("token")
    expect_login(page)
    expect(page.get_by_label("Token")).to_have_value("bc_not-the-token-of-this-gateway")
    assert kept(page) is None
    log_in(page, gateway.token)
    expect_frame(page)


def test_a_wrong_token_in_the_address_does_not_log_out_who_is_logged_in(
    person: Person, gateway: GatewayProcess
) -> None:
    page = person.open("#token=bc_not-the-token-of-this-gateway")

    expect_frame(page)
    assert kept(page) == gateway.token
    assert "token" not in page.url


def test_logging_out_forgets_the_token_in_every_tab(person: Person) -> None:
    page, other = person.open(), person.open()
    expect_frame(page)
    expect_frame(other)
    page.get_by_role("button", name="Log out").click()

    for tab in (page, other):
        expect_login(tab)
    assert kept(page) is None
    page.reload()
    expect_login(page)


def test_a_token_that_is_revoked_ends_the_visit(make_person: MakePerson, gateway: GatewayProcess) -> None:
    made = gateway.call("tokens.create", scopes=["read"])
    page = make_person(gateway, token=made["token"]).open()
    expect_frame(page)
    gateway.call("tokens.revoke", id=made["id"])

    expect_login(page)
    expect(page.get_by_role("alert")).to_be_visible()


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/page/page.css", "/page/vendor/preact.js"])
def test_every_file_comes_with_the_strict_policy(stranger: Person, gateway: GatewayProcess, path: str) -> None:
    answer = stranger.context.request.get(gateway.url + path)

    assert answer.ok
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_the_policy_holds_in_the_browser(person: Person) -> None:
    page = person.open()
    expect_frame(page)
    came = page.evaluate(
        """() => {
            const came = [];
            const tried = (name, work) => { try { work(); came.push(`${name} worked`); } catch { came.push(name); } };
            tried("markup", () => { document.body.innerHTML = "<b>markup</b>"; });
            tried("handler", () => document.createElement("img").setAttribute("onerror", "alert(1)"));
            tried("script", () => { document.createElement("script").text = "alert(1)"; });
            tried("address", () => { document.createElement("script").src = "/page/main.js"; });
            return came;
        }"""
    )

    assert came == ["markup", "handler", "script", "address"]
    assert len(person.troubles.seen) == len(came)  # the browser tells of each
    person.troubles.seen.clear()
