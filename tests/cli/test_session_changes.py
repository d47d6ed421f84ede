"""Labels, starting over, deleting and stopping, from the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import Provider
from .program import Program


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway with two sessions of one agent."""
    program = Program(tmp_path_factory.mktemp("running"))
    with program.up("--init"):
        program.answer("chat", "--session", "agent:main:one", "hello")
        program.answer("chat", "--session", "agent:main:two", "hello")
        yield program


def _row(running: Program, key: str) -> dict[str, object]:
    [row] = [row for row in running.json("sessions", "list")["sessions"] if row["key"] == key]
    return dict(row)


def test_a_label_is_set_in_use_and_cleared_as_the_error_says(running: Program) -> None:
    assert (
        running.answer("sessions", "label", "agent:main:one", "ten") == "Session agent:main:one has the label 'ten'.\n"
    )
    taken = running.run("sessions", "label", "agent:main:two", "ten")
    assert taken.returncode == 1
    spawned = running.run("spawn", "--label", "ten", "count to ten")
    assert spawned.returncode == 1
    for told in (taken, spawned):
        assert f"{running.option} sessions label agent:main:one --clear`" in told.stderr

    assert running.answer("sessions", "label", "ten", "--clear") == "Session agent:main:one has no label any more.\n"
    running.answer("sessions", "label", "agent:main:two", "ten")
    assert _row(running, "agent:main:two")["label"] == "ten"
    assert "label" not in _row(running, "agent:main:one")


@pytest.mark.parametrize("words", [("main",), ("main", "x", "--clear")])
def test_a_label_is_either_given_or_cleared(running: Program, words: tuple[str, ...]) -> None:
    assert running.run("sessions", "label", *words).returncode == 2


def test_a_session_that_is_not_there_is_not_made_by_labelling_it(running: Program) -> None:
    refused = running.run("sessions", "label", "agent:main:cron:typo", "x")

    assert refused.returncode == 1
    assert "cron:typo" not in running.answer("sessions")


def test_a_session_starts_over_under_its_key(running: Program) -> None:
    before = _row(running, "agent:main:two")["sessionId"]
    told = running.answer("sessions", "reset", "agent:main:two")

    after = str(_row(running, "agent:main:two")["sessionId"])
    assert after != before
    assert told == f"Session agent:main:two starts over, with the session id {after}.\n"
    assert running.json("history", "agent:main:two")["messages"] == []


def test_a_deleted_session_is_among_the_archived_and_a_main_one_stays(running: Program) -> None:
    running.answer("chat", "--session", "agent:main:three", "hello")
    assert running.answer("sessions", "delete", "agent:main:three").startswith("Session agent:main:three is archived")

    assert "agent:main:three" not in running.answer("sessions")
    assert "agent:main:three" in running.answer("sessions", "--archived")
    running.answer("chat", "hello main")
    kept = running.run("sessions", "delete", "main")
    assert kept.returncode == 1
    assert "reset" in kept.stderr


def test_a_run_is_stopped_by_the_beginning_of_its_id(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    held = provider.hold("well, ", "never")
    with program.up(), program.terminal("chat", "hello") as chat:
        chat.expect("well, ")
        [run] = program.json("runs", "--status", "running")["runs"]
        told = program.answer("runs", "abort", run["runId"][:12])
        assert chat.wait() != 0
        again = program.answer("runs", "abort", run["runId"])
        shown = program.json("runs", "show", run["runId"])["run"]
    held.release()

    assert told == f"Run {run['runId']} is stopped.\n"
    assert again == f"Run {run['runId']} had ended already: aborted.\n"
    assert shown["status"] == "aborted"


def test_a_session_is_compacted_and_the_summary_is_taken_back(running: Program) -> None:
    key = "agent:main:long"
    for n in range(4):
        running.answer("chat", "--session", key, f"{n}: {'and so on, as ever. ' * 100}")
    told = running.answer("sessions", "compact", key, "--keep", "the numbers")
    assert told.startswith(f"Session {key}: compacted ") and told.endswith(" tokens.\n")
    assert "compacted" in running.answer("history", key)
    assert "summary was taken back" in running.answer("sessions", "compact", key, "--undo")
    assert "took back the summary" in running.answer("history", key)
    assert running.run("sessions", "compact", key, "--undo", "--keep", "x").returncode == 2
