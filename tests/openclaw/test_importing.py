"""Whole folders of other programs are taken: every generation, whatever is wrong with them, and after any crash."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from backchannel.cli.client import Link
from backchannel.cli.options import Options
from backchannel.core.keys import DmScope, KeyScheme, SessionKey
from backchannel.core.messages import Message, Provenance, ProvenanceKind, Role, Usage, decode_message
from backchannel.core.sessions import Address, Session, SessionPatch
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import listening
from backchannel.gateway.ws.connections import Limits
from backchannel.openclaw.exporting import ExportFilter, SessionExport
from backchannel.openclaw.importing import (
    BATCH_MESSAGES,
    MOST_PROBLEMS,
    DryRun,
    ImportAction,
    ImportReport,
    SessionImport,
    SessionResult,
    StoreTarget,
)
from backchannel.storage.sqlite.file import SqliteDatabase
from backchannel.storage.store import Store
from backchannel.storage.units.imports import Batch, MessageOffered
from tests.openclaw.values import SCHEME, conversations
from tests.storage.support import Host, converse, transcript
from tests.support.kill import KillAt, When

from .their_folders import (
    CRON_ID,
    GENERATIONS,
    GROUP_ID,
    MAIN_ID,
    OTHER_ID,
    header,
    lines,
    openclaw,
    said,
    write,
)

pytestmark = pytest.mark.anyio

MAIN = "agent:main:main"
TOKEN = "a-token-of-these-tests"
SMALL = Limits(frame_bytes=2000)
"""So little that most messages come in parts."""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return tmp_path / "theirs"


async def take(host: Host, folder: Path, scheme: KeyScheme = SCHEME) -> ImportReport:
    """Import a folder as the command does, in a process of its own."""
    store = await host.start()
    try:
        return await SessionImport(folder, scheme, StoreTarget(store, writes_files=True)).run()
    finally:
        await host.stop()


async def dry_run(host: Host, folder: Path) -> ImportReport:
    if not host.database.exists():
        return await SessionImport(folder, SCHEME, DryRun(None)).run()
    with SqliteDatabase(host.database).open_reader() as reader:
        return await SessionImport(folder, SCHEME, DryRun(reader)).run()


async def export(host: Host, folder: Path, limits: Limits | None = None) -> None:
    """Export everything as the command does, from a gateway on the state folder."""
    gateway = Gateway.open({"gateway": {"port": 0}}, state=host.path)
    (host.path / "token").write_text(TOKEN)
    async with gateway, listening(gateway, TOKEN, limits=limits) as at:
        await asyncio.to_thread(_export, Options(state=host.path, url=at.websocket_url), folder)


def _export(options: Options, folder: Path) -> None:
    with Link(options, print) as link:
        list(SessionExport(link, folder, ExportFilter(archived=True)).run())


async def read_all(host: Host) -> dict[str, tuple[Session, list[Message]]]:
    """Read every session with its transcript, and check that each has its file."""
    store = await host.start()
    try:
        keys = [key for (key,) in host.rows("SELECT key FROM sessions ORDER BY key")]
        found = {}
        for key in keys:
            session = await store.session(key)
            assert session is not None
            messages = await transcript(store, SessionKey.stored(key))
            path = store.transcript_file(session)
            content = path.read_bytes() if messages or path.exists() else b""  # a session begins without a file
            assert [decode_message(line) for line in content.splitlines()] == messages
            found[key] = (session, messages)
        return found
    finally:
        await host.stop()


def result_of(report: ImportReport, name: str) -> SessionResult:
    (found,) = [result for result in report.results if result.name == name]
    return found


@pytest.fixture
def home(tmp_path: Path) -> Host:
    return Host(tmp_path / "ours")


# Every generation


async def test_a_folder_of_today_is_taken_with_everything(home: Host, theirs: Path) -> None:
    report = await take(home, openclaw(theirs))
    found = await read_all(home)

    assert {result.action for result in report.results} == {ImportAction.NEW}
    assert report.problems == []
    assert (report.other_lines, report.unknown_lines) == ({"model_change": 1, "custom": 1}, {"telepathy": 1})
    session, messages = found[MAIN]
    assert session.address == Address(channel="telegram", to="telegram:7", account_id="default")
    assert (session.thinking_level, session.model, session.total_tokens) == ("high", None, 30)
    roles = [message.role for message in messages]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.ASSISTANT, Role.SYSTEM, Role.USER]
    assert messages[1].usage == Usage(input=5, output=6, cache_read=1, cache_write=2, cost=0.25)
    assert messages[2].tool_call_id == messages[1].tool_calls[0].id == "toolu_1"
    assert messages[5].provenance == Provenance(kind=ProvenanceKind.INTER_SESSION, source_tool="sessions_send")
    group, hello = found["agent:main:telegram:group:-100:topic:7"]
    assert (group.kind, group.channel, group.label) == ("group", "telegram", "ops")
    assert hello[0].id == f"{GROUP_ID}/a2"  # the main session has one of this id
    assert found["agent:research-bot:cron:nightly"][0].spawned_by == MAIN


async def test_a_folder_with_bare_keys_is_taken(home: Host, theirs: Path) -> None:
    report = await take(home, GENERATIONS["clawdbot"](theirs))
    found = await read_all(home)

    assert [*found] == ["agent:main:cron:nightly", "agent:main:discord:group:99", MAIN]
    assert found[MAIN][0].address == Address(channel="whatsapp", to="+4912345")
    assert [message.id for message in found[MAIN][1]] == [f"{MAIN_ID}/2", f"{MAIN_ID}/3"]
    assert found["agent:main:discord:group:99"][0].display_name == "general"
    assert "reserved" in str(result_of(report, "unknown").reason)
    assert report.strays == 1


async def test_the_oldest_folder_is_taken(home: Host, theirs: Path) -> None:
    await take(home, GENERATIONS["clawdis"](theirs))
    found = await read_all(home)

    assert {key: [message.text for message in messages] for key, (_, messages) in found.items()} == {
        MAIN: ["hi", "hello"],  # the newest direct chat goes on as the main session
        "agent:main:direct:+4967890": ["it is me"],
        "agent:main:signal:group:5": ["secret"],
        "agent:main:whatsapp:group:123@g.us": ["hello all"],
    }
    assert found["agent:main:whatsapp:group:123@g.us"][0].display_name == "Family"


async def test_direct_chats_go_where_the_settings_send_them(home: Host, theirs: Path) -> None:
    scheme = KeyScheme(dm_scope=DmScope.PER_CHANNEL_PEER)
    await take(home, GENERATIONS["clawdis"](theirs), scheme)

    keys = [key for (key,) in home.rows("SELECT key FROM sessions WHERE key LIKE '%direct%' ORDER BY key")]
    assert keys == ["agent:main:whatsapp:direct:+4912345", "agent:main:whatsapp:direct:+4967890"]


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_what_was_taken_can_be_exported_and_taken_elsewhere(
    home: Host, theirs: Path, tmp_path: Path, generation: str
) -> None:
    await take(home, GENERATIONS[generation](theirs))
    await export(home, tmp_path / "exported")
    elsewhere = Host(tmp_path / "elsewhere")
    report = await take(elsewhere, tmp_path / "exported")

    assert await read_all(elsewhere) == await read_all(home)
    assert {result.action for result in report.results} == {ImportAction.NEW}
    assert (report.problems, report.strays) == ([], 0)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_dry_run_shows_what_is_then_done(home: Host, theirs: Path, generation: str) -> None:
    folder = GENERATIONS[generation](theirs)
    told = await dry_run(home, folder)
    assert not home.path.exists()

    assert await take(home, folder) == told
    assert await take(home, folder) == await dry_run(home, folder)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_the_same_folder_again_changes_nothing(home: Host, theirs: Path, generation: str) -> None:
    folder = GENERATIONS[generation](theirs)
    await take(home, folder)
    before = await read_all(home)
    stamps = {path: path.stat().st_mtime_ns for path in home.path.rglob("*.jsonl")}
    report = await take(home, folder)

    assert {result.action for result in report.results} <= {ImportAction.UNCHANGED, ImportAction.SKIPPED}
    assert report.messages == 0
    assert not report.has_work
    assert await read_all(home) == before
    assert {path: path.stat().st_mtime_ns for path in home.path.rglob("*.jsonl")} == stamps


async def test_what_came_since_is_added(home: Host, theirs: Path) -> None:
    await take(home, openclaw(theirs))
    with (theirs / "agents" / "main" / "sessions" / f"{MAIN_ID}.jsonl").open("a") as file:
        file.write(lines(said("a9", "user", "one more thing")))
    report = await take(home, theirs)

    assert (result_of(report, MAIN).action, report.messages) == (ImportAction.MORE, 1)
    assert [message.id for message in (await read_all(home))[MAIN][1]][-2:] == ["a7", "a9"]


# Sessions that are here


async def test_a_session_that_is_here_is_never_overwritten(home: Host, theirs: Path) -> None:
    store = await home.start()
    await converse(store, "mine")
    await store.patch_session(SessionKey.of("main", "other"), SessionPatch(label="ops"))
    await home.stop()
    told = await dry_run(home, openclaw(theirs))
    report = await take(home, theirs)

    assert report == told
    main = result_of(report, MAIN)
    assert (main.action, main.key) == (ImportAction.NEW, f"agent:main:imported:{MAIN_ID}")
    assert main.remarks == ["another session here has agent:main:main"]
    group = result_of(report, "agent:main:telegram:group:-100:topic:7")
    assert group.action is ImportAction.NEW
    assert group.remarks == ["label 'ops' left out: agent:main:other has it"]
    found = await read_all(home)
    assert [message.text for message in found[MAIN][1]] == ["mine", "re: mine"]
    theirs_here, messages = found[f"agent:main:imported:{MAIN_ID}"]
    assert (theirs_here.kind, theirs_here.session_id, len(messages)) == ("other", MAIN_ID, 6)
    assert found["agent:research-bot:cron:nightly"][0].spawned_by == theirs_here.key
    assert theirs_here.address == Address(channel="telegram", to="telegram:7", account_id="default")


async def test_a_session_with_a_key_of_its_own_is_unchanged_the_next_time_and_is_exported(
    home: Host, theirs: Path, tmp_path: Path
) -> None:
    home.clock.tick(
        1_700_000_000_000 - home.clock.ms
    )  # a time that has been: an export is made by a gateway with the real clock
    await converse(await home.start(), "mine")
    await home.stop()
    await take(home, openclaw(theirs))
    before = await read_all(home)
    again = await take(home, theirs)

    assert {result.action for result in again.results} == {ImportAction.UNCHANGED}
    assert await read_all(home) == before
    await export(home, tmp_path / "exported")
    elsewhere = Host(tmp_path / "elsewhere")
    await take(elsewhere, tmp_path / "exported")
    assert await read_all(elsewhere) == before


async def test_an_agent_of_which_nothing_was_taken_is_not_named(home: Host, theirs: Path) -> None:
    write(theirs / "agents" / "coder" / "sessions", {"main": {"sessionId": "gone"}})
    report = await take(home, theirs)

    assert result_of(report, "main").action is ImportAction.SKIPPED
    assert report.agents == []


async def test_two_entries_of_one_session_are_one_and_the_newest_counts(home: Host, theirs: Path) -> None:
    write(
        theirs / "sessions",
        {
            "main": {"sessionId": MAIN_ID, "updatedAt": 5},
            "agent:main:main": {"sessionId": OTHER_ID, "updatedAt": 6},
            "discord:group:X": {"sessionId": GROUP_ID, "updatedAt": 6},
            "discord:group:x": {"sessionId": CRON_ID, "updatedAt": 5},
        },
        t1=lines(said("a", "user", "old")),
        t2=lines(said("b", "user", "new")),
        t3=lines(said("c", "user", "old")),
        t4=lines(said("d", "user", "new")),
    )
    report = await take(home, theirs)

    assert result_of(report, "main").reason == "'agent:main:main' is the same session (agent:main:main), and newer"
    assert result_of(report, "discord:group:x").action is ImportAction.SKIPPED
    assert [messages[0].text for _, messages in (await read_all(home)).values()] == ["new", "new"]


async def test_an_entry_named_main_goes_before_direct_chats_that_would_become_it(home: Host, theirs: Path) -> None:
    write(
        theirs / "sessions",
        {"+4912345": {"sessionId": OTHER_ID, "updatedAt": 9}, "main": {"sessionId": MAIN_ID, "updatedAt": 5}},
        t1=lines(said("a", "user", "main")),
        t4=lines(said("b", "user", "direct")),
    )
    await take(home, theirs)
    found = await read_all(home)

    assert {key: messages[0].text for key, (_, messages) in found.items()} == {
        MAIN: "main",
        "agent:main:direct:+4912345": "direct",
    }


async def test_two_sessions_with_one_transcript_are_taken_once(home: Host, theirs: Path) -> None:
    write(
        theirs / "sessions",
        {"a": {"sessionId": MAIN_ID, "updatedAt": 5}, "b": {"sessionId": MAIN_ID, "updatedAt": 6}},
        t1=lines(said("a", "user", "hi")),
    )
    report = await take(home, theirs)

    assert result_of(report, "a").action is ImportAction.NEW
    assert result_of(report, "b").reason == "its session id belongs to agent:main:a here"


# What is wrong is told and passed over, and nothing else is lost


async def test_bad_lines_are_told_by_file_and_number(home: Host, theirs: Path) -> None:
    write(theirs / "sessions", {"main": {"sessionId": MAIN_ID}})
    content = (
        lines(header(MAIN_ID), said("a", "user", "one")).encode()
        + b"garbage\n\x00\xff\xfe\x00\n"
        + lines({"type": "message", "message": {"role": "user", "content": 5}}, said("b", "user", "two")).encode()
        + b'{"type":"message","id":"c","message":{"role":"us'
    )
    (theirs / "sessions" / f"{MAIN_ID}.jsonl").write_bytes(content)
    report = await take(home, theirs)

    told = [(problem.file, problem.line) for problem in report.problems]
    assert told == [(f"sessions/{MAIN_ID}.jsonl", line) for line in (3, 4, 5, 7)]
    assert report.problems[-1].what.startswith("half-written last line")
    assert [message.text for message in (await read_all(home))[MAIN][1]] == ["one", "two"]

    (theirs / "sessions" / f"{MAIN_ID}.jsonl").write_bytes(content + b'er","content":"three"}}\n')
    again = await take(home, theirs)
    assert (result_of(again, "main").action, again.messages) == (ImportAction.MORE, 1)


async def test_entries_that_cannot_be_sessions_are_told_and_the_others_taken(home: Host, theirs: Path) -> None:
    outside = theirs.parent / "secret.jsonl"
    outside.write_text(lines(said("s", "user", "secret")))
    write(
        theirs / "sessions",
        {
            "evil": {"sessionId": "../../etc/passwd"},
            "thief": {"sessionId": OTHER_ID, "sessionFile": "/etc/passwd"},
            "neighbour": {"sessionId": OTHER_ID, "sessionFile": str(outside)},
            "link": {"sessionId": CRON_ID},
            "lost": {"sessionId": GROUP_ID},
            "odd": [],
            "a::b": {"sessionId": MAIN_ID},
            "main": {"sessionId": MAIN_ID, "label": 5},
        },
        t1=lines(said("a", "user", "hi")),
    )
    (theirs / "sessions" / f"{CRON_ID}.jsonl").symlink_to(outside)
    report = await take(home, theirs)

    reasons = {result.name: str(result.reason) for result in report.results}
    assert "cannot be the name of a file" in reasons["evil"]
    assert "'/etc/passwd' is not a transcript in this folder" in reasons["thief"]
    assert reasons["neighbour"].endswith("is not a transcript in this folder")
    assert "leads out of the folder" in reasons["link"]
    assert reasons["lost"] == f"there is no {GROUP_ID}.jsonl"
    assert reasons["odd"] == "the entry is no object"
    assert "no part may be empty" in reasons["a::b"]
    assert result_of(report, "odd").line > result_of(report, "lost").line > 1
    assert result_of(report, "main").remarks == ["label left out: it is no text"]
    assert [*await read_all(home)] == [MAIN]
    assert not home.rows("SELECT 1 FROM messages WHERE body LIKE '%secret%'")


async def test_a_store_that_was_cut_gives_the_sessions_before_the_cut(home: Host, theirs: Path) -> None:
    openclaw(theirs)
    store = theirs / "agents" / "main" / "sessions" / "sessions.json"
    store.write_text(store.read_text()[:-40])
    report = await take(home, theirs)

    assert [problem.file for problem in report.problems] == ["agents/main/sessions/sessions.json"]
    assert [*await read_all(home)] == [MAIN, "agent:research-bot:cron:nightly"]


async def test_of_a_file_full_of_garbage_only_the_first_lines_are_named(home: Host, theirs: Path) -> None:
    write(theirs / "sessions", {"main": {"sessionId": MAIN_ID}}, t1="garbage\n" * 1000)
    report = await take(home, theirs)

    assert len(report.problems) == MOST_PROBLEMS
    assert report.unnamed == {f"sessions/{MAIN_ID}.jsonl": 1000 - MOST_PROBLEMS}
    assert (await read_all(home))[MAIN][1] == []


async def test_a_message_without_an_id_is_known_by_its_line(home: Host, theirs: Path) -> None:
    write(theirs / "sessions", {"main": {"sessionId": MAIN_ID}}, t1=lines({"role": "user", "content": "same"}) * 3)
    await take(home, theirs)

    assert [message.id for message in (await read_all(home))[MAIN][1]] == [f"{MAIN_ID}/{n}" for n in (1, 2, 3)]


async def test_a_folder_whose_name_is_no_text_can_be_told_of(home: Host, theirs: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(theirs / "agents") + b"/\xff"))
    write(folder / "sessions", {"main": {"sessionId": MAIN_ID}}, t1="garbage\n" + lines(said("a", "user", "hi")))
    report = await take(home, theirs)

    assert [result.key for result in report.results] == [MAIN]
    assert json.loads(msgspec.json.encode(report.as_json()))["problems"][0]["file"].startswith("agents/?/sessions/")


async def test_many_sessions_are_taken(home: Host, theirs: Path) -> None:
    folder = theirs / "sessions"
    write(folder, {f"cron:{n}": {"sessionId": f"s{n}"} for n in range(250)})
    for n in range(250):
        (folder / f"s{n}.jsonl").write_text(lines({"role": "user", "content": str(n)}))
    report = await take(home, theirs)

    assert report.count(ImportAction.NEW) == 250
    assert len(await read_all(home)) == 250


async def test_a_file_that_was_left_behind_is_brought_up_to_date(home: Host, theirs: Path) -> None:
    await take(home, openclaw(theirs))
    (path,) = home.path.rglob(f"{MAIN_ID}.jsonl")
    path.write_text(path.read_text()[:50])
    await take(home, theirs)

    await read_all(home)


# Crashes


def _long_folder(root: Path) -> Path:
    """A folder whose main session takes several commits."""
    openclaw(root)
    path = root / "agents" / "main" / "sessions" / f"{MAIN_ID}.jsonl"
    path.write_text(path.read_text() + lines(*(said(f"n{n}", "user", str(n)) for n in range(BATCH_MESSAGES + 5))))
    return root


async def test_an_import_that_is_killed_at_any_commit_ends_the_same_when_it_is_repeated(
    theirs: Path, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    folder = _long_folder(theirs)
    whole = Host(tmp_path / "whole")
    await take(whole, folder)
    expected = await read_all(whole)
    points: list[tuple[int, When]] = [(number, when) for number in range(1, 8) for when in ("before", "after")]
    killed = 0
    for number, when in points:
        host = Host(tmp_path / f"{number}-{when}")
        killed += await _killed(host, folder, KillAt(number, when))
        await take(host, folder)
        assert await read_all(host) == expected, (number, when)
        report = await take(host, folder)
        assert not report.has_work
    assert killed >= 10
    record_property("crash points", ("import", killed))


async def _killed(host: Host, folder: Path, faults: KillAt) -> bool:
    """Import until the process dies; tells whether it did."""
    with suppress(asyncio.CancelledError):
        store = await host.start(faults=faults)
        await SessionImport(folder, SCHEME, StoreTarget(store, writes_files=True)).run()
    is_dead = bool(host.fatal)
    await host.end()
    return is_dead


async def test_nobody_sees_half_of_a_session(theirs: Path, tmp_path: Path) -> None:
    folder = _long_folder(theirs)
    host = Host(tmp_path / "half")
    assert await _killed(host, folder, KillAt(3, "before"))  # with the first batch of the main session written

    assert host.rows("SELECT count(*) FROM messages WHERE session_id = ?", MAIN_ID) == [(BATCH_MESSAGES,)]
    assert host.rows("SELECT key FROM sessions") == []


# Round trips


async def _fill(store: Store, said: list[tuple[Session, list[Message]]]) -> None:
    for session, messages in said:
        offered = [MessageOffered(line, (message.id,), message) for line, message in enumerate(messages)]
        taken = await store.take_session(session, Batch(0, offered, is_last=True))
        assert taken.refusal is None and taken.label_holder is None and not taken.without_id


async def _travel(said: list[tuple[Session, list[Message]]], folder: Path) -> None:
    here, there = Host(folder / "here"), Host(folder / "there")
    await _fill(await here.start(), said)
    await here.stop()
    await export(here, folder / "exported", SMALL)
    report = await take(there, folder / "exported")

    assert all(result.action is ImportAction.NEW and not result.remarks for result in report.results)
    assert await read_all(there) == {session.key: (session, messages) for session, messages in said}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(conversations())
def test_whatever_is_exported_comes_back_as_it_was(said: list[tuple[Session, list[Message]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_travel(said, Path(folder)))


async def test_a_report_can_be_told_as_json(home: Host, theirs: Path) -> None:
    told = json.loads(msgspec.json.encode((await take(home, openclaw(theirs))).as_json()))

    assert told["counts"] == {"new": 3, "more": 0, "unchanged": 0, "skipped": 0, "messages": 8}
    assert told["sessions"][0] == {
        "from": "agent:research-bot:cron:nightly",
        "where": "agents/Research Bot/sessions/sessions.json:2",
        "key": "agent:research-bot:cron:nightly",
        "sessionId": CRON_ID,
        "action": "new",
        "messages": 1,
        "written": 1,
        "remarks": [],
    }
    assert told["unknownLines"] == {"telepathy": 1}
