"""Transcript files follow the database, and are brought back to it whatever was done to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from backchannel.core.facts import MessageAppended
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, decode_message
from backchannel.core.sessions import Session, SessionPatch
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.databases import database_at
from backchannel.storage.files.transcripts import MOST_UNNOTED, OVERLAP, TAIL, Transcripts
from backchannel.storage.store import Store
from tests.storage.support import ABORTED, MAIN, Host, begin, converse, note, partial_reply, result_of, step, transcript
from tests.support.databases import full_disk

pytestmark = pytest.mark.anyio

OTHER = SessionKey.of("main", "project")
BARRIER = SessionKey.of("main", "barrier")


async def load(store: Store, key: SessionKey = MAIN) -> Session:
    session = await store.session(str(key))
    assert session is not None
    return session


async def file_of(store: Store, key: SessionKey = MAIN) -> Path:
    """Name a session's file, when all that was committed so far is written."""
    barrier = await store.patch_session(BARRIER, SessionPatch())
    await store.rebuild_transcript(barrier.session_id)
    session = await load(store, key)
    return store.folder.transcript(session.agent_id, session.session_id)


def lines(path: Path) -> list[Message]:
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [decode_message(line) for line in content.splitlines()]


async def check(store: Store, key: SessionKey = MAIN) -> None:
    """Check that the file has each message of the transcript once, in order."""
    path = await file_of(store, key)
    assert lines(path) == await transcript(store, key)


# Following


async def test_the_file_has_every_message_once_and_in_order(store: Store) -> None:
    started = await begin(store, "look it up")
    calls = (await store.commit_reply(started.fence, step(started, "", ["a", "b"]))).calls
    for call in reversed(calls):
        await store.commit_result(started.fence, result_of(call), 1)
    await store.add_note(MAIN, note("waits"))
    await store.commit_reply(started.fence, step(started, "found", number=1))
    path = await file_of(store)
    assert path == store.folder.path / "agents" / "main" / "sessions" / f"{(await load(store)).session_id}.jsonl"
    assert [message.text for message in lines(path)] == ["look it up", "", "done", "done", "found", "waits"]
    await check(store)


async def test_a_closed_store_has_written_everything(host: Host) -> None:
    for n in range(50):
        await host.store.add_note(MAIN, note(str(n)))
    path = host.store.folder.transcript("main", (await load(host.store)).session_id)
    await host.stop()
    assert [message.text for message in lines(path)] == [str(n) for n in range(50)]


@pytest.mark.parametrize("text", ["x" * 1_048_576, "a\0b", "line\nbreak\r\u2028\u2029\x85", "🙂"])
async def test_any_text_is_one_line(store: Store, text: str) -> None:
    await converse(store, text)
    path = await file_of(store)
    assert path.read_bytes().count(b"\n") == 2
    assert lines(path)[0].text == text


async def test_a_reset_session_goes_on_in_a_new_file_and_the_old_one_stays(store: Store) -> None:
    started = await begin(store, "old")
    old = await file_of(store)
    await store.reset_session(MAIN)
    await store.finish_run(
        started.fence,
        ABORTED,
        reply=partial_reply(started, "par"),
        at_step=0,
        ran_ms=1,
    )
    await converse(store, "new")
    new = await file_of(store)
    assert [message.text for message in lines(old)] == ["old", "par"]
    assert [message.text for message in lines(new)] == ["new", "re: new"]


async def test_a_message_that_was_refused_is_not_in_the_file(host: Host) -> None:
    await host.die()
    disk = FullDisk()
    store = await host.start(faults=disk)
    await store.add_note(MAIN, note("before"))
    disk.is_full = True
    with pytest.raises(StorageFull):
        await store.add_note(MAIN, note("refused"))
    disk.is_full = False
    await store.add_note(MAIN, note("after"))
    path = await file_of(store)
    assert [message.text for message in lines(path)] == ["before", "after"]


class FullDisk:
    """A disk that takes no commit while it is full."""

    def __init__(self) -> None:
        self.is_full = False

    def before_commit(self, number: int) -> None:
        if self.is_full:
            raise full_disk()

    def after_commit(self, number: int) -> None:
        pass


# Mended


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"id":"half of a li')


def torn_inside(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def long_torn(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x" * 300_000)


def only_torn(path: Path) -> None:
    path.write_bytes(b'{"id":')


def without_its_end(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))


def without_its_middle(path: Path) -> None:
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[:1] + kept[3:]))


def without_its_beginning(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[3:]))


def with_a_line_twice(path: Path) -> None:
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


def gone_with_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent.parent)


def foreign(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


DAMAGE: dict[str, Callable[[Path], None]] = {
    "torn": torn,
    "torn inside": torn_inside,
    "long torn": long_torn,
    "only torn": only_torn,
    "no end": without_its_end,
    "no middle": without_its_middle,
    "no beginning": without_its_beginning,
    "a line twice": with_a_line_twice,
    "empty": empty,
    "gone": gone,
    "gone with its folder": gone_with_its_folder,
    "text": foreign(b"this is\nnot ours\n"),
    "blank lines": foreign(b"\n\n\n"),
    "not UTF-8": foreign(b'{"id":"\xff\xfe"}\n'),
    "not UTF-8 at all": foreign(b"\xff\xfe\n"),
    "an id that is no text": foreign(b'{"id":{}}\n'),
    "an id that is a huge number": foreign(b'{"id":999999999999999999999999}\n'),
    "a surrogate": foreign(b'{"id":"\\ud800"}\n'),
    "deep": foreign(b"[" * 100_000 + b"\n"),
    "a list": foreign(b"[1]\n"),
    "an unknown id": foreign(b'{"id":"nobody"}\n'),
    "zeros": foreign(b"\0" * 5000),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_a_damaged_file_is_whole_again_with_the_next_message_after_a_restart(
    host: Host, damage: Callable[[Path], None]
) -> None:
    for n in range(5):
        await host.store.add_note(MAIN, note(str(n)))
    path = await file_of(host.store)
    await host.die()
    damage(path)
    store = await host.start()
    await store.add_note(MAIN, note("next"))
    await check(store)
    await converse(store, "more")
    await check(store)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_a_damaged_file_is_whole_again_with_the_next_message_without_a_restart(
    store: Store, damage: Callable[[Path], None]
) -> None:
    for n in range(5):
        await store.add_note(MAIN, note(str(n)))
    damage(await file_of(store))
    await store.add_note(MAIN, note("next"))
    await check(store)
    await converse(store, "more")
    await check(store)


async def test_the_line_of_another_session_is_not_ours(host: Host) -> None:
    await converse(host.store, "mine")
    await converse(host.store, "theirs", OTHER)
    mine, theirs = await file_of(host.store), await file_of(host.store, OTHER)
    await host.die()
    mine.write_bytes(theirs.read_bytes())
    store = await host.start()
    await store.add_note(MAIN, note("next"))
    await check(store)


async def test_a_file_written_anew_is_ahead_of_the_facts_and_gets_no_line_twice(host: Host, tmp_path: Path) -> None:
    for n in range(4):
        await host.store.add_note(MAIN, note(str(n)))
    path = await file_of(host.store)
    await host.die()
    content = path.read_bytes()
    path.write_bytes(b"not ours\n")
    transcripts = Transcripts(database_at(host.url).open_reader, tmp_path / "note", lambda agent_id, session_id: path)
    for fact in (fact for fact in host.facts if isinstance(fact, MessageAppended)):
        transcripts.committed([fact])
        transcripts.rebuild("nobody", tmp_path / "barrier").result(5)  # each is a batch of its own
    transcripts.close()
    assert path.read_bytes() == content


async def test_messages_that_a_killed_process_did_not_write_are_filled_in(host: Host) -> None:
    await asyncio.gather(*(host.store.add_note(MAIN, note(str(n))) for n in range(2500)))  # more than are read at once
    path = await file_of(host.store)
    await host.die()
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    store = await host.start()
    await store.add_note(MAIN, note("next"))
    await check(store)


async def killed_before_the_last_line(host: Host, path: Path, *, lines: int = 1) -> None:
    """End the process as a kill between commit and append does: the lines are missing, and so is the note of them."""
    note_file = database_at(host.url).file_beside(host.folder, "-files")
    noted = int(note_file.read_text())
    await host.die()
    cut(path, lines)
    note_file.write_text(f"{noted - lines:<20}")


def cut(path: Path, lines: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lines]))


@pytest.mark.parametrize("ends", [None, "reset", "deleted"])
async def test_the_last_line_that_a_killed_process_did_not_write_is_there_after_the_start(
    host: Host, ends: str | None
) -> None:
    await converse(host.store, "first", OTHER)
    await converse(host.store, "second", OTHER)
    path = await file_of(host.store, OTHER)
    content = path.read_bytes()
    if ends == "reset":
        await host.store.reset_session(OTHER)
    if ends == "deleted":
        await host.store.delete_session(OTHER)
        (path,) = await archived_files(host.store, OTHER)
    await killed_before_the_last_line(host, path)
    assert path.read_bytes() != content
    await file_of(await host.start(), BARRIER)
    assert path.read_bytes() == content


async def test_a_start_looks_at_no_file_that_was_complete_long_before(host: Host) -> None:
    await converse(host.store, "old", OTHER)
    old = await file_of(host.store, OTHER)
    await asyncio.gather(*(host.store.add_note(MAIN, note(str(n))) for n in range(OVERLAP + MOST_UNNOTED + 10)))
    path = await file_of(host.store)
    content = path.read_bytes()
    old.write_bytes(b"")  # as nobody would: it is not looked at
    await killed_before_the_last_line(host, path, lines=3)
    await file_of(await host.start())
    assert (old.read_bytes(), path.read_bytes()) == (b"", content)


@pytest.mark.parametrize("spoilt", [None, b"", b"not a number at all", b"99999999999999999999"])
async def test_without_a_note_that_can_be_read_the_newest_files_are_looked_at(host: Host, spoilt: bytes | None) -> None:
    await converse(host.store)
    path = await file_of(host.store)
    content = path.read_bytes()
    await host.die()
    path.unlink()
    note_file = database_at(host.url).file_beside(host.folder, "-files")
    note_file.unlink()
    if spoilt is not None:
        note_file.write_bytes(spoilt)
    await file_of(await host.start())
    assert path.read_bytes() == content


async def test_a_last_line_that_is_longer_than_is_looked_at_is_left_as_it_is(host: Host) -> None:
    await host.store.add_note(MAIN, note("x" * 3 * TAIL))
    path = await file_of(host.store)
    content = path.read_bytes()
    await file_of(await host.restart())
    assert path.read_bytes() == content


# Places that cannot be written


async def test_an_unwritable_place_disturbs_no_commit_and_is_mended_later(store: Store) -> None:
    session = await store.patch_session(MAIN, SessionPatch())
    path = store.folder.transcript("main", session.session_id)
    path.mkdir(parents=True)
    await converse(store, "one")
    await converse(store, "two")
    assert len(await transcript(store)) == 4
    assert (await file_of(store)).is_dir()
    path.rmdir()
    await converse(store, "three")
    await check(store)


async def test_a_file_where_the_folder_should_be_disturbs_no_other_session(store: Store) -> None:
    blocked, free = SessionKey.of("blocked", "main"), MAIN
    store.folder.path.joinpath("agents").mkdir()
    store.folder.path.joinpath("agents", "blocked").write_text("in the way")
    await converse(store, "one", blocked)
    await converse(store, "one", free)
    await check(store, free)
    store.folder.path.joinpath("agents", "blocked").unlink()
    await converse(store, "two", blocked)
    await check(store, blocked)


# Archived


async def archived_files(store: Store, key: SessionKey) -> list[Path]:
    path = await file_of(store, key)
    return sorted(path.parent.glob("*.jsonl.deleted.*"))


async def test_the_file_of_a_deleted_session_is_renamed_and_never_written_again(host: Host) -> None:
    store = host.store
    await converse(store, "old", OTHER)
    path = await file_of(store, OTHER)
    content = path.read_bytes()
    await store.delete_session(OTHER)
    (archived,) = await archived_files(store, OTHER)
    assert archived.name == f"{path.name}.deleted.20270115T080000Z"
    assert not path.exists()
    await converse(store, "new", OTHER)
    await check(store, OTHER)
    assert (await file_of(store, OTHER)) != path
    assert await archived_files(store, OTHER) == [archived]
    assert archived.read_bytes() == content
    assert not path.exists()


async def test_a_session_deleted_while_running_is_renamed_with_its_last_words(store: Store) -> None:
    started = await begin(store, "first", OTHER)
    path = await file_of(store, OTHER)
    await store.delete_session(OTHER)
    assert path.exists()
    await store.finish_run(started.fence, ABORTED, reply=partial_reply(started, "par"), at_step=0, ran_ms=1)
    (archived,) = await archived_files(store, OTHER)
    assert [message.text for message in lines(archived)] == ["first", "par"]
    assert not path.exists()


async def test_deleting_a_session_that_wrote_nothing_makes_no_file(store: Store) -> None:
    await store.patch_session(OTHER, SessionPatch())
    await store.delete_session(OTHER)
    assert await archived_files(store, OTHER) == []


async def test_every_life_of_a_session_has_a_file_of_its_own(store: Store) -> None:
    for n in range(3):
        await converse(store, f"life {n}", OTHER)
        await store.delete_session(OTHER)
    files = await archived_files(store, OTHER)
    assert sorted(lines(file)[0].text for file in files) == ["life 0", "life 1", "life 2"]


# Rebuilt


async def test_a_rebuilt_file_has_the_same_bytes(store: Store) -> None:
    for n in range(20):
        await converse(store, str(n))
    path = await file_of(store)
    content = path.read_bytes()
    path.write_bytes(b"spoiled")
    assert await store.rebuild_transcript((await load(store)).session_id) == 40
    assert path.read_bytes() == content
    await converse(store, "next")
    await check(store)


async def test_a_rebuilt_archived_file_has_the_same_bytes_under_its_own_name(store: Store) -> None:
    await converse(store, "old", OTHER)
    await store.delete_session(OTHER)
    (archived,) = await archived_files(store, OTHER)
    content = archived.read_bytes()
    archived.unlink()
    await store.rebuild_transcript((await load(store, OTHER)).session_id)
    assert await archived_files(store, OTHER) == [archived]
    assert archived.read_bytes() == content


async def test_rebuilding_amid_commits_loses_no_line_and_doubles_none(store: Store) -> None:
    await converse(store)
    session = await load(store)
    for n in range(100):
        await store.add_note(MAIN, note(str(n)))
        if n % 3 == 0:
            await store.rebuild_transcript(session.session_id)
    await check(store)


async def test_a_rebuild_that_cannot_write_is_a_clear_error(store: Store) -> None:
    session = await store.patch_session(MAIN, SessionPatch())
    path = store.folder.transcript("main", session.session_id)
    path.mkdir(parents=True)
    with pytest.raises(Unavailable, match=str(path)):
        await store.rebuild_transcript(session.session_id)
    path.rmdir()
    assert await store.rebuild_transcript(session.session_id) == 0


async def test_a_rebuild_after_the_end_is_refused(host: Host) -> None:
    store = host.store
    session = await store.patch_session(MAIN, SessionPatch())
    await host.stop()
    with pytest.raises(Unavailable):
        await store.rebuild_transcript(session.session_id)
