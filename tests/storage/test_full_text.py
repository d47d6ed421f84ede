"""Searching the texts of a table: what any database answers, with an index of words or without."""

from __future__ import annotations

import pytest

from backchannel.core.messages import Role
from tests.storage.support import Host, converse

pytestmark = [pytest.mark.both_databases, pytest.mark.anyio]


@pytest.mark.parametrize("text", ["red shoes", "RED", 'a "word"', "line\nbreak", "grün", "100% _x_"])
async def test_a_text_is_found_in_any_case_newest_first(host: Host, text: str) -> None:
    await converse(host.store, f"I want {text} now")
    await converse(host.store, "something else")
    session = await host.store.session("agent:main:main")
    assert session is not None
    found = await host.store.search(session.session_id, text.upper(), before=None, limit=9)
    assert [(match.seq, match.message.role) for match in found.found] == [(1, Role.ASSISTANT), (0, Role.USER)]
    assert found.last is None


async def test_a_search_goes_on_before_the_last_message_that_it_looked_at(host: Host) -> None:
    for n in range(3):
        await converse(host.store, f"needle {n}")
    session = await host.store.session("agent:main:main")
    assert session is not None
    seqs: list[int] = []
    before = None
    while True:
        page = await host.store.search(session.session_id, "needle", before=before, limit=2)
        seqs += [match.seq for match in page.found]
        if (before := page.last) is None:
            break
    assert seqs == [5, 4, 3, 2, 1, 0]
