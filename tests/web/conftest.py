"""One browser for all tests of the page, a gateway for those of a file, and somebody new before each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from .browser import PATIENCE_MS, Person, find_chromium
from .gateways import GatewayProcess, gateway_process


# Only for as long as the tests of this folder run: while its loop runs, none of another test may.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = find_chromium()
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gateway(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that the tests of one file share: each uses sessions of its own."""
    with gateway_process(tmp_path_factory.mktemp("gateway")) as started:
        yield started


@pytest.fixture(autouse=True)
def forgetting(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave nothing of what one test has told the models of a shared gateway to the next."""
    shared = request.getfixturevalue("gateway") if "gateway" in request.fixturenames else None
    yield
    if shared is not None:
        shared.forget()


@pytest.fixture
def mortal(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of a test's own, to be killed."""
    with gateway_process(tmp_path_factory.mktemp("mortal")) as started:
        yield started


class MakePerson(Protocol):
    def __call__(self, gateway: GatewayProcess, **options: Any) -> Person: ...


@pytest.fixture
def make_person(chromium: Browser) -> Iterator[MakePerson]:
    made: list[Person] = []

    def make(gateway: GatewayProcess, **options: Any) -> Person:
        made.append(Person(chromium, gateway, **options))
        return made[-1]

    yield make
    for person in made:
        person.leave()


@pytest.fixture
def stranger(make_person: MakePerson, gateway: GatewayProcess) -> Person:
    """Somebody who has not logged in."""
    return make_person(gateway)


@pytest.fixture
def person(make_person: MakePerson, gateway: GatewayProcess) -> Person:
    """Somebody who has."""
    return make_person(gateway, token=gateway.token)


@pytest.fixture
def page(person: Person) -> Page:
    """The page, as somebody sees it who has logged in."""
    return person.open()
