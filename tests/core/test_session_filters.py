"""Filters of session lists: which pages an index gives in order."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.policy.visibility import VisibleScope
from backchannel.core.sessions import SessionFilter


@pytest.mark.parametrize("given", [{}, {"agent_id": "main"}, {"updated_since": 5}, {"archived": True}])
def test_a_page_that_an_index_has_in_order_is_plain(given: dict[str, Any]) -> None:
    assert SessionFilter(**given).is_plain


@pytest.mark.parametrize(
    "given",
    [
        {"kinds": ("hook",)},
        {"label": "harbour"},
        {"search": "harbour"},
        {"spawned_by": "agent:main:main"},
        {"archived": None},
        {"visible": VisibleScope(key="agent:main:main")},
    ],
)
def test_a_page_for_which_other_rows_are_read_is_not_plain(given: dict[str, Any]) -> None:
    assert not SessionFilter(**given).is_plain
