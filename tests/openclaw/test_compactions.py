"""Summaries of older messages come over from OpenClaw, go there, and come back as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backchannel.core.cut import read_cut
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message
from backchannel.openclaw.lines import ReadMessage, read_line
from backchannel.storage.store import Store
from tests.storage.support import Host, transcript

from .test_importing import export, take
from .their_folders import AT, ISO, MAIN_ID, header, lines, said, write

pytestmark = pytest.mark.anyio

MAIN = "agent:main:main"
COMPACTION = {
    "type": "compaction",
    "id": "c1",
    "parentId": "a4",
    "timestamp": ISO,
    "summary": "They spoke of ships.",
    "firstKeptEntryId": "a3",
    "tokensBefore": 9000,
}


def their_folder(root: Path) -> Path:
    told = lines(
        header(MAIN_ID),
        said("a1", "user", "ships"),
        said("a2", "assistant", "many ships"),
        said("a3", "user", "and harbours?"),
        said("a4", "assistant", "few"),
        COMPACTION,
        said("a5", "user", "thanks"),
    )
    write(root / "agents" / "main" / "sessions", {MAIN: {"sessionId": MAIN_ID, "updatedAt": AT}}, t1=told)
    return root


async def opened(store: Store) -> tuple[list[str], list[str]]:
    """Read what a model's view of the main session begins with, and what it has then."""
    session = await store.session(MAIN)
    assert session is not None
    part = await store.context(session.session_id, max_bytes=100_000)
    summary = [] if part.summary is None else [part.summary.text]
    return summary, [message.text for _, message in part.lines]


def entry_of(messages: list[Message]) -> Message:
    (entry,) = [message for message in messages if message.compaction is not None]
    return entry


def test_a_compaction_names_the_first_message_that_it_does_not_cover() -> None:
    found = read_line(json.dumps(COMPACTION).encode(), before=AT)
    assert isinstance(found, ReadMessage) and found.first_kept == "a3"
    assert found.message.compaction is not None and found.message.compaction.tokens_before == 9000


async def test_their_summary_stands_for_what_it_covered_and_comes_back_from_an_export(tmp_path: Path) -> None:
    host = Host(tmp_path / "here")
    await take(host, their_folder(tmp_path / "theirs"))
    store = await host.start()
    imported = await transcript(store, SessionKey.parse(MAIN))
    entry = entry_of(imported)
    assert entry.compaction is not None
    assert (entry.compaction.through_message_id, entry.compaction.messages) == ("a2", 2)
    assert await opened(store) == (
        ["They spoke of ships."],
        ["and harbours?", "few", "They spoke of ships.", "thanks"],
    )
    await host.stop()

    await export(host, tmp_path / "out")
    (file,) = (tmp_path / "out").rglob("*.jsonl")
    (line,) = [row for row in map(json.loads, file.read_text().splitlines()) if row["type"] == "compaction"]
    assert {name: line[name] for name in ("summary", "firstKeptEntryId", "tokensBefore")} == {
        "summary": "They spoke of ships.",
        "firstKeptEntryId": "a3",
        "tokensBefore": 9000,
    }

    there = Host(tmp_path / "there")
    await take(there, tmp_path / "out")
    store = await there.start()
    assert await transcript(store, SessionKey.parse(MAIN)) == imported
    assert (await opened(store))[0] == ["They spoke of ships."]
    session = await store.session(MAIN)
    assert session is not None
    cut = read_cut((await store.context(session.session_id, max_bytes=1)).head.cut)
    assert (cut.from_seq, cut.covered, cut.summary_id) == (2, 2, entry.id)
    await there.stop()


async def test_a_summary_that_names_no_message_here_is_a_note(tmp_path: Path) -> None:
    host = Host(tmp_path / "here")
    folder = their_folder(tmp_path / "theirs")
    (file,) = folder.rglob("*.jsonl")
    file.write_text(file.read_text().replace('"firstKeptEntryId": "a3"', '"firstKeptEntryId": "zz"'))
    await take(host, folder)
    store = await host.start()
    messages = await transcript(store, SessionKey.parse(MAIN))
    assert [message.label for message in messages if message.text == "They spoke of ships."] == ["compaction summary"]
    assert not [message for message in messages if message.compaction is not None]
    await host.stop()
