"""Inbound messages: what is read, whose session they belong to, and what is done with them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.commands.commands import Command, CommandName, CommandReply, Rank
from backchannel.core.delivery.channels import ChannelSettings, InboundEvent, InboundId
from backchannel.core.keys import ChatType, DmScope, KeyScheme, SessionKey, ThreadWord
from backchannel.core.policy.inbound import (
    MAX_AGE_MS,
    Admission,
    AdmissionRules,
    BindingMatchSettings,
    BindingSettings,
    RoutingRules,
    Verdict,
    check,
    command_in,
    parse_event,
    route,
    standing_of,
)
from backchannel.core.policy.inbound import admit as decide
from backchannel.core.policy.send_policy import PolicyRuleSettings, SendPolicySettings
from backchannel.core.sessions import Address
from backchannel.errors import InvalidRequest, InvalidSessionKey
from tests.core.test_command_texts import session

NOW = 1_700_000_000_000
WIRE: dict[str, Any] = {
    "chatType": "direct",
    "chatId": "C1",
    "senderId": "Bob",
    "messageId": "m1",
    "text": "hello",
}
FULL = WIRE | {
    "channel": "telegram",
    "accountId": "work",
    "threadId": "7",
    "chatName": "Friends",
    "senderName": "Bob B.",
    "senderIsBot": False,
    "mentioned": True,
    "mentionedAccounts": ["private"],
    "ts": NOW,
}


def read(path: str = "telegram", /, **fields: Any) -> InboundEvent:
    """Read an event that was posted to the channel `path`; a field that is `...` is left out."""
    body = {name: value for name, value in (WIRE | fields).items() if value is not ...}
    return check(parse_event(json.dumps(body)), channel=path, now_ms=NOW)


# What is read


def test_an_event_is_read_by_its_wire_names() -> None:
    event = check(parse_event(json.dumps(FULL).encode()), channel="telegram", now_ms=NOW)
    assert event == InboundEvent(
        channel="telegram",
        account_id="work",
        chat_type=ChatType.DIRECT,
        chat_id="C1",
        thread_id="7",
        chat_name="Friends",
        sender_id="Bob",
        sender_name="Bob B.",
        message_id="m1",
        text="hello",
        mentioned=True,
        mentioned_accounts=("private",),
        ts=NOW,
    )
    assert event.identity == InboundId("telegram", "work", "C1", "m1")


def test_what_may_be_left_out_has_its_default() -> None:
    event = read()
    assert (event.channel, event.account_id, event.mentioned, event.ts) == ("telegram", "default", False, None)
    assert read(channel="").channel == "telegram"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        *(({name: ...}, name) for name in WIRE),
        *(({name: 5}, name) for name in WIRE),
        *(({name: ""}, name) for name in ("accountId", "threadId", "chatId", "senderId", "messageId")),
        ({"chatType": "room"}, "room"),
        ({"mentioned": "yes"}, "mentioned"),
        ({"ts": "now"}, "ts"),
        ({"ts": 1.5}, "ts"),
        ({"surprise": 1}, "surprise"),
        ({"chat_id": "C1"}, "chat_id"),
        ({"channel": "discord"}, '"discord" came over "telegram"'),
        ({"channel": "Telegram"}, "Telegram"),
    ],
)
def test_a_bad_event_is_refused_with_the_field_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(**fields)
    assert named in raised.value.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b'"\\ud800"'])
def test_what_is_no_event_at_all_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="its fields are channel, accountId"):
        parse_event(body)


def test_an_event_older_than_five_minutes_is_refused() -> None:
    assert read(ts=NOW - MAX_AGE_MS).ts == NOW - MAX_AGE_MS
    with pytest.raises(InvalidRequest, match="at most 300 s"):
        read(ts=NOW - MAX_AGE_MS - 1)
    with pytest.raises(InvalidRequest, match="milliseconds"):
        read(ts=NOW // 1000)
    assert read(ts=NOW + 60_000).ts == NOW + 60_000


# Whose session: every dmScope × link × chat × thread


LINKS = {"alice": ["telegram:Bob", "discord:99"]}
DIRECT_KEYS = {
    (DmScope.MAIN, False): "agent:main:main",
    (DmScope.MAIN, True): "agent:main:main",
    (DmScope.PER_PEER, False): "agent:main:direct:bob",
    (DmScope.PER_PEER, True): "agent:main:direct:alice",
    (DmScope.PER_CHANNEL_PEER, False): "agent:main:telegram:direct:bob",
    (DmScope.PER_CHANNEL_PEER, True): "agent:main:telegram:direct:alice",
    (DmScope.PER_ACCOUNT_CHANNEL_PEER, False): "agent:main:telegram:Work:direct:bob",
    (DmScope.PER_ACCOUNT_CHANNEL_PEER, True): "agent:main:telegram:Work:direct:alice",
}


@pytest.mark.parametrize(
    ("scope", "linked", "type", "thread"), list(itertools.product(DmScope, [False, True], ChatType, [None, "T1"]))
)
def test_a_message_belongs_to_the_session_that_its_chat_and_the_settings_say(
    scope: DmScope, linked: bool, type: ChatType, thread: str | None
) -> None:
    routing = RoutingRules(KeyScheme(dm_scope=scope), LINKS if linked else {})
    event = read(chatType=type, accountId="Work", threadId=thread)
    routed = route(event, routing, thread_word="topic")
    if type is ChatType.DIRECT:
        assert str(routed.key) == DIRECT_KEYS[scope, linked]
    else:
        assert str(routed.key) == f"agent:main:telegram:{type}:c1" + (":topic:T1" if thread else "")
    assert routed.address == Address(channel="telegram", to="C1", account_id="Work", thread_id=thread)
    assert (routed.agent, routed.chat_type) == ("main", type)
    assert routed.destination.channel == "telegram"


@pytest.mark.parametrize("word", ["thread", "topic"])
def test_the_key_of_a_thread_has_the_word_of_its_platform(word: ThreadWord) -> None:
    event = read("tg", chatType="group", threadId="9")
    assert str(route(event, RoutingRules(KeyScheme()), thread_word=word).key) == f"agent:main:tg:group:c1:{word}:9"


def test_one_person_on_two_channels_shares_a_session_when_linked_and_scoped_per_peer() -> None:
    routing = RoutingRules(KeyScheme(dm_scope=DmScope.PER_PEER), LINKS)
    keys = {route(event, routing).key for event in (read(), read("discord", senderId="99"))}
    assert keys == {SessionKey.parse("agent:main:direct:alice")}
    assert str(route(read("discord"), routing).key) == "agent:main:direct:bob"


@pytest.mark.parametrize("scope", [scope for scope in DmScope if scope is not DmScope.MAIN])
@pytest.mark.parametrize("sender", ["alice", "Alice"])
def test_nobody_joins_a_linked_person_by_having_their_name_as_id(scope: DmScope, sender: str) -> None:
    routing = RoutingRules(KeyScheme(dm_scope=scope), LINKS)
    assert route(read(senderId=sender), routing).key != route(read(), routing).key


def test_with_the_global_scope_direct_chats_are_one_session_and_groups_are_not() -> None:
    routing = RoutingRules(KeyScheme(global_scope=True, dm_scope=DmScope.PER_PEER))
    assert str(route(read(), routing).key) == "agent:main:global"
    assert str(route(read(chatType="group"), routing).key) == "agent:main:telegram:group:c1"


def bind(agent: str, channel: str, account: str | None = None, chat: str | None = None) -> BindingSettings:
    return BindingSettings(
        match=BindingMatchSettings(channel=channel, account_id=account, chat_id=chat), agent_id=agent
    )


@pytest.mark.parametrize(
    ("bindings", "agent"),
    [
        ([], "main"),
        ([bind("a", "telegram")], "a"),
        ([bind("a", "discord")], "main"),
        ([bind("a", "telegram", "work")], "a"),
        ([bind("a", "telegram", "home")], "main"),
        ([bind("a", "telegram", chat="c1")], "a"),
        ([bind("a", "telegram", chat="C2")], "main"),
        ([bind("a", "telegram", "work", "C1"), bind("b", "telegram")], "a"),
        ([bind("a", "telegram", "work", "C2"), bind("b", "telegram")], "b"),
        ([bind("a", "telegram"), bind("b", "telegram", "work", "C1")], "a"),
    ],
)
def test_the_first_binding_that_matches_chooses_the_agent(bindings: list[BindingSettings], agent: str) -> None:
    routed = route(read(accountId="work"), RoutingRules(KeyScheme(), bindings=bindings))
    assert (routed.agent, routed.key) == (agent, SessionKey.of(agent, "main"))


@pytest.mark.parametrize(
    ("scope", "fields", "name"),
    [
        (DmScope.MAIN, {"chatName": "Bob", "senderName": "Bob"}, None),
        (DmScope.PER_PEER, {"senderName": "Bob B."}, "Bob B."),
        (DmScope.PER_PEER, {"chatName": "Bobby", "senderName": "Bob B."}, "Bobby"),
        (DmScope.PER_PEER, {}, None),
        (DmScope.MAIN, {"chatType": "group", "chatName": " Friends ", "senderName": "Bob"}, "Friends"),
        (DmScope.MAIN, {"chatType": "group", "senderName": "Bob"}, None),
        (DmScope.MAIN, {"chatType": "group", "chatName": "  "}, None),
    ],
)
def test_a_session_is_called_what_the_channel_calls_the_chat(
    scope: DmScope, fields: dict[str, str], name: str | None
) -> None:
    assert route(read(**fields), RoutingRules(KeyScheme(dm_scope=scope))).display_name == name


def test_ids_too_long_for_a_key_are_refused() -> None:
    with pytest.raises(InvalidSessionKey):
        route(read(chatType="group", chatId="x" * 512), RoutingRules(KeyScheme()))


IDS = st.text(min_size=1, max_size=20)


@given(st.sampled_from(DmScope), st.sampled_from(ChatType), IDS, IDS, st.none() | IDS)
def test_any_ids_make_a_key_that_reads_back_and_an_address_that_keeps_them(
    scope: DmScope, type: ChatType, chat: str, sender: str, thread: str | None
) -> None:
    event = InboundEvent(
        channel="desk", chat_type=type, chat_id=chat, thread_id=thread, sender_id=sender, message_id="1", text="x"
    )
    routed = route(event, RoutingRules(KeyScheme(dm_scope=scope), LINKS))
    assert SessionKey.parse(str(routed.key)) == routed.key
    assert (routed.address.to, routed.address.thread_id) == (chat, thread)


# Who may speak, and what is done with what they say


ALLOWED = SendPolicySettings()
DENIED = SendPolicySettings(rules=(PolicyRuleSettings(action="deny"),))


def admit(
    event: InboundEvent,
    settings: ChannelSettings,
    policy: SendPolicySettings,
    own_names: Sequence[str] = (),
    called: Sequence[str] | None = None,
) -> Admission:
    rules = AdmissionRules(
        settings=settings,
        policy=policy,
        destination=route(event, RoutingRules(KeyScheme())).destination,
        own_names=tuple(own_names),
        command=command_in(event, own_names, called),
    )
    return decide(event, rules)


def channel(**settings: Any) -> ChannelSettings:
    return ChannelSettings(**({"allow_from": ("Bob",), "owners": ("Olga",)} | settings))


@pytest.mark.parametrize(
    ("sender", "allow_from", "standing"),
    [
        ("Olga", (), Rank.OWNER),
        ("Olga", ("*",), Rank.OWNER),
        ("Bob", (), Rank.STRANGER),
        ("Bob", ("Bob",), Rank.AUTHORISED),
        ("bob", ("Bob",), Rank.STRANGER),
        ("Bob", ("*",), Rank.AUTHORISED),
        ("Bob", ("B*",), Rank.STRANGER),
    ],
)
def test_owners_and_those_allowed_may_speak(sender: str, allow_from: tuple[str, ...], standing: Rank) -> None:
    assert standing_of(sender, channel(allow_from=allow_from)) is standing


@pytest.mark.parametrize(
    ("fields", "policy", "verdict", "rule"),
    [
        ({}, ALLOWED, Verdict.ANSWER, None),
        ({"senderId": "Olga"}, ALLOWED, Verdict.ANSWER, None),
        ({"senderId": "Eve"}, ALLOWED, Verdict.IGNORE, "channels.telegram.allowFrom"),
        ({"senderId": "Eve"}, DENIED, Verdict.IGNORE, "channels.telegram.allowFrom"),
        ({"senderId": "Eve", "text": "/stop"}, ALLOWED, Verdict.IGNORE, "channels.telegram.allowFrom"),
        ({"senderId": "Eve", "chatType": "group", "mentioned": True}, ALLOWED, Verdict.IGNORE, None),
        ({"text": " \n"}, ALLOWED, Verdict.IGNORE, None),
        ({}, DENIED, Verdict.RECORD, "session.sendPolicy.rules[0]"),
        ({"chatType": "group"}, ALLOWED, Verdict.RECORD, "channels.telegram.requireMention"),
        ({"chatType": "channel"}, ALLOWED, Verdict.RECORD, "channels.telegram.requireMention"),
        ({"chatType": "group", "mentioned": True}, ALLOWED, Verdict.ANSWER, None),
        ({"chatType": "group", "mentioned": True}, DENIED, Verdict.RECORD, "session.sendPolicy.rules[0]"),
        ({"text": "/stop"}, ALLOWED, Verdict.COMMAND, None),
        ({"text": "/stop"}, DENIED, Verdict.COMMAND, None),
        ({"text": "/stop", "chatType": "group"}, ALLOWED, Verdict.COMMAND, None),
        ({"text": "please /stop", "chatType": "group"}, ALLOWED, Verdict.RECORD, None),
        ({"senderIsBot": True}, ALLOWED, Verdict.IGNORE, "channels.telegram.allowBots"),
        ({"senderId": "work", "accountId": "Work"}, ALLOWED, Verdict.IGNORE, None),
    ],
)
def test_an_inbound_message_is_ignored_recorded_answered_or_a_command(
    fields: dict[str, Any], policy: SendPolicySettings, verdict: Verdict, rule: str | None
) -> None:
    admission = admit(read(**fields), channel(), policy)
    assert admission.verdict is verdict
    assert admission.reason
    assert rule is None or admission.rule == rule
    assert (admission.command is not None) is (verdict is Verdict.COMMAND)


def test_the_policy_of_the_session_wins_and_one_that_only_shadows_is_told() -> None:
    event, shadow = read(), msgspec.structs.replace(DENIED, shadow=True)
    destination = route(event, RoutingRules(KeyScheme())).destination
    rules = AdmissionRules(settings=channel(), policy=DENIED, destination=destination)
    assert decide(event, rules).verdict is Verdict.RECORD
    shown = admit(event, channel(), shadow)
    assert shown.verdict is Verdict.ANSWER and "rules[0]" in (shown.shadowed or "")
    assert decide(event, rules, session(send_policy="allow")).verdict is Verdict.ANSWER


def test_without_require_mention_groups_are_answered() -> None:
    assert admit(read(chatType="group"), channel(require_mention=False), ALLOWED).verdict is Verdict.ANSWER


def test_our_own_accounts_are_never_inbound_whoever_is_allowed() -> None:
    everybody = channel(allow_from=("*",), owners=("helper",), allow_bots=True)
    for text in ("hello", "/stop"):
        event = read(senderId="Helper", senderIsBot=True, text=text)
        assert admit(event, everybody, ALLOWED, own_names=["helper"]).verdict is Verdict.IGNORE


def test_other_bots_speak_where_allowed_but_their_commands_are_ordinary_text() -> None:
    settings = channel(allow_bots=True)
    assert admit(read(senderIsBot=True), settings, ALLOWED).verdict is Verdict.ANSWER
    assert admit(read(senderIsBot=True, text="/stop"), settings, ALLOWED).verdict is Verdict.ANSWER
    assert admit(read(senderIsBot=True, senderId="Eve"), settings, ALLOWED).verdict is Verdict.IGNORE


def test_a_command_is_carried_out_for_those_who_may_and_answered_to_those_who_may_not() -> None:
    owner = admit(read(senderId="Olga", text="/send off"), channel(), DENIED)
    assert owner.command == Command(CommandName.SEND, "off")
    assert owner.standing is Rank.OWNER
    other = admit(read(text="/send off"), channel(), ALLOWED)
    assert isinstance(other.command, CommandReply) and "/send is for owners only" in other.command.text
    assert other.rule == "channels.<name>.owners"
    wrong = admit(read(text="/stop it"), channel(), ALLOWED)
    assert isinstance(wrong.command, CommandReply) and "write /stop" in wrong.command.text


def test_a_command_for_another_bot_is_ordinary_text_where_our_names_are_known() -> None:
    event = read(text="/stop@other", chatType="group")
    assert admit(event, channel(), ALLOWED, own_names=["helper"]).verdict is Verdict.RECORD
    ours = read(text="/stop@Helper", chatType="group")
    assert admit(ours, channel(), ALLOWED, own_names=["helper"]).verdict is Verdict.COMMAND


def test_a_command_for_one_of_our_accounts_is_carried_out_there_alone() -> None:
    event, everybody = read(text="/new@Helper", chatType="group"), channel(require_mention=False)
    names = ["helper", "other"]
    assert admit(event, everybody, ALLOWED, names, called=["helper"]).verdict is Verdict.COMMAND
    assert admit(event, everybody, ALLOWED, names, called=["other"]).verdict is Verdict.IGNORE
    both = [admit(read(text="/new"), everybody, ALLOWED, names, called=[name]).verdict for name in names]
    assert both == [Verdict.COMMAND] * 2


def test_a_command_for_somebody_is_ours_in_a_direct_chat_or_where_we_are_mentioned() -> None:
    named = {"text": "/stop@somebody"}
    assert admit(read(**named), channel(), ALLOWED).verdict is Verdict.COMMAND
    assert admit(read(**named, chatType="group"), channel(), ALLOWED).verdict is Verdict.RECORD
    assert admit(read(**named, chatType="group", mentioned=True), channel(), ALLOWED).verdict is Verdict.COMMAND
    assert admit(read(text="/stop", chatType="group"), channel(), ALLOWED).verdict is Verdict.COMMAND


@given(
    st.sampled_from(["Bob", "Olga", "Eve"]),
    st.sampled_from(ChatType),
    st.sampled_from(["hello", "/stop", "/send off", "/nonsense", ""]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([ALLOWED, DENIED]),
)
def test_only_what_policy_and_settings_allow_starts_a_run(
    sender: str, type: ChatType, text: str, mentioned: bool, is_bot: bool, policy: SendPolicySettings
) -> None:
    event = read(senderId=sender, chatType=type, text=text, mentioned=mentioned, senderIsBot=is_bot)
    admission = admit(event, channel(), policy)
    if admission.verdict is Verdict.ANSWER:
        assert policy == ALLOWED and sender != "Eve" and not is_bot
        assert mentioned or type is ChatType.DIRECT
    if sender == "Eve" or is_bot:
        assert admission.verdict is Verdict.IGNORE
