"""Fixtures for several gateways: a database of their own, and gateways on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import borrow_database, return_database


@pytest.fixture
def url() -> Iterator[str]:
    url = borrow_database()
    yield url
    return_database(url)
