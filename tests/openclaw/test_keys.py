"""Keys of every generation become keys of ours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.core.keys import DmScope, KeyScheme, SessionKey
from backchannel.errors import InvalidSessionKey
from backchannel.openclaw.entries import KeyReader, ReadKey
from tests.openclaw.values import keys


def read(text: str, *, channel: str | None = None, chat_type: str | None = None, **scheme: object) -> ReadKey:
    reader = KeyReader(KeyScheme(**scheme), "ops")  # type: ignore[arg-type]
    return reader.read(text, channel=channel, chat_type=chat_type)


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("agent:main:main", "agent:main:main"),
        ("agent:Research Bot:discord:group:Abc", "agent:research-bot:discord:group:abc"),
        ("agent:main:telegram:group:-100:topic:7", "agent:main:telegram:group:-100:topic:7"),
        ("agent:main:whatsapp:dm:+4912345", "agent:main:whatsapp:direct:+4912345"),
        ("agent:main:cron:nightly:run:5", "agent:main:cron:nightly:run:5"),
        ("main", "agent:ops:main"),
        ("discord:group:123", "agent:ops:discord:group:123"),
        ("slack:channel:C1", "agent:ops:slack:channel:c1"),
        ("slack:room:C1", "agent:ops:slack:channel:c1"),
        ("telegram:group:-100:topic:7", "agent:ops:telegram:group:-100:topic:7"),
        ("cron:nightly", "agent:ops:cron:nightly"),
        ("hook:abc", "agent:ops:hook:abc"),
        ("node-mac", "agent:ops:node-mac"),
        ("node:mac", "agent:ops:node-mac"),
        ("subagent:abc", "agent:ops:subagent:abc"),
        ("group:123@g.us", "agent:ops:whatsapp:group:123@g.us"),
        ("123-456@g.us", "agent:ops:whatsapp:group:123-456@g.us"),
        ("whatsapp:123@g.us", "agent:ops:whatsapp:group:123@g.us"),
        ("group:77", "agent:ops:unknown:group:77"),
        ("project x", "agent:ops:project%20x"),
    ],
)
def test_a_key_of_any_generation_has_its_place(written: str, key: str) -> None:
    assert str(read(written).key) == key


def test_the_oldest_groups_get_the_channel_that_was_recorded_for_them() -> None:
    assert str(read("group:77", channel="telegram").key) == "agent:ops:telegram:group:77"
    assert str(read("surface:group:77", channel="discord").key) == "agent:ops:discord:group:77"
    assert str(read("surface:channel:77", channel="discord").key) == "agent:ops:discord:channel:77"
    assert str(read("discord:77", chat_type="group").key) == "agent:ops:discord:group:77"
    assert str(read("slack:77", chat_type="room").key) == "agent:ops:slack:channel:77"


@pytest.mark.parametrize(
    ("scope", "key"),
    [
        (DmScope.MAIN, "agent:ops:main"),
        (DmScope.PER_PEER, "agent:ops:direct:+4912345"),
        (DmScope.PER_CHANNEL_PEER, "agent:ops:whatsapp:direct:+4912345"),
        (DmScope.PER_ACCOUNT_CHANNEL_PEER, "agent:ops:whatsapp:default:direct:+4912345"),
    ],
)
def test_a_phone_number_is_the_direct_chat_that_the_settings_make_of_it(scope: DmScope, key: str) -> None:
    assert str(read("+4912345", dm_scope=scope).key) == key


def test_a_direct_chat_has_a_key_of_its_own_to_spare() -> None:
    assert str(read("+4912345").spare) == "agent:ops:direct:+4912345"
    assert str(read("telegram:42").spare) == "agent:ops:direct:42"
    assert str(read("4912345@s.whatsapp.net").spare) == "agent:ops:direct:4912345@s.whatsapp.net"
    assert read("+4912345", dm_scope=DmScope.PER_PEER).spare is None
    assert read("main").spare is None


def test_main_is_whatever_key_is_in_force() -> None:
    assert str(read("main", main_key="home").key) == "agent:ops:home"
    assert str(read("agent:x:main", global_scope=True).key) == "agent:x:global"


def test_global_is_the_main_session_where_the_scope_is_global_and_has_no_place_elsewhere() -> None:
    assert str(read("global", global_scope=True).key) == "agent:ops:global"
    assert str(read("agent:x:global", global_scope=True).key) == "agent:x:global"
    with pytest.raises(InvalidSessionKey, match=r'set session\.scope to "global"'):
        read("global")


@pytest.mark.parametrize(
    "text", ["unknown", "agent:main:unknown", "", "agent:main:", "a::b", "agent:!!:main", "x" * 600]
)
def test_a_key_that_nobody_can_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidSessionKey):
        read(text)


@settings(deadline=None)
@given(keys)
def test_a_key_of_ours_stays_as_it_is(key: SessionKey) -> None:
    assert read(str(key)) == ReadKey(key)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_key_or_is_refused(text: str) -> None:
    try:
        key = read(text).key
    except InvalidSessionKey:
        return
    assert SessionKey.parse(str(key)) == key
