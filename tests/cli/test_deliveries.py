"""`backchannel deliveries`: many that did not arrive at once."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from .program import Program


@pytest.fixture
def program_with_dead_letters(program: Program) -> Program:
    """The program on a folder in which deliveries failed, and one is uncertain."""
    with program.up():
        program.answer("chat", "hello")
    now = time.time_ns() // 1_000_000
    rows = [(f"{n:032x}", state, now) for n, state in enumerate(("failed", "failed", "uncertain", "pending"), 1)]
    with closing(sqlite3.connect(program.state / "backchannel.db")) as database, database:
        database.executemany(
            "INSERT INTO deliveries (id, session_key, state, channel, account_id, target, created_at, updated_at) "
            "VALUES (?1, 'agent:main:main', ?2, 'desk', 'default', 'C', ?3, ?3)",
            rows,
        )
        soon = now + 3_600_000
        database.execute("UPDATE deliveries SET due_at = ?, attempts = 1 WHERE state = 'pending'", (soon,))
    return program


def _states(program: Program) -> list[str]:
    return [delivery["state"] for delivery in program.json("deliveries")["deliveries"]][::-1]


def test_all_that_failed_are_given_up_and_the_uncertain_only_when_asked(program_with_dead_letters: Program) -> None:
    program = program_with_dead_letters
    with program.up():
        assert program.answer("deliveries", "drop", "--failed") == "2 deliveries given up.\n"
        assert _states(program) == ["dropped", "dropped", "uncertain", "pending"]
        assert program.json("deliveries", "drop", "--uncertain") == {"count": 1, "refused": []}


def test_what_cannot_be_sent_again_is_named_with_the_reason(program_with_dead_letters: Program) -> None:
    with program_with_dead_letters.up():
        done = program_with_dead_letters.run("deliveries", "retry", "--failed")
        assert done.stdout == "0 deliveries in line to be sent again.\n"
        assert done.stderr.count("it has no text") == 2 and done.returncode == 1


def test_only_what_is_uncertain_can_be_confirmed(program_with_dead_letters: Program) -> None:
    program = program_with_dead_letters
    failed, uncertain = f"{1:032x}", f"{3:032x}"
    with program.up():
        confirmed = program.json("deliveries", "confirm", uncertain)
        assert (confirmed["state"], confirmed["error"]) == ("sent", "a person said that it arrived")
        assert "only uncertain ones can be confirmed" in program.run("deliveries", "confirm", failed).stderr


def test_the_table_shows_when_the_next_attempt_is(program_with_dead_letters: Program) -> None:
    with program_with_dead_letters.up():
        heading, *rows = program_with_dead_letters.answer("deliveries", "--status", "pending").splitlines()
    assert "NEXT TRY" in heading and rows[0][heading.index("NEXT TRY") :].split()[0] in ("1h", "59m", "60m")


def test_an_id_or_a_choice_is_needed_and_not_both(program: Program) -> None:
    for words in ((), ("abcd", "--failed")):
        done = program.run("deliveries", "drop", *words)
        assert done.returncode == 2 and "--failed" in done.stderr
