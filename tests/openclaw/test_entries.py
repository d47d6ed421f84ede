"""Entries of `sessions.json`, of every generation, become sessions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.sessions import Address, Session
from backchannel.openclaw.entries import (
    Entry,
    EntryReader,
    ReadSession,
    UnreadableRest,
    UnusableEntry,
    read_entries,
)
from backchannel.openclaw.writing import entry_of
from tests.openclaw.values import json_values, keys, sessions

SEEN_AT = 1_700_000_000_000
SESSION_ID = "11111111-2222-4333-8444-555555555555"


def read(key: str, **fields: Any) -> ReadSession:
    found = EntryReader(KeyScheme(), "main").read(Entry(1, key, {"sessionId": SESSION_ID, **fields}), seen_at=SEEN_AT)
    assert isinstance(found, ReadSession), found
    return found


def session(key: str = "agent:main:main", **fields: Any) -> Session:
    return read(key, **fields).session


# The file


def test_entries_are_read_one_by_one_with_their_lines() -> None:
    text = json.dumps({"a": {"x": 1}, "b": 2}, indent=2)

    assert list(read_entries(text)) == [Entry(2, "a", {"x": 1}), Entry(5, "b", 2)]
    assert list(read_entries("{}")) == []


@pytest.mark.parametrize("cut", [-1, -2, -5, -12])
def test_a_file_that_was_cut_gives_what_stands_before_the_cut(cut: int) -> None:
    *entries, broken = read_entries(json.dumps({"a": {"x": 1}, "b": {"y": 2}}, indent=2)[:cut])

    assert entries[0] == Entry(2, "a", {"x": 1})
    assert isinstance(broken, UnreadableRest)
    assert broken.line >= 2
    assert "not JSON" in broken.reason


@pytest.mark.parametrize("text", ["", "[]", "nothing", '{"a" 1}', "{" + '"a":[' * 5000])
def test_a_file_that_is_something_else_is_told(text: str) -> None:
    (broken,) = read_entries(text)
    assert isinstance(broken, UnreadableRest)


def test_half_a_character_does_not_make_a_file_unreadable() -> None:
    assert list(read_entries('{"a": {"label": "cut \\ud83d"}}')) == [Entry(1, "a", {"label": "cut \ufffd"})]


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read_to_an_end(text: str) -> None:
    list(read_entries(text))


# One entry


def test_an_entry_of_today_is_a_session_with_all_it_had() -> None:
    found = session(
        "agent:main:telegram:group:-100",
        updatedAt=1_760_000_000_000,
        sessionStartedAt=1_750_000_000_000,
        label="ops",
        displayName="Operations",
        channel="telegram",
        deliveryContext={"channel": "telegram", "to": "-100", "accountId": "bot", "threadId": 7},
        lastChannel="discord",
        providerOverride="openrouter",
        modelOverride="anthropic/claude",
        model="gpt-5",
        modelProvider="openai",
        thinkingLevel="high",
        verboseLevel="full",
        sendPolicy="deny",
        systemSent=True,
        abortedLastRun=True,
        inputTokens=10,
        outputTokens=5,
        totalTokens=15,
        contextTokens=200_000,
        estimatedCostUsd=0.5,
        spawnedBy="main",
    )

    assert (found.key, found.kind, found.session_id) == ("agent:main:telegram:group:-100", "group", SESSION_ID)
    assert (found.updated_at, found.created_at) == (1_760_000_000_000, 1_750_000_000_000)
    assert (found.label, found.display_name, found.channel) == ("ops", "Operations", "telegram")
    assert found.address == Address(channel="telegram", to="-100", account_id="bot", thread_id="7")
    assert found.model == "openrouter/anthropic/claude"
    assert (found.thinking_level, found.verbose_level, found.send_policy) == ("high", "on", "deny")
    assert found.system_sent and found.aborted_last_run
    assert (found.tokens_in, found.tokens_out, found.total_tokens, found.context_tokens) == (10, 5, 15, 200_000)
    assert found.cost == 0.5
    assert found.spawned_by == "agent:main:main"


def test_the_names_of_older_generations_are_read_too() -> None:
    found = session("group:77", surface="discord", lastProvider="discord", lastTo=77, room="general", chatType="group")

    assert found.key == "agent:main:discord:group:77"
    assert found.channel == "discord"
    assert found.display_name == "general"
    assert found.address == Address(channel="discord", to="77")
    assert session("group:77", provider="signal").channel == "signal"
    assert session("main", subject="Family").display_name == "Family"


def test_the_model_that_answered_last_is_no_choice() -> None:
    assert session(model="gpt-5", modelProvider="openai").model is None
    assert session(modelOverride="claude", providerOverride="anthropic", modelOverrideSource="auto").model is None


def test_an_entry_without_times_counts_as_changed_when_it_was_seen() -> None:
    assert (session().updated_at, session().created_at) == (SEEN_AT, SEEN_AT)
    assert session(updatedAt="soon").updated_at == SEEN_AT


def test_numbers_that_no_session_can_have_are_not_known() -> None:
    huge = 10**400
    odd = session(estimatedCostUsd=huge, totalTokens=huge, inputTokens=-huge, updatedAt=huge, archivedAt=huge)
    assert odd == session()


@pytest.mark.parametrize(
    "fields",
    [
        {"label": 5},
        {"label": "x" * 65},
        {"label": "two\nlines"},
        {"thinkingLevel": "galaxy"},
        {"verboseLevel": ["on"]},
        {"sendPolicy": "maybe"},
        {"modelOverride": "claude"},
        {"lastChannel": "telegram", "lastTo": "x" * 5000},
        {"spawnedBy": "a::b"},
        {"archivedAt": 5},
    ],
)
def test_a_field_that_cannot_be_used_is_left_out_with_a_remark(fields: dict[str, Any]) -> None:
    found = read("main", **fields)

    assert len(found.remarks) == 1
    assert msgspec.structs.replace(found.session) == session("main")


@pytest.mark.parametrize(
    "session_id", ["../../etc/passwd", "a/b", "", ".hidden", "a\0b", "x" * 200, 5, None, ["a"], "a\n", "ä"]
)
def test_an_id_that_is_no_file_name_makes_an_entry_unfit(session_id: object) -> None:
    found = EntryReader(KeyScheme(), "main").read(Entry(1, "main", {"sessionId": session_id}), seen_at=0)

    assert isinstance(found, UnusableEntry)
    assert "sessionId" in found.reason


@pytest.mark.parametrize("value", [None, [], "text", 5])
def test_an_entry_that_is_no_object_is_unfit(value: object) -> None:
    assert isinstance(EntryReader(KeyScheme(), "main").read(Entry(1, "main", value), seen_at=0), UnusableEntry)


@settings(deadline=None)
@given(st.data(), keys)
def test_what_was_exported_is_read_again_as_it_was(data: st.DataObject, key: SessionKey) -> None:
    before = data.draw(sessions(key, SESSION_ID))
    text = msgspec.json.encode({before.key: entry_of(before)}).decode()
    (entry,) = read_entries(text)
    assert isinstance(entry, Entry)
    found = EntryReader(KeyScheme(), "other").read(entry, seen_at=0)

    assert isinstance(found, ReadSession)
    assert found.session == before
    assert found.remarks == ()
    assert found.spare is None


@settings(deadline=None)
@given(st.text(), st.dictionaries(st.sampled_from([*entry_of(session()), "deliveryContext"]), json_values))
def test_whatever_an_entry_holds_it_is_a_session_or_unfit(key: str, fields: dict[str, Any]) -> None:
    EntryReader(KeyScheme(), "main").read(Entry(1, key, {"sessionId": SESSION_ID} | fields), seen_at=0)
