"""`backchannel search`: hits with their snippets in a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools.shelf import START_MS, Shelf

from .program import Program


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = Program(tmp_path_factory.mktemp("running"))
    shelf = Shelf(program.state)
    shelf.session("agent:main:main", "I want red shoes", "and a red hat", at=START_MS)
    shelf.session("agent:main:cron:nightly", "Red shoes are sold out")
    with program.up():
        yield program


def test_hits_are_shown_with_their_session_and_snippet(running: Program) -> None:
    shown = running.answer("search", "red", "shoes")
    assert "agent:main:main" in shown and "I want red shoes" in shown
    assert "Red shoes are sold out" in shown and "hat" not in shown


def test_a_search_is_narrowed_by_its_options(running: Program) -> None:
    assert "sold" not in running.answer("search", "shoes", "--session", "main")
    assert running.answer("search", "shoes", "--kind", "cron").count("shoes") == 1
    assert running.answer("search", "shoes", "--since", "5").strip() == "Nothing was found."


def test_the_answer_of_the_tool_is_printed_as_json_and_pages_go_on(running: Program) -> None:
    first = running.json("search", "red", "--limit", "2")
    rest = running.json("search", "red", "--limit", "2", "--cursor", first["nextCursor"])
    found = [hit["messageId"] for page in (first, rest) for hit in page["hits"]]
    assert len(found) == 3 == len(set(found)) and "nextCursor" not in rest


def test_a_query_without_words_is_an_error(running: Program) -> None:
    done = running.run("search", "?!")
    assert done.returncode != 0 and "query" in done.stderr
