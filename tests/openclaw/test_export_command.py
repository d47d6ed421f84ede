"""`backchannel export` as people run it: a client of the gateway, wherever that is and whenever it comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from backchannel.cli.client import Link, connected
from backchannel.cli.options import NO_GATEWAY, CommandFailed, Options
from backchannel.openclaw.exporting import READ_AHEAD, ExportFilter, ListedSession, SessionExport
from backchannel.wire.answers import SessionDeleted, SessionPatched
from tests.cli.program import Program, Up

from .their_folders import AT, GROUP_ID, MAIN_ID, lines, openclaw, said, write

MAIN = "agent:main:main"
GROUP = "agent:main:telegram:group:-100:topic:7"


@pytest.fixture
def filled(program: Program, tmp_path: Path) -> Program:
    """The program on a state folder with three sessions."""
    program.answer("import", str(openclaw(tmp_path / "theirs")), "--yes")
    return program


@pytest.fixture
def up(filled: Program) -> Iterator[Up]:
    with filled.up() as running:
        yield running


def exported(folder: Path, agent: str = "main") -> dict[str, dict[str, object]]:
    store = folder / "agents" / agent / "sessions" / "sessions.json"
    found: dict[str, dict[str, object]] = json.loads(store.read_text())
    return found


@pytest.mark.usefixtures("up")
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
    again = Program(filled.home / "again")
    again.home.mkdir()
    assert again.json("import", str(folder), "--yes")["counts"]["new"] == 3


@pytest.mark.usefixtures("up")
def test_an_export_has_what_was_said_a_moment_ago(filled: Program) -> None:
    filled.answer("chat", "beside you")
    told = filled.json("export", "out")
    assert told["count"] == 3
    assert {entry["key"]: entry["messages"] for entry in told["sessions"]}[MAIN] == 8
    transcript = filled.home / "out" / "agents" / "main" / "sessions" / f"{MAIN_ID}.jsonl"
    assert told["sessions"][0]["file"] == str(transcript.relative_to(filled.home))
    assert "beside you" in transcript.read_text()


@pytest.mark.usefixtures("up")
def test_only_the_sessions_asked_for_are_exported(filled: Program) -> None:
    filled.answer("export", "one", "--session", "main")
    assert [*exported(filled.home / "one")] == [MAIN]
    filled.answer("export", "by-id", "--session", GROUP_ID, "-s", "main")
    assert len(exported(filled.home / "by-id")) == 2
    filled.answer("export", "by-label", "--session", "ops")
    assert [*exported(filled.home / "by-label")] == [GROUP]
    filled.answer("export", "agent", "--agent", "Research Bot")
    assert [path.name for path in (filled.home / "agent" / "agents").iterdir()] == ["research-bot"]

    refused = filled.run("export", "none", "--session", "cron:none")
    assert refused.returncode == 1
    assert "no session 'cron:none'" in refused.stderr
    assert "nothing was written" in filled.answer("export", "none", "--agent", "nobody")
    assert not (filled.home / "none").exists()


@pytest.mark.usefixtures("up")
def test_deleted_sessions_are_exported_only_when_asked_for(filled: Program) -> None:
    with connected(Options(state=filled.state)) as client:
        client.call("sessions.delete", SessionDeleted, key=GROUP)
    filled.answer("export", "live")
    filled.answer("export", "all", "--archived")

    assert GROUP not in exported(filled.home / "live")
    assert isinstance(exported(filled.home / "all")[GROUP]["archivedAt"], int)


@pytest.mark.usefixtures("up")
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
    nowhere = filled.run("export", "file/under")
    assert (nowhere.returncode, "cannot write to file/under" in nowhere.stderr) == (1, True)


def test_without_a_gateway_it_says_how_to_start_one_and_writes_nothing(filled: Program) -> None:
    for words in ([], ["--session", "main"], ["--session", "ops"]):
        refused = filled.run("export", "out", *words)
        assert refused.returncode == NO_GATEWAY
        assert "Start one with: " in refused.stderr
    assert not (filled.home / "out").exists()


def test_a_gateway_elsewhere_is_exported_with_its_address_and_a_token_that_may_read(filled: Program, up: Up) -> None:
    token = filled.json("tokens", "create", "--scope", "read")["token"]
    far = Program(filled.home / "far")
    far.home.mkdir()
    said = far.answer("--url", up.url, "export", "out", BACKCHANNEL_TOKEN=token)

    assert "Wrote 3 sessions" in said
    assert MAIN in exported(far.home / "out")
    assert not far.state.exists()


def test_an_export_goes_on_when_the_gateway_comes_back(filled: Program) -> None:
    folder = filled.home / "out"
    heard: list[str] = []
    with filled.up() as first, Link(Options(state=filled.state), heard.append) as link:
        writing = SessionExport(link, folder, ExportFilter()).run()
        written = [next(writing)]
        first.kill()
        assert not (folder / "agents" / "main" / "sessions" / "sessions.json").exists()
        with filled.up():
            written += writing

    assert [one.messages for one in written] == [6, 1, 1]
    assert len(exported(folder)) + len(exported(folder, "research-bot")) == 3
    assert heard == ["The gateway went away. Waiting for it to come back (Ctrl-C stops waiting) ...", "It is back."]


def test_a_killed_export_leaves_nothing_that_looks_whole_and_the_next_one_clears_it(filled: Program) -> None:
    folder = filled.home / "out"
    with filled.up():
        ended = subprocess.run(
            [sys.executable, "-c", _KILLED, str(filled.state), str(folder)], env=filled.env, timeout=60, check=False
        )
        left = [path.relative_to(folder).parts[0] for path in folder.rglob("*")]
        assert ended.returncode == -signal.SIGKILL
        assert left and all(name.startswith(".unfinished-") for name in left)
        assert not (folder / "agents").exists()
        assert "Wrote 3 sessions" in filled.answer("export", "out")
    assert [path.name for path in folder.iterdir()] == ["agents"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from backchannel.cli.client import Link
from backchannel.cli.options import Options
from backchannel.openclaw.exporting import ExportFilter, SessionExport
with Link(Options(state=Path(sys.argv[1])), print) as link:
    for written in SessionExport(link, Path(sys.argv[2]), ExportFilter()).run():
        if written.key.startswith("agent:research-bot:"):  # the first agent is whole by now
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_export_over_another_replaces_its_sessions_and_keeps_other_files(filled: Program) -> None:
    with filled.up():
        filled.answer("export", "out")
        kept = filled.home / "out" / "agents" / "main" / "sessions" / "old.jsonl"
        kept.write_text("mine")
        filled.answer("chat", "one more")
        filled.answer("export", "out", "--force")
    folder = filled.home / "out"
    assert kept.read_text() == "mine"
    assert "one more" in (folder / "agents" / "main" / "sessions" / f"{MAIN_ID}.jsonl").read_text()
    assert [path.name for path in folder.iterdir()] == ["agents"]


def test_an_export_syncs_once_however_many_sessions_it_has(filled: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def count(number: int) -> None:
        synced.append(number)
        fsync(number)

    monkeypatch.setattr(os, "fsync", count)
    with filled.up(), Link(Options(state=filled.state), print) as link:
        assert len([*SessionExport(link, filled.home / "out", ExportFilter()).run()]) == 3
    assert len(synced) == 1  # the folder's names; the files are stored by one sync of the file system


def test_a_session_is_written_as_it_was_when_it_was_listed(filled: Program) -> None:
    with filled.up(), Link(Options(state=filled.state), print) as link:
        writing = SessionExport(link, filled.home / "out", ExportFilter()).run()
        first = next(writing)
        with connected(Options(state=filled.state)) as client:
            client.call("sessions.reset", SessionPatched, key="agent:research-bot:cron:nightly")
        last = [*writing][-1]

    assert (first.key, last.key) == (MAIN, "agent:research-bot:cron:nightly")
    assert last.messages == 1
    entry = exported(filled.home / "out", "research-bot")[last.key]
    assert last.file.stem == entry["sessionId"] == last.session_id


def test_many_sessions_are_exported(program: Program, tmp_path: Path) -> None:
    count = 3 * READ_AHEAD + 101  # several pages of sessions
    folder = tmp_path / "theirs"
    write(folder, {f"cron:{n:03}": {"sessionId": f"s{n}"} for n in range(count)})
    for n in range(count):
        (folder / f"s{n}.jsonl").write_text(lines({"role": "user", "content": str(n)}))
    program.answer("import", str(folder), "--yes")
    with program.up():
        told = program.json("export", "out")

    assert [entry["key"] for entry in told["sessions"]] == [f"agent:main:cron:{n:03}" for n in range(count)]
    for n, entry in enumerate(told["sessions"]):
        (line,) = (program.home / entry["file"]).read_text().splitlines()[1:]
        assert json.loads(line)["message"]["content"] == [{"type": "text", "text": str(n)}]


@pytest.mark.parametrize(
    ("key", "session_id"),
    [(MAIN, "../../evil"), (MAIN, "/etc/evil"), (MAIN, ""), ("agent:..:main", "x"), ("../evil", "x"), ("", "x")],
)
def test_no_gateway_makes_an_export_write_outside_its_folder(key: str, session_id: str) -> None:
    told = {"key": key, "sessionId": session_id, "length": 0, "entry": {}, "header": {}}
    with pytest.raises(CommandFailed, match="cannot be written"):
        _ = msgspec.convert(told, ListedSession).agent


# Memory

_MEASURED = """
import resource, sys
from backchannel.cli.main import main
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


def _peak_mb(program: Program, session: str) -> int:
    """Export a session in a process of its own, and tell the most memory it had."""
    command = [sys.executable, "-c", _MEASURED, "--state", str(program.state), "export", session, "-s", session]
    done = subprocess.run(command, env=program.env, cwd=program.home, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1])


def test_a_long_transcript_costs_little_memory_and_a_message_larger_than_a_frame_arrives(
    program: Program, tmp_path: Path
) -> None:
    folder, large = tmp_path / "theirs", "ab" * 3_000_000
    message = lines(said("", "user", "lorem ipsum " * 500))
    write(folder, {"cron:small": {"sessionId": "small"}, "cron:long": {"sessionId": "long"}})
    (folder / "small.jsonl").write_text(message)
    (folder / "long.jsonl").write_text(message * 8000 + lines(said("large", "user", large)))
    program.answer("import", str(folder), "--yes")
    with program.up():
        grown = _peak_mb(program, "cron:long") - _peak_mb(program, "cron:small")

    written = program.home / "cron:long" / "agents" / "main" / "sessions" / "long.jsonl"
    with written.open() as file:
        ((count, last),) = deque(enumerate(file, 1), maxlen=1)
    assert count == 1 + 8000 + 1
    assert json.loads(last)["message"]["content"][0]["text"] == large
    assert grown < 80, f"{grown} MB more than for one message"
