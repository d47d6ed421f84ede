"""`backchannel import` as people run it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import Program

from .their_folders import GROUP_ID, MAIN_ID, header, lines, openclaw, said, write

MAIN = "agent:main:main"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return openclaw(tmp_path / "theirs")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Import


def test_without_yes_it_tells_what_it_would_take_and_how_to_take_it(program: Program, theirs: Path) -> None:
    said = program.answer("import", str(theirs))

    assert "agent:main:telegram:group:-100:topic:7" in said
    assert "3 new" in said
    assert "agents to configure  research-bot" in said
    assert said.strip().endswith(f"import {shlex.quote(str(theirs))} --yes")
    assert not program.state.exists()


def test_a_dry_run_writes_nothing_even_with_yes(program: Program, theirs: Path) -> None:
    told = program.json("import", str(theirs), "--dry-run", "--yes")
    assert told["dryRun"] is True
    assert not program.state.exists()

    program.answer("import", str(theirs), "--yes")
    write(theirs / "sessions", {"new": {"sessionId": "x"}})
    (theirs / "sessions" / "x.jsonl").write_text(lines(said("x1", "user", "more")))
    before = tree(program.state)
    assert program.json("import", str(theirs), "--dry-run")["counts"]["new"] == 1
    assert tree(program.state) == before


def test_with_yes_the_sessions_are_there_when_the_gateway_starts(program: Program, theirs: Path) -> None:
    report = program.json("import", str(theirs), "--yes")
    assert report["dryRun"] is False
    assert report["counts"] == {"new": 3, "more": 0, "unchanged": 0, "skipped": 0, "messages": 8}
    assert report["agentsToConfigure"] == ["research-bot"]
    transcript = program.state / "agents" / "main" / "sessions" / f"{MAIN_ID}.jsonl"
    assert len(transcript.read_text().splitlines()) == 6

    with program.up():
        rows = {row["key"]: row for row in program.json("sessions")["sessions"]}
        assert rows[MAIN]["sessionId"] == MAIN_ID
        assert rows[MAIN]["lastTo"] == "telegram:7"
        assert rows["agent:main:telegram:group:-100:topic:7"]["channel"] == "telegram"
        assert "what is in the folder?" in program.answer("history", "main")
        reply = program.answer("chat", "hello again")
        assert reply.strip()
        assert "hello again" in transcript.read_text()
    assert program.answer("import", str(theirs), "--yes").endswith("Nothing was written: there was nothing new.\n")


def test_their_main_session_stands_beside_the_one_that_is_here(program: Program, theirs: Path) -> None:
    with program.up():
        program.answer("chat", "mine")
    said = program.answer("import", str(theirs), "--yes")
    with program.up():
        rows = {row["key"]: row for row in program.json("sessions")["sessions"]}
        read = program.answer("history", f"agent:main:imported:{MAIN_ID}")

    assert "was agent:main:main; another session here has agent:main:main" in " ".join(said.split())
    assert f"\nWrote 3 sessions with 8 new messages to {program.state}\n" in said
    assert said.endswith(f"{program.option} sessions\n")
    assert rows[f"agent:main:imported:{MAIN_ID}"]["classification"] == "other"
    assert rows[MAIN]["sessionId"] != MAIN_ID
    assert "what is in the folder?" in read


def test_a_person_is_asked_and_may_say_no(program: Program, theirs: Path) -> None:
    with program.terminal("import", str(theirs)) as terminal:
        terminal.expect("Take them? [y/N]: ")
        terminal.type("n\r")
        terminal.expect("Nothing was written.")
        assert terminal.wait() == 0
    assert not (program.state / "backchannel.db").exists()

    with program.terminal("import", str(theirs)) as terminal:
        terminal.expect("Take them? [y/N]: ")
        terminal.type("y\r")
        terminal.expect("Wrote 3 sessions with 8 new messages to ")
        terminal.expect("Then see them with: ")
        assert terminal.wait() == 0
        assert terminal.shown.count("3 new") == 1
    with program.terminal("import", str(theirs)) as terminal:
        terminal.expect("There is nothing to take.")
        assert terminal.wait() == 0


def test_a_running_gateway_must_be_stopped_first(program: Program, theirs: Path) -> None:
    with program.up():
        refused = program.run("import", str(theirs), "--yes")
        assert refused.returncode == 1
        assert "stop it first" in refused.stderr
        assert "3 new" in program.answer("import", str(theirs), "--dry-run")
        assert program.json("sessions")["sessions"] == []


def test_a_folder_without_sessions_is_told_apart(program: Program, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    newer = tmp_path / "newer" / "agents" / "main" / "agent"
    newer.mkdir(parents=True)
    (newer / "openclaw-agent.sqlite").touch()
    for folder, words in (
        (tmp_path / "nowhere", "is no folder"),
        (empty, "expected agents/<id>/sessions/sessions.json"),
        (tmp_path / "newer", "keeps them in a database"),
        (newer.parent.parent, "keeps them in a database"),
        (newer.parent, "keeps them in a database"),
        (newer, "keeps them in a database"),
    ):
        refused = program.run("import", str(folder), "--yes")
        assert refused.returncode == 1
        assert words in refused.stderr


def test_the_folder_that_is_written_to_is_not_imported(program: Program, tmp_path: Path) -> None:
    openclaw(program.state)
    refused = program.run("import", str(program.state), "--yes")
    assert refused.returncode == 1
    assert "is in the state folder that is written to" in refused.stderr

    linked = Program(tmp_path / "linked")
    linked.state.mkdir(parents=True)
    (linked.state / "agents").symlink_to(program.state / "agents")
    refused = linked.run("import", str(program.state), "--yes")
    assert "is in the state folder that is written to" in refused.stderr

    other = Program(tmp_path / "the other")
    other.home.mkdir()
    other.write_config("{}")
    other.answer("import", str(program.state), "--yes")
    told = program.run("import", str(other.state))
    assert f"export it: {other.option} export" in told.stderr.replace("\n", " ")


def test_texts_of_their_files_cannot_control_the_terminal(program: Program, tmp_path: Path) -> None:
    write(
        tmp_path / "theirs",
        {"\x1b]0;owned\x07": {"sessionId": MAIN_ID, "label": "\x1b[2Jx"}, "main": {"sessionId": "\x1b[2J"}},
        t1=lines({"type": "\x1b[2Jtype"}),
    )
    with program.terminal("import", str(tmp_path / "theirs"), "--yes") as terminal:
        assert terminal.wait() == 0
    assert "\x07" not in terminal.shown
    assert "\x1b" not in terminal.shown.replace("\\x1b", "")


# Memory

_MEASURED = """
import resource, sys
from backchannel.cli.main import main
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


def _peak_mb(program: Program, folder: Path, state: str) -> int:
    """Import a folder in a process of its own, and tell the most memory it had."""
    command = [sys.executable, "-c", _MEASURED, "--state", state, "import", str(folder), "--yes"]
    done = subprocess.run(command, env=program.env, cwd=program.home, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1])


def test_a_transcript_of_100_mb_and_a_line_of_50_mb_cost_little_memory(program: Program, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    message = lines(said("", "user", "lorem ipsum " * 500))
    write(small, {"main": {"sessionId": MAIN_ID}}, t1=message)
    write(large, {"main": {"sessionId": MAIN_ID}, "cron:x": {"sessionId": GROUP_ID}}, t1=lines(header(MAIN_ID)))
    with (large / f"{MAIN_ID}.jsonl").open("a") as file:
        for _ in range(100_000_000 // len(message) // 100):
            file.write(message * 100)
    with (large / f"{GROUP_ID}.jsonl").open("wb") as broken:
        for _ in range(50):
            broken.write(b'{"' * 500_000)
        broken.write(b"\n" + message.encode())

    grown = _peak_mb(program, large, "large-state") - _peak_mb(program, small, "small-state")
    assert grown < 100, f"{grown} MB more than for one message"
