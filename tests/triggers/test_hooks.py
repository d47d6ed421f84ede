"""The pure rules for the requests of a hook."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.caller_keys import CallerKeys
from backchannel.core.headers import header_of, new_mark
from backchannel.core.keys import KeyScheme, Kind, SessionKey
from backchannel.core.messages import ProvenanceKind, Role
from backchannel.core.runs import function_call_id, scoped_run_id, tool_call_id
from backchannel.errors import Forbidden, InvalidRequest, InvalidSessionKey
from backchannel.triggers.hooks import check_channel, may_name, new_key, read_key, wake_note

SCHEME = KeyScheme()
KEYS = CallerKeys(SCHEME, None)


def may(key: str, *allowed: str, scheme: KeyScheme = SCHEME) -> bool:
    return may_name(SessionKey.parse(key), scheme, allowed).allowed


def test_a_new_key_is_a_hooks_and_each_time_another() -> None:
    assert SCHEME.kind(new_key("main")) is Kind.HOOK
    assert new_key("main") != new_key("main")


def test_a_hook_may_name_any_hook_key_and_nothing_else() -> None:
    assert may("agent:main:hook:builds")
    assert may("agent:writer:hook:builds:nightly")
    for key in ("main", "hook", "cron:nightly", "node-kitchen", "discord:group:1", "hooks:builds", "direct:hook"):
        assert not may(f"agent:main:{key}")


@pytest.mark.parametrize("pattern", ["main", "MAIN", "agent:main:main", "agent:*:main", "m*", "*"])
def test_a_pattern_is_matched_on_the_full_key_and_on_the_bare_one(pattern: str) -> None:
    assert may("agent:main:main", pattern)


def test_a_bare_pattern_fits_every_agent_and_a_full_one_only_its_own() -> None:
    assert may("agent:writer:main", "main")
    assert not may("agent:writer:main", "agent:main:main")
    assert not may("agent:main:mainly", "main")


def test_a_pattern_may_have_an_older_spelling() -> None:
    assert may("agent:main:node-kitchen", "node:*")
    assert may("agent:main:telegram:direct:42", "agent:main:telegram:dm:4*")
    assert not may("agent:main:node-kitchen", "node:pi")
    assert not may("agent:main:telegram:group:42", "telegram:dm:*")


@pytest.mark.parametrize("scheme", [KeyScheme(main_key="home"), KeyScheme(global_scope=True)])
def test_main_is_main_whatever_it_is_stored_as(scheme: KeyScheme) -> None:
    keys = CallerKeys(scheme, None)
    assert read_key(keys, "main", ["main"]) == scheme.main("main")
    with pytest.raises(Forbidden):
        read_key(keys, "main", ["hook:*"])


def test_a_refusal_names_the_setting_and_what_would_work() -> None:
    with pytest.raises(Forbidden, match=r'"agent:main:main" is no hook: key.*hooks\.allowSessionKeys') as refused:
        read_key(KEYS, "main", ())
    assert refused.value.details == {"param": "sessionKey", "rule": "hooks.allowSessionKeys"}


@pytest.mark.parametrize("text", ["", " ", "hook:", "agent:main:hook:", "global", "agent:main:unknown", "current"])
def test_what_is_no_key_is_refused_as_such(text: str) -> None:
    with pytest.raises(InvalidSessionKey):
        read_key(KEYS, text, ["*"])


def test_a_session_id_names_nothing_even_where_all_keys_are_allowed() -> None:
    with pytest.raises(InvalidRequest, match="session id"):
        read_key(KEYS, "0b1c2d3e-0000-4000-8000-000000000000", ["*"])


@pytest.mark.parametrize("text", ["HOOK:builds", "hook:builds", " agent:MAIN:Hook:builds ", "hook:%62uilds"])
def test_every_spelling_of_a_key_is_the_same_session(text: str) -> None:
    assert str(read_key(KEYS, text, ())) == "agent:main:hook:builds"


@given(st.text(max_size=40))
def test_no_text_names_another_session_than_a_hooks_without_a_pattern(text: str) -> None:
    try:
        key = read_key(KEYS, text, ())
    except (InvalidRequest, Forbidden):
        return
    assert SCHEME.kind(key) is Kind.HOOK


def test_a_channel_that_is_not_allowed_is_refused_with_the_setting() -> None:
    check_channel("desk", ["desk"])
    with pytest.raises(Forbidden, match=r'hooks\.allowDeliver has nothing, and not "desk"'):
        check_channel("desk", ())
    with pytest.raises(Forbidden, match="has fax, pager, and not"):
        check_channel("Fax", ("fax", "pager"))


def test_a_wake_is_a_note_of_the_system() -> None:
    note = wake_note("the build is green", 7)
    assert (note.role, note.text, note.timestamp) == (Role.SYSTEM, "the build is green", 7)
    assert note.provenance is not None and note.provenance.kind is ProvenanceKind.INTERNAL_SYSTEM
    mark = new_mark(bytes(10))
    assert header_of(note, mark) == f'[{mark} system message | channel "hook"]'


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_keys_never_name_one_run(one: str, other: str) -> None:
    assert (scoped_run_id("hook", one) == scoped_run_id("hook", other)) is (one == other)


@given(st.text(min_size=1), st.text(min_size=1), st.integers(0, 9))
def test_no_key_names_what_follows_from_another_run(one: str, other: str, n: int) -> None:
    run = scoped_run_id("hook", one)
    assert scoped_run_id("hook", other) not in (tool_call_id(run, n, n), function_call_id(run, n), f"{run}/turn/{n}")
