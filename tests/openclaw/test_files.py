"""The files of another program's folder are found and read with care."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from backchannel.openclaw import files as foreign
from backchannel.openclaw.files import Line, Shelf, Unreachable, find_shelves, load_store, open_transcript, read_lines

ID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "their" / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    (folder / "sessions.json").write_text("{}")
    return tmp_path / "their"


@pytest.fixture
def shelf(root: Path) -> Shelf:
    return Shelf(root / "agents" / "main" / "sessions", "main")


def opened(root: Path, shelf: Shelf, named: str | None = None) -> str:
    transcript = open_transcript(root, shelf, ID, named)
    with transcript.file:
        return transcript.file.read().decode()


# Folders


def test_every_layout_is_found(root: Path) -> None:
    for folder in (root / "sessions", root / "agents" / "Research Bot" / "sessions", root / "agents" / "none"):
        folder.mkdir(parents=True)
    (root / "sessions" / "sessions.json").write_text("{}")
    (root / "agents" / "Research Bot" / "sessions" / "sessions.json").write_text("{}")

    found = {(shelf.folder.relative_to(root).as_posix(), shelf.agent) for shelf in find_shelves(root)}
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

    assert find_shelves(ops) == [Shelf(ops, "ops")]
    assert find_shelves(ops.parent) == [Shelf(ops, "ops")]
    assert Shelf(root, "main") in find_shelves(root)
    assert find_shelves(root / "agents") == []


def test_a_store_that_leads_out_of_the_folder_is_not_read(root: Path, shelf: Shelf, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    shelf.store.unlink()
    shelf.store.symlink_to(secret)

    with pytest.raises(Unreachable, match="leads out of the folder"):
        load_store(root, shelf)


def test_a_store_that_is_too_large_is_not_read(root: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LARGEST_STORE", 1)
    with pytest.raises(Unreachable, match="larger than"):
        load_store(root, shelf)


# Transcripts


def test_a_transcript_is_found_by_the_id_or_by_its_topic(root: Path, shelf: Shelf) -> None:
    (shelf.folder / f"{ID}-topic-7.jsonl").write_text("topic")
    assert opened(root, shelf) == "topic"
    (shelf.folder / f"{ID}.jsonl").write_text("usual")
    assert opened(root, shelf) == "usual"


def test_a_transcript_is_found_where_the_entry_says(root: Path, shelf: Shelf) -> None:
    (shelf.folder / "named.jsonl").write_text("named")
    assert opened(root, shelf, "named.jsonl") == "named"
    assert opened(root, shelf, str(shelf.folder / "named.jsonl")) == "named"


def test_a_folder_that_was_moved_keeps_its_transcripts(root: Path, shelf: Shelf) -> None:
    (shelf.folder / f"{ID}.jsonl").write_text("moved")
    assert opened(root, shelf, f"/home/them/.clawdbot/agents/main/sessions/{ID}.jsonl") == "moved"


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
def test_a_file_outside_the_folder_is_refused(root: Path, shelf: Shelf, tmp_path: Path, named: str) -> None:
    (tmp_path / "outside.jsonl").write_text("secret")
    with pytest.raises(Unreachable):
        open_transcript(root, shelf, ID, named)


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_followed(
    root: Path, shelf: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "outside.jsonl").write_text("secret")
    link = shelf.folder / f"{ID}.jsonl"
    link.symlink_to(tmp_path / "outside.jsonl")
    with pytest.raises(Unreachable, match="leads out of the folder"):
        open_transcript(root, shelf, ID, None)

    link.unlink()
    (shelf.folder / "real.jsonl").write_text("within")
    link.symlink_to("real.jsonl")
    assert opened(root, shelf) == "within"

    link.unlink()
    link.symlink_to(link.name)
    with pytest.raises(Unreachable):
        open_transcript(root, shelf, ID, None)


def test_what_is_no_file_is_refused_at_once(root: Path, shelf: Shelf) -> None:
    os.mkfifo(shelf.folder / f"{ID}.jsonl")
    with pytest.raises(Unreachable, match="is no file"):
        open_transcript(root, shelf, ID, None)
    (shelf.folder / "folder.jsonl").mkdir()
    with pytest.raises(Unreachable, match="is no file"):
        open_transcript(root, shelf, ID, "folder.jsonl")


def test_a_transcript_that_is_not_there_is_told(root: Path, shelf: Shelf) -> None:
    with pytest.raises(Unreachable, match=f"there is no {ID}.jsonl"):
        open_transcript(root, shelf, ID, None)


# Lines


def test_lines_come_with_their_numbers_and_sizes() -> None:
    file = io.BytesIO(b"\xef\xbb\xbfone\r\n\ntwo\nthree")

    assert list(read_lines(file)) == [
        Line(1, b"one", 8, True),
        Line(2, b"", 1, True),
        Line(3, b"two", 4, True),
        Line(4, b"three", 5, False),
    ]


def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LONGEST_LINE", 10)
    monkeypatch.setattr(foreign, "PASSED_OVER", 7)
    file = io.BytesIO(b"a" * 9 + b"\n" + b"b" * 10 + b"\n" + b"c" * 100 + b"\nshort\n" + b"d" * 50)

    assert list(read_lines(file)) == [
        Line(1, b"a" * 9, 10, True),
        Line(2, None, 11, True),
        Line(3, None, 101, True),
        Line(4, b"short", 6, True),
        Line(5, None, 50, False),
    ]
