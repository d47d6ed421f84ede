"""Keys: one spelling, what each part says, and how callers write and see them."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backchannel.core.caller_keys import CallerKeys, LookedUp, SessionResolved, WrittenAddress
from backchannel.core.keys import (
    MAX_KEY_LENGTH,
    ChatType,
    DmScope,
    KeyScheme,
    Kind,
    SessionKey,
    normalise_agent_id,
    row_channel,
)
from backchannel.errors import (
    AmbiguousLabel,
    InvalidSessionKey,
    SessionIdReplaced,
    SessionNotFound,
    UnknownAgent,
)

parse = SessionKey.parse
SESSION_ID = "3f2b8c1e-9a44-4d0e-8a51-0c4a7f1d2e90"
SCHEMES = [
    KeyScheme(),
    KeyScheme(main_key="home", default_agent="ops"),
    KeyScheme(global_scope=True),
    KeyScheme(main_key="home", global_scope=True),
]
GLOBAL = KeyScheme(global_scope=True)


def as_session(key: str, scheme: KeyScheme | None = None) -> CallerKeys:
    return CallerKeys(scheme or KeyScheme(), parse(key))


def as_operator(scheme: KeyScheme | None = None) -> CallerKeys:
    return CallerKeys(scheme or KeyScheme(), None)


def store_with(*keys: SessionKey) -> Callable[[WrittenAddress], LookedUp]:
    return lambda written: LookedUp(key_exists=written.key in keys)


# Reading and spelling


@pytest.mark.parametrize(
    ("rest", "kind", "chat_type", "channel"),
    [
        ("main", Kind.MAIN, None, None),
        ("direct:bob", Kind.OTHER, ChatType.DIRECT, None),
        ("telegram:direct:bob", Kind.OTHER, ChatType.DIRECT, "telegram"),
        ("telegram:work:direct:bob", Kind.OTHER, ChatType.DIRECT, "telegram"),
        ("telegram:group:42", Kind.GROUP, ChatType.GROUP, "telegram"),
        ("slack:channel:c1", Kind.GROUP, ChatType.CHANNEL, "slack"),
        ("discord:group:42:thread:7", Kind.GROUP, ChatType.GROUP, "discord"),
        ("telegram:group:42:topic:7", Kind.GROUP, ChatType.GROUP, "telegram"),
        ("slack:channel:c1:thread:17.2", Kind.GROUP, ChatType.CHANNEL, "slack"),
        ("cron:nightly", Kind.CRON, None, None),
        ("cron:group:42", Kind.CRON, None, None),
        (f"hook:{SESSION_ID}", Kind.HOOK, None, None),
        ("hook:github:group:42", Kind.HOOK, None, None),
        ("node-pi", Kind.NODE, None, None),
        ("node-pi:kitchen", Kind.NODE, None, None),
        (f"subagent:{SESSION_ID}", Kind.OTHER, None, None),
        (f"openai:{SESSION_ID}", Kind.OTHER, None, None),
        ("cron", Kind.OTHER, None, None),
        ("notes", Kind.OTHER, None, None),
        ("notes:group:42:more", Kind.OTHER, None, None),
    ],
)
def test_a_stored_key_tells_its_kind_chat_type_and_channel(
    rest: str, kind: Kind, chat_type: ChatType | None, channel: str | None
) -> None:
    key = parse(f"agent:main:{rest}")
    assert str(key) == f"agent:main:{rest}"
    assert key.rest == rest
    assert (KeyScheme().kind(key), key.chat_type, key.channel) == (kind, chat_type, channel)


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("  agent:main:main\n", "agent:main:main"),
        ("Agent:Main:MAIN", "agent:main:main"),
        ("agent:Research Bot:main", "agent:research-bot:main"),
        ("agent:Research%20Bot:main", "agent:research-bot:main"),
        ("agent:main:dm:Bob", "agent:main:direct:bob"),
        ("agent:main:Telegram:DM:Bob", "agent:main:telegram:direct:bob"),
        ("agent:main:Telegram:Work:dm:Bob", "agent:main:telegram:Work:direct:bob"),
        ("agent:main:Telegram:Group:ABC", "agent:main:telegram:group:abc"),
        ("agent:main:Slack:Channel:C1:Thread:Ab", "agent:main:slack:channel:c1:thread:Ab"),
        ("agent:main:slack:dm:U1:thread:7", "agent:main:slack:direct:u1:thread:7"),
        ("agent:main:node:Pi", "agent:main:node-Pi"),
        ("agent:main:NODE-Pi", "agent:main:node-Pi"),
        ("agent:main:Cron:Nightly", "agent:main:cron:Nightly"),
        ("agent:main:cron:every day", "agent:main:cron:every%20day"),
        ("agent:main:cron:50%", "agent:main:cron:50%25"),
        ("agent:main:cron:100%ff", "agent:main:cron:100%25ff"),
        ("agent:main:cron:a%3Ab", "agent:main:cron:a%3ab"),
        ("agent:main:cron:%4Eight", "agent:main:cron:Night"),
        ("agent:main:cron:a\x00b", "agent:main:cron:a%00b"),
        ("agent:main:cron:a\u00a0b", "agent:main:cron:a%c2%a0b"),
        ("agent:main:cron:\ud800", "agent:main:cron:%ed%a0%80"),
        ("agent:main:telegram:group:İ", "agent:main:telegram:group:i̇"),
    ],
)
def test_every_spelling_of_a_key_is_read_as_the_stored_one(typed: str, stored: str) -> None:
    assert str(parse(typed)) == stored
    assert str(parse(stored)) == stored


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "main",
        "agent",
        "agent:main",
        "agent::main",
        "agent:main:",
        "agent:main:a::b",
        "agent:%20:main",
        "agent:!!!:main",
        f"agent:{'a' * 65}:main",
        "session:main:main",
        f"agent:main:{'x' * 512}",
    ],
)
def test_a_malformed_key_is_refused_with_what_came_and_what_would_work(text: str) -> None:
    with pytest.raises(InvalidSessionKey, match=r"^not an? (session key|agent id): '.*' \(.+\)$"):
        parse(text)


def test_a_key_may_have_512_characters_and_not_one_more() -> None:
    longest = "agent:main:cron:".ljust(MAX_KEY_LENGTH, "x")
    assert str(parse(longest)) == longest
    with pytest.raises(InvalidSessionKey, match="at most 512 characters"):
        parse(longest + "x")


def test_encoding_counts_towards_the_length_of_a_key() -> None:
    with pytest.raises(InvalidSessionKey):
        SessionKey.cron("main", ":" * 200)


@pytest.mark.parametrize(
    ("key", "parent"),
    [
        ("agent:main:telegram:group:42:topic:7", "agent:main:telegram:group:42"),
        ("agent:main:slack:channel:a%3ab:thread:7", "agent:main:slack:channel:a%3ab"),
        ("agent:main:slack:Work:direct:u1:thread:7", "agent:main:slack:Work:direct:u1"),
        ("agent:main:telegram:group:42", None),
        ("agent:main:main", None),
        ("agent:main:cron:nightly:thread:7", None),
        ("agent:main:notes:of:thread:7", None),
    ],
)
def test_only_a_thread_or_topic_of_a_chat_has_a_parent(key: str, parent: str | None) -> None:
    assert parse(key).parent == (parse(parent) if parent else None)


def test_only_a_spawned_session_is_a_subagent() -> None:
    assert SessionKey.subagent("main", SESSION_ID).is_subagent
    assert not parse("agent:main:subagent").is_subagent
    assert not parse("agent:main:main").is_subagent


# Constructors


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        (SessionKey.group("main", "Telegram", ChatType.GROUP, "-100A"), "agent:main:telegram:group:-100a"),
        (
            SessionKey.group("main", "Telegram", ChatType.GROUP, "1", "7", "topic"),
            "agent:main:telegram:group:1:topic:7",
        ),
        (
            SessionKey.group("main", "discord", ChatType.GROUP, "1", "7"),
            "agent:main:discord:group:1:thread:7",
        ),
        (SessionKey.group("main", "slack", ChatType.CHANNEL, "C1"), "agent:main:slack:channel:c1"),
        (SessionKey.group("main", "irc", ChatType.GROUP, "#a b:c%"), "agent:main:irc:group:#a%20b%3ac%25"),
        (SessionKey.cron("Research Bot", "Nightly"), "agent:research-bot:cron:Nightly"),
        (SessionKey.hook("main", SESSION_ID), f"agent:main:hook:{SESSION_ID}"),
        (SessionKey.node("main", "Pi:4"), "agent:main:node-Pi%3a4"),
        (SessionKey.subagent("main", SESSION_ID), f"agent:main:subagent:{SESSION_ID}"),
        (SessionKey.openai("main", SESSION_ID), f"agent:main:openai:{SESSION_ID}"),
        (KeyScheme().main("Main"), "agent:main:main"),
        (KeyScheme(main_key="Home").main("main"), "agent:main:home"),
        (KeyScheme(global_scope=True).main("main"), "agent:main:global"),
    ],
)
def test_each_shape_of_key_has_a_constructor(key: SessionKey, stored: str) -> None:
    assert str(key) == stored
    assert parse(stored) == key


@pytest.mark.parametrize(
    ("scheme", "stored"),
    [
        (KeyScheme(), "agent:main:main"),
        (KeyScheme(dm_scope=DmScope.PER_PEER), "agent:main:direct:+49%201"),
        (KeyScheme(dm_scope=DmScope.PER_CHANNEL_PEER), "agent:main:signal:direct:+49%201"),
        (KeyScheme(dm_scope=DmScope.PER_ACCOUNT_CHANNEL_PEER), "agent:main:signal:Work:direct:+49%201"),
        (KeyScheme(dm_scope=DmScope.PER_PEER, global_scope=True), "agent:main:global"),
    ],
)
def test_the_dm_scope_decides_the_key_of_a_direct_chat(scheme: KeyScheme, stored: str) -> None:
    assert str(scheme.direct("main", channel="Signal", account="Work", peer="+49 1")) == stored


@pytest.mark.parametrize("channel", ["cron", "Hook", "node", "node-pi", "subagent", "openai", ""])
def test_a_channel_whose_keys_would_be_misread_is_refused(channel: str) -> None:
    with pytest.raises(InvalidSessionKey):
        SessionKey.group("main", channel, ChatType.GROUP, "42")
    with pytest.raises(InvalidSessionKey):
        KeyScheme(dm_scope=DmScope.PER_CHANNEL_PEER).direct("main", channel=channel, account="a", peer="b")


@pytest.mark.parametrize("main_key", ["global", "Unknown", "current", "", "x" * 65])
def test_a_main_key_that_could_never_be_addressed_is_refused(main_key: str) -> None:
    with pytest.raises(InvalidSessionKey):
        KeyScheme(main_key=main_key)


@pytest.mark.parametrize(
    ("text", "agent_id"),
    [
        ("main", "main"),
        ("Research Bot", "research-bot"),
        ("  Research -- Bot! ", "research----bot"),
        ("a_b-9", "a_b-9"),
        ("Jörg", "j-rg"),
        ("../etc", "etc"),
        ("x" * 64, "x" * 64),
    ],
)
def test_an_agent_name_is_normalised_to_its_id(text: str, agent_id: str) -> None:
    assert normalise_agent_id(text) == agent_id
    assert normalise_agent_id(agent_id) == agent_id


@pytest.mark.parametrize("text", ["", " ", "!!!", "--", "日本", "\ud800", "x" * 65])
def test_a_name_that_leaves_no_usable_agent_id_is_refused(text: str) -> None:
    with pytest.raises(UnknownAgent, match="such as research-bot"):
        normalise_agent_id(text)


# The channel of a row


@pytest.mark.parametrize(
    ("rest", "recorded", "last", "shown"),
    [
        ("cron:nightly", "telegram", "telegram", "internal"),
        ("hook:a", None, "telegram", "internal"),
        ("node-pi", None, None, "internal"),
        ("telegram:group:42", "whatsapp", "signal", "whatsapp"),
        ("telegram:group:42", None, "signal", "telegram"),
        ("slack:channel:c1:thread:7", None, None, "slack"),
        ("main", "telegram", "signal", "signal"),
        ("telegram:direct:bob", None, "telegram", "telegram"),
        ("telegram:direct:bob", None, None, "unknown"),
        ("main", None, None, "unknown"),
        ("subagent:a", None, None, "unknown"),
        ("notes", None, "webchat", "webchat"),
    ],
)
def test_the_channel_of_a_row(rest: str, recorded: str | None, last: str | None, shown: str) -> None:
    key = parse(f"agent:main:{rest}")
    assert row_channel(str(key), KeyScheme().kind(key), recorded, last) == shown


# Showing


@pytest.mark.parametrize(
    ("key", "own", "other", "operator"),
    [
        ("agent:main:main", "main", None, None),
        ("agent:main:cron:nightly", "cron:nightly", None, None),
        ("agent:main:hook:a", "hook:a", None, None),
        ("agent:main:node-pi", "node-pi", None, None),
        ("agent:main:telegram:group:42", None, None, None),
        ("agent:main:subagent:a", None, None, None),
        ("agent:main:direct:bob", None, None, None),
        ("agent:main:notes", None, None, None),
    ],
)
def test_a_session_sees_short_keys_of_its_own_agent_and_everyone_else_full_ones(
    key: str, own: str | None, other: str | None, operator: str | None
) -> None:
    assert as_session("agent:main:cron:a").show(parse(key)) == (own or key)
    assert as_session("agent:ops:main").show(parse(key)) == (other or key)
    assert as_operator().show(parse(key)) == (operator or key)


def test_with_another_main_key_the_main_session_is_main_to_its_agent_and_full_to_others() -> None:
    scheme = KeyScheme(main_key="home")
    key = parse("agent:main:home")
    assert scheme.kind(key) is Kind.MAIN
    assert as_session("agent:main:cron:a", scheme).show(key) == "main"
    assert as_session("agent:ops:home", scheme).show(key) == "agent:main:home"
    assert as_operator(scheme).show(key) == "agent:main:home"


def test_with_the_global_scope_nobody_ever_sees_global() -> None:
    key = GLOBAL.main("main")
    assert GLOBAL.kind(key) is Kind.MAIN
    assert GLOBAL.is_listed(key)
    assert as_session("agent:main:cron:a", GLOBAL).show(key) == "main"
    assert as_session("agent:ops:cron:a", GLOBAL).show(key) == "agent:main:main"
    assert as_operator(GLOBAL).show(key) == "agent:main:main"


@pytest.mark.parametrize("word", ["global", "unknown"])
def test_reserved_keys_are_not_listed(word: str) -> None:
    key = parse(f"agent:main:{word}")
    assert key.is_reserved
    assert not KeyScheme().is_listed(key)
    assert KeyScheme().kind(key) is Kind.OTHER
    assert not GLOBAL.is_listed(parse("agent:main:unknown"))


# Reading what callers write


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("main", "agent:ops:main"),
        (" MAIN ", "agent:ops:main"),
        ("current", "agent:ops:cron:nightly"),
        ("agent:ops:main", "agent:ops:main"),
        ("agent:main:main", "agent:main:main"),
        ("Agent:Main:dm:Bob", "agent:main:direct:bob"),
        ("cron:weekly", "agent:ops:cron:weekly"),
        ("hook:a", "agent:ops:hook:a"),
        ("node-pi", "agent:ops:node-pi"),
        ("node:pi", "agent:ops:node-pi"),
        ("discord:group:123", "agent:ops:discord:group:123"),
        ("slack:channel:C1", "agent:ops:slack:channel:c1"),
        ("subagent:a", "agent:ops:subagent:a"),
    ],
)
def test_a_session_may_write_words_full_keys_and_bare_keys_of_its_agent(written: str, key: str) -> None:
    caller = as_session("agent:ops:cron:nightly")
    assert caller.resolve(written, store_with()) == SessionResolved(parse(key), exists=False)
    assert caller.resolve(written, store_with(parse(key))) == SessionResolved(parse(key), exists=True)


@pytest.mark.parametrize(
    ("written", "key", "kind", "channel"),
    [
        # Older generations wrote groups and rooms without the agent.
        ("main", "agent:ops:main", Kind.MAIN, None),
        ("WhatsApp:group:120363@G.us", "agent:ops:whatsapp:group:120363@g.us", Kind.GROUP, "whatsapp"),
        ("telegram:group:-100:topic:7", "agent:ops:telegram:group:-100:topic:7", Kind.GROUP, "telegram"),
        ("discord:channel:99", "agent:ops:discord:channel:99", Kind.GROUP, "discord"),
        ("surface:group:1", "agent:ops:surface:group:1", Kind.GROUP, "surface"),
        (f"cron:{SESSION_ID}", f"agent:ops:cron:{SESSION_ID}", Kind.CRON, None),
        (f"hook:{SESSION_ID}", f"agent:ops:hook:{SESSION_ID}", Kind.HOOK, None),
        ("hook:github", "agent:ops:hook:github", Kind.HOOK, None),
        ("node-Living Room", "agent:ops:node-Living%20Room", Kind.NODE, None),
        # Newer ones write the whole key.
        ("agent:main:discord:group:123", "agent:main:discord:group:123", Kind.GROUP, "discord"),
        ("agent:main:slack:channel:C1", "agent:main:slack:channel:c1", Kind.GROUP, "slack"),
        (f"agent:ops:subagent:{SESSION_ID}", f"agent:ops:subagent:{SESSION_ID}", Kind.OTHER, None),
        # Without a channel it is a key like any other that somebody chose.
        ("group:123", "agent:ops:group:123", Kind.OTHER, None),
    ],
)
def test_the_keys_of_every_generation_are_read(written: str, key: str, kind: Kind, channel: str | None) -> None:
    read = as_session("agent:ops:main").read(written)

    assert str(read.key) == key
    assert (KeyScheme().kind(read.key), read.key.channel) == (kind, channel)
    assert read.is_explicit


@pytest.mark.parametrize(
    ("written", "key"),
    [("main", "agent:ops:main"), ("cron:a", "agent:ops:cron:a"), ("agent:x:y", "agent:x:y")],
)
def test_an_operator_writes_main_and_bare_keys_of_the_default_agent(written: str, key: str) -> None:
    operator = as_operator(KeyScheme(default_agent="ops"))
    assert operator.read(written).key == parse(key)


def test_current_from_an_operator_is_refused_with_what_would_work() -> None:
    with pytest.raises(InvalidSessionKey, match=r"operator.*agent:main:main"):
        as_operator().read("current")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "written", ["global", "unknown", "GLOBAL", "%67lobal", "agent:main:global", "agent:main:unknown"]
)
def test_reserved_keys_cannot_be_addressed_under_any_scheme(scheme: KeyScheme, written: str) -> None:
    for caller in (as_operator(scheme), as_session("agent:main:cron:a", scheme)):
        with pytest.raises(InvalidSessionKey, match="reserved; write main"):
            caller.read(written)


@pytest.mark.parametrize("written", ["main", "agent:main:main", "home", "agent:main:home"])
def test_every_name_of_the_main_session_is_read_as_the_key_in_force(written: str) -> None:
    assert as_operator(KeyScheme(main_key="home")).read(written).key == parse("agent:main:home")
    assert as_operator(KeyScheme(main_key="home", global_scope=True)).read(written).key == GLOBAL.main("main")


@pytest.mark.parametrize("written", ["", "  ", "cron:", ":", "agent:", "agent:main", "a::b", "x" * 600, ":" * 10_000])
def test_a_malformed_text_is_refused(written: str) -> None:
    with pytest.raises(InvalidSessionKey) as refused:
        as_operator().read(written)
    assert len(refused.value.message) < 400


# Choosing


def test_a_session_id_leads_to_the_session_that_has_it_now() -> None:
    key = parse("agent:ops:telegram:group:42")
    written = as_operator().read(SESSION_ID.upper())
    assert written.session_id == SESSION_ID
    assert as_operator().choose(written, LookedUp(id_key=key, id_is_current=True)) == SessionResolved(
        key, exists=True, session_id=SESSION_ID
    )


def test_the_id_of_a_deleted_session_names_nothing_however_it_is_read() -> None:
    for written in (as_operator().read(SESSION_ID), as_operator().read_id(SESSION_ID)):
        with pytest.raises(SessionNotFound, match=SESSION_ID):
            as_operator().choose(written, LookedUp(id_is_deleted=True))
    made = as_operator().choose(as_operator().read_id(SESSION_ID), LookedUp())
    assert made == SessionResolved(parse(f"agent:main:explicit:{SESSION_ID}"), exists=False)


def test_a_key_wins_over_a_session_id() -> None:
    caller = as_session("agent:ops:main")
    found = LookedUp(key_exists=True, id_key=parse("agent:main:main"), id_is_current=True)
    chosen = caller.resolve(SESSION_ID, lambda _: found)
    assert chosen == SessionResolved(parse(f"agent:ops:{SESSION_ID}"), exists=True)


def test_a_replaced_session_id_names_the_key_as_the_caller_sees_it() -> None:
    found = LookedUp(id_key=parse("agent:main:main"), id_is_current=False)
    with pytest.raises(SessionIdReplaced, match=r"replaced by a reset \(write its key: main\)") as replaced:
        as_session("agent:main:cron:a").resolve(SESSION_ID, lambda _: found)
    assert replaced.value.details == {"sessionKey": "main"}
    with pytest.raises(SessionIdReplaced, match="agent:main:main"):
        as_operator().resolve(SESSION_ID, lambda _: found)


@pytest.mark.parametrize("written", [SESSION_ID, "notes"])
def test_a_missing_session_id_or_plain_word_is_not_found(written: str) -> None:
    with pytest.raises(SessionNotFound, match=f"'{written}' \\(write main"):
        as_operator().resolve(written, store_with())


def test_a_plain_word_finds_the_custom_session_of_that_name() -> None:
    key = parse("agent:main:notes")
    assert as_operator().resolve("notes", store_with(key)) == SessionResolved(key, exists=True)


def test_a_session_id_of_a_reserved_session_is_not_found() -> None:
    found = LookedUp(id_key=parse("agent:main:unknown"), id_is_current=True)
    with pytest.raises(SessionNotFound):
        as_operator().resolve(SESSION_ID, lambda _: found)


def test_a_label_of_one_visible_session_finds_it() -> None:
    key = parse("agent:main:subagent:a")
    assert as_operator().choose_label("research", [key, key, parse("agent:main:unknown")]) == key


def test_a_label_of_several_visible_sessions_lists_them_as_the_caller_sees_them() -> None:
    matches = [parse("agent:ops:main"), parse("agent:main:cron:a")]
    with pytest.raises(AmbiguousLabel, match=r"'x' \(write a key: cron:a, agent:ops:main\)") as ambiguous:
        as_session("agent:main:main").choose_label("x", matches)
    assert ambiguous.value.details == {"sessionKeys": ["cron:a", "agent:ops:main"]}


def test_a_label_that_no_visible_session_has_is_not_found() -> None:
    with pytest.raises(SessionNotFound, match="no session has the label 'x'"):
        as_operator().choose_label("x", [])


# Properties

WORDS = ["agent", "main", "home", "global", "unknown", "current", "cron", "hook", "node", "node-", "subagent"]
WORDS += [
    "openai",
    "direct",
    "dm",
    "group",
    "channel",
    "thread",
    "topic",
    "telegram",
    "DM",
    "Thread",
    "NODE-",
    "%",
]
WORDS += [
    "%41",
    "%ff",
    "%25",
    "%c3%A9",
    "%ed%a0%80",
    "%64irect",
    "ΑΣ",
    "İ",
    "\ud800",
    "\x00",
    " ",
    SESSION_ID,
]
any_character = st.characters(exclude_categories=())  # surrogates and control characters too
any_id = st.one_of(st.sampled_from(WORDS), st.text(any_character, min_size=1, max_size=12))
any_agent = st.sampled_from(["main", "ops", "Research Bot"])
any_key = st.builds(lambda agent, ids: SessionKey.of(agent, *ids), any_agent, st.lists(any_id, min_size=1, max_size=6))
any_scheme = st.sampled_from(SCHEMES)
any_caller = st.builds(CallerKeys, any_scheme, st.none() | any_key)
typed_text = st.one_of(st.text(any_character, max_size=40), st.lists(any_id, max_size=7).map(":".join))


@given(any_key)
def test_parsing_a_shown_key_gives_the_key(key: SessionKey) -> None:
    assert parse(str(key)) == key
    assert SessionKey.stored(str(key)) == key
    assert all(type(part) is str for part in key.path)


@given(typed_text)
@example("agent:main:node:dm:x")
@example("agent:main:dm:dm:dm:X")
def test_reading_any_text_gives_one_lasting_spelling_or_a_clear_refusal(text: str) -> None:
    for full in (text, f"agent:main:{text}"):
        try:
            key = parse(full)
        except InvalidSessionKey as refused:
            refused.message.encode()
        else:
            assert parse(str(key)) == key
            assert not re.search(r"\s", str(key))
            str(key).encode()


@given(any_caller, typed_text, st.booleans(), st.none() | any_key, st.booleans())
def test_no_text_crashes_resolving(
    caller: CallerKeys, text: str, key_exists: bool, id_key: SessionKey | None, id_is_current: bool
) -> None:
    try:
        resolved = caller.resolve(text, lambda _: LookedUp(key_exists, id_key, id_is_current))
    except (InvalidSessionKey, SessionNotFound, SessionIdReplaced) as refused:
        refused.message.encode()
    else:
        assert isinstance(resolved.key, SessionKey)


@given(any_caller, any_key)
def test_what_a_caller_is_shown_it_can_pass_back(caller: CallerKeys, key: SessionKey) -> None:
    key = caller.scheme.in_force(key)
    if not caller.scheme.is_listed(key):
        return
    assert caller.resolve(caller.show(key), store_with(key)) == SessionResolved(key, exists=True)


@given(any_caller, any_key)
def test_the_reserved_words_are_never_shown_and_the_key_in_force_is_stable(caller: CallerKeys, key: SessionKey) -> None:
    stored = caller.scheme.in_force(key)
    assert caller.scheme.in_force(stored) == stored
    assert caller.scheme.kind(stored) == caller.scheme.kind(key)
    if caller.scheme.is_listed(stored):
        assert not re.fullmatch(r"(agent:[^:]+:)?(global|unknown)", caller.show(stored))


@given(any_agent, any_id, any_id, st.none() | any_id, st.sampled_from([ChatType.GROUP, ChatType.CHANNEL]))
def test_a_group_key_is_always_recognised_as_one(
    agent: str, channel: str, chat: str, thread: str | None, type: ChatType
) -> None:
    try:
        key = SessionKey.group(agent, channel, type, chat, thread)
    except InvalidSessionKey:
        return
    assert (KeyScheme().kind(key), key.chat_type, key.channel) == (Kind.GROUP, type, channel.lower())
    assert key.parent == (SessionKey.group(agent, channel, type, chat) if thread else None)


@given(any_agent, any_id, any_id, any_id, st.sampled_from([*DmScope]))
def test_a_direct_key_is_always_recognised_as_one(
    agent: str, channel: str, account: str, peer: str, dm_scope: DmScope
) -> None:
    scheme = KeyScheme(dm_scope=dm_scope)
    try:
        key = scheme.direct(agent, channel=channel, account=account, peer=peer)
    except InvalidSessionKey:
        return
    assert key.parent is None
    assert scheme.is_main(key) or key.chat_type is ChatType.DIRECT


@given(st.text(any_character))
def test_an_agent_id_is_stable_and_safe_in_a_path(text: str) -> None:
    try:
        agent_id = normalise_agent_id(text)
    except UnknownAgent:
        return
    assert normalise_agent_id(agent_id) == agent_id
    assert re.fullmatch(r"[a-z0-9_-]{1,64}", agent_id)


@given(st.uuids(version=4), any_scheme)
def test_every_session_id_is_read_as_one(session_id: UUID, scheme: KeyScheme) -> None:
    assert as_operator(scheme).read(str(session_id)).session_id == str(session_id)
