"""Ids in tables: never folded at 80 columns, and what is shown can be typed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backchannel.cli.short_forms import SHORTEST, short_ids, short_key

from .program import Program

UUIDS = ("1c9bce46-0000-4000-8000-000000000001", "1c9bce46-0000-4000-8000-000000000002")


def test_short_forms_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    made = ["01a1df93850e" + "a" * 20, "01a1df93850e" + "b" * 20]

    assert [each.short for each in short_ids(made[:1])] == ["01a1df93850e"]
    assert [each.short for each in short_ids(made)] == ["01a1df93850ea", "01a1df93850eb"]
    assert [each.short for each in short_ids([f"{made[0]}/turn/2", made[0]])] == [
        "01a1df93850e…/turn/2",
        "01a1df93850e",
    ]
    assert [each.short for each in short_ids(["order-1", "cron:nightly:1763200000000"])] == [
        "order-1",
        "cron:nightly:1763200000000",
    ]
    assert [each.short for each in short_ids(["x" * 40])] == [f"{'x' * SHORTEST}…{'x' * 11}"]
    assert short_ids([]) == []


def test_ids_that_differ_only_in_their_middle_are_shown_so_that_they_differ() -> None:
    long = [f"{'x' * 20}{middle}{'y' * 20}" for middle in "ab"]

    assert len({each.short for each in short_ids(long)}) == 2


def test_a_key_is_cut_in_its_middle() -> None:
    assert short_key(f"agent:main:subagent:{UUIDS[0]}").short == "agent:main:subagent:1c9bce46…"
    assert short_key("agent:main:main").short == "agent:main:main"
    assert short_key("agent:main:whatsapp:group:120363025999999999@g.us").short == "agent:main:whatsap…999999@g.us"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway with runs and a sub-agent."""
    program = Program(tmp_path_factory.mktemp("running"))
    with program.up("--init"):
        program.answer("chat", "hello main")
        program.answer("spawn", "--as", "main", "--label", "ten", "--follow", "count to ten")
        program.answer("send", "--as", "main", "researcher", "what is new?")
        yield program


def _rows(running: Program, *words: str, columns: int = 80) -> list[str]:
    with running.terminal(*words, COLUMNS=str(columns)) as terminal:
        assert terminal.wait() == 0
        return [line.rstrip() for line in terminal.shown.splitlines()][1:]


def test_each_run_of_a_table_is_named_by_what_can_be_typed(running: Program) -> None:
    runs = running.json("runs")["runs"]
    shown = [line.split()[0] for line in _rows(running, "runs") if line and not line.startswith(" ")]

    assert len(shown) == len(runs) >= 4
    for short, run in zip(shown, runs, strict=True):
        assert running.json("runs", "show", short)["run"]["runId"] == run["runId"]


def test_no_id_and_no_key_is_folded_at_80_columns(running: Program) -> None:
    for words in (["runs"], ["sessions"]):
        rows = _rows(running, *words)
        names = [line.split()[0] for line in rows if line and not line.startswith(" ")]
        assert len(names) == len(running.json(*words)[words[0]]), "\n".join(rows)
    assert any("/announce" in line.split()[0] for line in _rows(running, "runs"))


def test_a_control_word_is_no_result_that_is_shown(running: Program) -> None:
    replies = [run.get("reply") for run in running.json("runs")["runs"]]
    assert "REPLY_SKIP" in replies
    assert "REPLY_SKIP" not in running.answer("runs") and "(nothing more to say)" in running.answer("runs")


def test_a_wide_terminal_and_a_pipe_show_whole_ids(running: Program) -> None:
    whole = running.json("runs", "--limit", "1")["runs"][0]["runId"]

    assert _rows(running, "runs", "--limit", "1", columns=250)[0].startswith(whole)
    assert running.answer("runs", "--limit", "1").splitlines()[1].startswith(whole)


def test_a_session_is_found_by_its_short_key_and_by_the_beginning_of_its_id(running: Program) -> None:
    [row] = running.json("sessions", "--label", "ten")["sessions"]
    shown = next(line.split()[0] for line in _rows(running, "sessions") if ":subagent:" in line)

    assert shown == row["key"][: len("agent:main:subagent:") + 8] + "…"
    typed = shown.removesuffix("…")
    bare = typed.removeprefix("agent:main:")
    for name in (shown, shown.removeprefix("agent:main:"), row["sessionId"][:8], typed, bare, bare[-8:]):
        assert running.json("history", name)["sessionKey"] == row["key"]


def test_deliveries_are_found_by_the_beginning_of_their_ids(running: Program) -> None:
    delivery = running.json("deliveries", "--limit", "1")["deliveries"][0]["id"]

    assert running.json("deliveries", "show", delivery[:20])["id"] == delivery
    several = running.run("deliveries", "show", delivery[:4])
    assert several.returncode == 1
    assert delivery in several.stderr


def test_a_token_and_a_job_are_found_by_the_beginning_of_their_ids(running: Program) -> None:
    token = running.json("tokens", "create", "--scope", "read")["id"]
    running.answer("cron", "add", "nightly-report", "every 9h", "report")

    assert running.json("tokens", "revoke", token[:6])["id"] == token
    assert running.answer("cron", "remove", "nightly").startswith("Job nightly-report is removed")


def test_the_beginning_of_an_archived_sessions_id_names_it_also_when_its_key_is_used_again(running: Program) -> None:
    running.answer("chat", "--session", "cron:gone", "keep this in mind")
    (row,) = running.json("sessions", "--search", "cron:gone")["sessions"]
    running.answer("sessions", "delete", "cron:gone")
    for _ in range(2):
        assert "keep this in mind" in running.answer("history", row["sessionId"][:8])
        rebuilt = running.json("transcripts", "rebuild", row["sessionId"][:8])["rebuilt"]
        assert [entry["key"] for entry in rebuilt] == ["agent:main:cron:gone"]
        running.answer("chat", "--session", "cron:gone", "another life")
    assert "keep this in mind" not in running.answer("history", "cron:gone")
