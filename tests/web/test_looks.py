"""Every view, light and dark, wide and on a phone: readable by all, and never wider than the screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

from .browser import DESK, PHONE, Person, findings, settle
from .conftest import MakePerson
from .gateways import GatewayProcess
from .used import places, used_gateway

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def used(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with something in every view."""
    with used_gateway(tmp_path_factory.mktemp("used")) as gateway:
        yield gateway


def views(person: Person) -> Iterator[tuple[str, Page]]:
    """Go through all views, in one tab."""
    page = person.open()
    for name, place in places(person.gateway).items():
        page.goto(f"{person.gateway.url}/{place}")
        settle(page)
        yield name, page


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", PHONE)], ids=["light, wide", "dark, narrow"])
def test_no_view_keeps_anybody_out(
    make_person: MakePerson, used: GatewayProcess, scheme: Scheme, size: dict[str, int]
) -> None:
    person = make_person(used, token=used.token, scheme=scheme, size=size)
    found: dict[str, list[dict[str, Any]]] = {name: findings(page, AXE) for name, page in views(person)}

    assert {name: each for name, each in found.items() if each} == {}


def test_the_login_keeps_nobody_out(make_person: MakePerson, used: GatewayProcess) -> None:
    for scheme in ("light", "dark"):
        page = make_person(used, scheme=scheme).open()
        page.get_by_label("Token").wait_for()
        assert findings(page, AXE) == []


@pytest.mark.timeout(300)
def test_no_view_scrolls_sideways_on_a_phone(make_person: MakePerson, used: GatewayProcess) -> None:
    person = make_person(used, token=used.token, size=PHONE)
    wider = {
        name: page.evaluate(WIDER)
        for name, page in views(person)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth")
    }

    assert wider == {}


WIDER = """[...document.querySelectorAll("*")]
    .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
    .map((element) => `${element.tagName}.${element.className}`).slice(0, 8)"""


def test_a_phone_shows_one_thing_at_a_time_and_the_way_back(make_person: MakePerson, used: GatewayProcess) -> None:
    page = make_person(used, token=used.token, size=PHONE).open()
    rows = page.get_by_role("list", name="Sessions")
    rows.get_by_role("link").first.click()
    page.get_by_role("log", name="Messages").wait_for()
    assert not rows.is_visible()
    page.get_by_role("link", name="Back to the sessions").click()

    rows.wait_for()
