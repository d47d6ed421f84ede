"""The files of another program's folder are found and read with care."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from backchannel.openclaw import files
from backchannel.openclaw.files import (
    RawLine,
    SessionsFolder,
    UnreadableFile,
    find_session_folders,
    load_store,
    open_transcript,
    read_lines,
)

ID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "their" / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    (folder / "sessions.json").write_text("{}")
    return tmp_path / "their"


@pytest.fixture
def sessions(root: Path) -> SessionsFolder:
    return SessionsFolder(root / "agents" / "main" / "sessions", "main")


def opened(root: Path, sessions: SessionsFolder, named: str | None = None) -> str:
    transcript = open_transcript(root, sessions, ID, named)
    with transcript.file:
        return transcript.file.read().decode()


# Folders


def test_every_layout_is_found(root: Path) -> None:
    for folder in (root / "sessions", root / "agents" / "Research Bot" / "sessions", root / "agents" / "none"):
        folder.mkdir(parents=True)
    (root / "sessions" / "sessions.json").write_text("{}")
    (root / "agents" / "Research Bot" / "sessions" / "sessions.json").write_text("{}")

    found = {(sessions.path.relative_to(root).as_posix(), sessions.agent) for sessions in find_session_folders(root)}
    assert found == {
        ("agents/main/sessions", "main"),
        ("agents/Research Bot/sessions", "research-bot"),
        ("sessions", "main"),
    }


def test_a_folder_that_is_pointed_at_directly_is_its_agents(root: Path) -> None:
    ops = root / "agents" / "ops" / "sessions"
    ops.mkdir(parents=True)
    (ops / "sessions.json").write_text("{}")
    (root / "sessions.json").write_text("{}")

    assert find_session_folders(ops) == [SessionsFolder(ops, "ops")]
    assert find_session_folders(ops.parent) == [SessionsFolder(ops, "ops")]
    assert SessionsFolder(root, "main") in find_session_folders(root)
    assert find_session_folders(root / "agents") == []


def test_a_store_that_leads_out_of_the_folder_is_not_read(root: Path, sessions: SessionsFolder, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    sessions.store.unlink()
    sessions.store.symlink_to(secret)

    with pytest.raises(UnreadableFile, match="leads out of the folder"):
        load_store(root, sessions)


def test_a_store_that_is_too_large_is_not_read(
    root: Path, sessions: SessionsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST_STORE", 1)
    with pytest.raises(UnreadableFile, match="larger than"):
        load_store(root, sessions)


# Transcripts


def test_a_transcript_is_found_by_the_id_or_by_its_topic(root: Path, sessions: SessionsFolder) -> None:
    (sessions.path / f"{ID}-topic-7.jsonl").write_text("topic")
    assert opened(root, sessions) == "topic"
    (sessions.path / f"{ID}.jsonl").write_text("usual")
    assert opened(root, sessions) == "usual"


def test_a_transcript_is_found_where_the_entry_says(root: Path, sessions: SessionsFolder) -> None:
    (sessions.path / "named.jsonl").write_text("named")
    assert opened(root, sessions, "named.jsonl") == "named"
    assert opened(root, sessions, str(sessions.path / "named.jsonl")) == "named"


def test_a_folder_that_was_moved_keeps_its_transcripts(root: Path, sessions: SessionsFolder) -> None:
    (sessions.path / f"{ID}.jsonl").write_text("moved")
    assert opened(root, sessions, f"/home/them/.clawdbot/agents/main/sessions/{ID}.jsonl") == "moved"


@pytest.mark.parametrize(
    "named",
    [
        "/etc/passwd",
        "../../../../etc/passwd",
        "sessions.json",
        "../../../../outside.jsonl",
        "a\0b.jsonl",
        "x" * 5000 + ".jsonl",
        "/dev/stdin",
    ],
)
def test_a_file_outside_the_folder_is_refused(root: Path, sessions: SessionsFolder, tmp_path: Path, named: str) -> None:
    (tmp_path / "outside.jsonl").write_text("secret")
    with pytest.raises(UnreadableFile):
        open_transcript(root, sessions, ID, named)


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_followed(
    root: Path, sessions: SessionsFolder, tmp_path: Path
) -> None:
    (tmp_path / "outside.jsonl").write_text("secret")
    link = sessions.path / f"{ID}.jsonl"
    link.symlink_to(tmp_path / "outside.jsonl")
    with pytest.raises(UnreadableFile, match="leads out of the folder"):
        open_transcript(root, sessions, ID, None)

    link.unlink()
    (sessions.path / "real.jsonl").write_text("within")
    link.symlink_to("real.jsonl")
    assert opened(root, sessions) == "within"

    link.unlink()
    link.symlink_to(link.name)
    with pytest.raises(UnreadableFile):
        open_transcript(root, sessions, ID, None)


def test_what_is_no_file_is_refused_at_once(root: Path, sessions: SessionsFolder) -> None:
    os.mkfifo(sessions.path / f"{ID}.jsonl")
    with pytest.raises(UnreadableFile, match="is no file"):
        open_transcript(root, sessions, ID, None)
    (sessions.path / "folder.jsonl").mkdir()
    with pytest.raises(UnreadableFile, match="is no file"):
        open_transcript(root, sessions, ID, "folder.jsonl")


def test_a_transcript_that_is_not_there_is_told(root: Path, sessions: SessionsFolder) -> None:
    with pytest.raises(UnreadableFile, match=f"there is no {ID}.jsonl"):
        open_transcript(root, sessions, ID, None)


# Lines


def test_lines_come_with_their_numbers_and_sizes() -> None:
    file = io.BytesIO(b"\xef\xbb\xbfone\r\n\ntwo\nthree")

    assert list(read_lines(file)) == [
        RawLine(1, b"one", 8, True),
        RawLine(2, b"", 1, True),
        RawLine(3, b"two", 4, True),
        RawLine(4, b"three", 5, False),
    ]


def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 10)
    monkeypatch.setattr(files, "PASSED_OVER", 7)
    file = io.BytesIO(b"a" * 9 + b"\n" + b"b" * 10 + b"\n" + b"c" * 100 + b"\nshort\n" + b"d" * 50)

    assert list(read_lines(file)) == [
        RawLine(1, b"a" * 9, 10, True),
        RawLine(2, None, 11, True),
        RawLine(3, None, 101, True),
        RawLine(4, b"short", 6, True),
        RawLine(5, None, 50, False),
    ]
