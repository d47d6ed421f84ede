"""`backchannel import` and `backchannel export` as people run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .program import Program
from .their_folders import AT, GROUP_ID, MAIN_ID, header, lines, openclaw, said, write

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
    assert said.strip().endswith(f"import {theirs} --yes")
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
    assert program.json("import", str(theirs), "--yes")["counts"]["unchanged"] == 3


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
        terminal.expect("3 new")
        assert terminal.wait() == 0
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

    other = Program(tmp_path / "other")
    other.home.mkdir()
    other.write_config("{}")
    other.answer("import", str(program.state), "--yes")
    told = program.run("import", str(other.state))
    assert "`backchannel export` makes a folder that can be imported" in told.stderr


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


# Export


@pytest.fixture
def filled(program: Program, theirs: Path) -> Program:
    program.answer("import", str(theirs), "--yes")
    return program


def exported(folder: Path, agent: str = "main") -> dict[str, dict[str, object]]:
    store = folder / "agents" / agent / "sessions" / "sessions.json"
    found: dict[str, dict[str, object]] = json.loads(store.read_text())
    return found


def test_an_export_is_what_can_be_imported(filled: Program) -> None:
    assert "Wrote 3 sessions with 8 messages to out" in filled.answer("export", "out")
    folder = filled.home / "out"

    assert exported(folder)[MAIN]["sessionId"] == MAIN_ID
    assert exported(folder)[MAIN]["lastTo"] == "telegram:7"
    assert exported(folder, "research-bot")["agent:research-bot:cron:nightly"]["spawnedBy"] == MAIN
    transcript = folder / "agents" / "main" / "sessions" / f"{MAIN_ID}.jsonl"
    first, second, *_ = map(json.loads, transcript.read_text().splitlines())
    assert (first["type"], first["version"], first["id"]) == ("session", 3, MAIN_ID)
    assert (second["type"], second["id"], second["parentId"]) == ("message", "a2", None)
    assert second["message"]["timestamp"] == AT
    assert second["timestamp"] == "2025-10-01T10:00:00.000Z"
    assert transcript.stat().st_mode & 0o077 == 0


def test_an_export_goes_on_beside_a_running_gateway(filled: Program) -> None:
    with filled.up():
        filled.answer("chat", "beside you")
        told = filled.json("export", "out")
    assert told["count"] == 3
    assert {entry["key"]: entry["messages"] for entry in told["sessions"]}[MAIN] == 8
    transcript = filled.home / "out" / "agents" / "main" / "sessions" / f"{MAIN_ID}.jsonl"
    assert "beside you" in transcript.read_text()


def test_only_the_sessions_asked_for_are_exported(filled: Program) -> None:
    filled.answer("export", "one", "--session", "main")
    assert [*exported(filled.home / "one")] == [MAIN]
    filled.answer("export", "by-id", "--session", GROUP_ID, "-s", "main")
    assert len(exported(filled.home / "by-id")) == 2
    filled.answer("export", "agent", "--agent", "Research Bot")
    assert [path.name for path in (filled.home / "agent" / "agents").iterdir()] == ["research-bot"]

    refused = filled.run("export", "none", "--session", "cron:none")
    assert refused.returncode == 1
    assert "there is no session 'cron:none'" in refused.stderr
    assert "nothing was written" in filled.answer("export", "none", "--agent", "nobody")
    assert not (filled.home / "none").exists()


def test_deleted_sessions_are_exported_only_when_asked_for(filled: Program) -> None:
    with filled.up():
        call = [sys.executable, "-c", _DELETE, str(filled.state)]
        subprocess.run(call, env=filled.env, check=True, timeout=30)
    filled.answer("export", "live")
    filled.answer("export", "all", "--archived")

    group = "agent:main:telegram:group:-100:topic:7"
    assert group not in exported(filled.home / "live")
    assert isinstance(exported(filled.home / "all")[group]["archivedAt"], int)


_DELETE = """
import sys
from pathlib import Path
from backchannel.cli.client import connected
from backchannel.cli.options import Options
with connected(Options(state=Path(sys.argv[1]))) as client:
    client.call("sessions.delete", key="agent:main:telegram:group:-100:topic:7")
"""


def test_a_folder_that_is_not_empty_is_written_to_only_when_told_to(filled: Program) -> None:
    folder = filled.home / "out"
    folder.mkdir()
    (folder / "mine").write_text("keep me")
    refused = filled.run("export", "out")
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert [*folder.iterdir()] == [folder / "mine"]

    filled.answer("export", "out", "--force")
    assert (folder / "mine").read_text() == "keep me"
    assert MAIN in exported(folder)
    assert not [path for path in folder.rglob(".*") if path.is_file()]

    (filled.home / "file").touch()
    assert "is no folder" in filled.run("export", "file").stderr


def test_without_a_database_there_is_nothing_to_export(program: Program) -> None:
    refused = program.run("export", "out")
    assert refused.returncode == 1
    assert "there are no sessions yet" in refused.stderr
    assert not program.state.exists()
