"""The send policy: what decides, in which order, and how it is told."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.keys import ChatType, KeyScheme, SessionKey
from backchannel.core.policy.send_policy import (
    Destination,
    PolicyMatchSettings,
    PolicyRuleSettings,
    SendPolicySettings,
    is_about,
    may_send,
)

parse = SessionKey.parse
SCHEME = KeyScheme()
GROUP = Destination.of(parse("agent:main:discord:group:42"), SCHEME)
MAIN = Destination.of(parse("agent:main:main"), SCHEME, channel="telegram")


def rule(
    action: str, channel: str | None = None, type: str | None = None, prefix: str | None = None
) -> PolicyRuleSettings:
    match = PolicyMatchSettings(channel=channel, chat_type=ChatType(type) if type else None, key_prefix=prefix)
    return PolicyRuleSettings(match=match, action=action)  # type: ignore[arg-type]  # parametrised


DENY_GROUPS = SendPolicySettings(rules=(rule("deny", "discord", "group"),))


# What a rule is about: rule × channel × chat type


PLACES = {
    ("discord", "group"): Destination.of(parse("agent:main:discord:group:42"), SCHEME),
    ("discord", "channel"): Destination.of(parse("agent:main:discord:channel:42"), SCHEME),
    ("discord", "direct"): Destination.of(parse("agent:main:discord:direct:bob"), SCHEME),
    ("slack", "channel"): Destination.of(parse("agent:main:slack:channel:c1:thread:7"), SCHEME),
    ("telegram", "direct"): MAIN,
    ("internal", None): Destination.of(parse("agent:main:cron:nightly"), SCHEME, channel="internal"),
    (None, None): Destination.of(parse("agent:main:subagent:1"), SCHEME),
}
CHANNELS = [None, "discord", "Slack", " telegram ", "internal", "signal"]
TYPES = [None, "direct", "group", "channel"]


@pytest.mark.parametrize(("channel", "type", "place"), list(itertools.product(CHANNELS, TYPES, PLACES)))
def test_a_rule_is_about_what_all_its_given_fields_match(
    channel: str | None, type: str | None, place: tuple[str | None, str | None]
) -> None:
    is_channel = channel is None or channel.strip().lower() == place[0]
    is_type = type is None or type == place[1]
    assert is_about(rule("deny", channel, type).match, PLACES[place]) is (is_channel and is_type)


@pytest.mark.parametrize(
    ("prefix", "key", "expected"),
    [
        ("cron:", "agent:main:cron:nightly", True),
        ("agent:main:cron:", "agent:main:cron:nightly", True),
        ("agent:main:", "agent:main:cron:nightly", True),
        ("agent:ops:", "agent:main:cron:nightly", False),
        ("Agent:Main:CRON:", "agent:main:cron:nightly", True),
        ("main:cron:", "agent:main:cron:nightly", False),
        ("nightly", "agent:main:cron:nightly", False),
        ("discord:group:4", "agent:main:discord:group:42", True),
        ("discord:group:43", "agent:main:discord:group:42", False),
        ("", "agent:main:discord:group:42", True),
        ("main", "agent:main:main", True),
        ("main", "agent:main:mainly", True),
        ("telegram:dm:", "agent:main:telegram:direct:42", True),
        ("telegram:dm", "agent:main:telegram:direct:42", True),
        ("Telegram:DM:4", "agent:main:telegram:direct:42", True),
        ("telegram:dm:43", "agent:main:telegram:direct:42", False),
        ("agent:main:telegram:work:dm:", "agent:main:telegram:work:direct:42", True),
        ("dm:", "agent:main:direct:42", True),
        ("telegram:dm", "agent:main:telegram:dmitri:direct:42", True),
        ("discord:group:dm", "agent:main:discord:group:dm", True),
        ("node:pi", "agent:main:node-pi", True),
        ("agent:main:node:", "agent:main:node-Pi:more", True),
        ("node:pi", "agent:main:node-kitchen", False),
        ("node:pi", "agent:main:nodes:pi", False),
    ],
)
def test_a_key_prefix_is_matched_with_and_without_the_agent_in_every_spelling(
    prefix: str, key: str, expected: bool
) -> None:
    assert is_about(rule("deny", prefix=prefix).match, Destination.of(parse(key), SCHEME)) is expected


@pytest.mark.parametrize(
    ("key", "scheme"),
    [
        ("agent:main:home", KeyScheme(main_key="home")),
        ("agent:main:global", KeyScheme(global_scope=True)),
    ],
)
def test_a_main_session_is_a_direct_chat_called_main_whatever_its_key(key: str, scheme: KeyScheme) -> None:
    destination = Destination.of(parse(key), scheme)
    assert is_about(rule("deny", type="direct", prefix="main").match, destination)
    assert is_about(rule("deny", prefix="agent:main:main").match, destination)
    assert is_about(rule("deny", prefix=key).match, destination)


def test_a_delivery_is_judged_by_the_chat_it_really_reaches() -> None:
    job = Destination.of(parse("agent:main:cron:nightly"), SCHEME, channel="Discord", chat_type=ChatType.GROUP)
    assert not may_send(DENY_GROUPS, job).allowed


# What decides: override × rules × default


DENY, ALLOW = rule("deny", "discord"), rule("allow", prefix="discord:group:")
ELSEWHERE = [rule("deny", "signal"), rule("allow", "signal")]
RULES = {
    "none": [],
    "elsewhere": ELSEWHERE,
    "allow": [*ELSEWHERE, ALLOW],
    "deny": [*ELSEWHERE, DENY],
    "allow, deny": [ALLOW, *ELSEWHERE, DENY],
    "deny, allow": [DENY, *ELSEWHERE, ALLOW],
}


@pytest.mark.parametrize(
    ("override", "rules", "default"), list(itertools.product([None, "allow", "deny"], RULES, ["allow", "deny"]))
)
def test_the_override_decides_then_a_deny_then_an_allow_then_the_default(
    override: str | None, rules: str, default: str
) -> None:
    if override:
        expected, decided_by = override == "allow", "sendPolicy of the session"
    elif "deny" in rules:
        expected, decided_by = False, f"session.sendPolicy.rules[{RULES[rules].index(DENY)}]"
    elif "allow" in rules:
        expected, decided_by = True, f"session.sendPolicy.rules[{RULES[rules].index(ALLOW)}]"
    else:
        expected, decided_by = default == "allow", "session.sendPolicy.default"
    policy = SendPolicySettings(rules=tuple(RULES[rules]), default=default)  # type: ignore[arg-type]  # parametrised

    decision = may_send(policy, GROUP, override)

    assert (decision.allowed, decision.rule, decision.would_deny) == (expected, decided_by, False)


def test_what_no_rule_and_no_default_decides_is_allowed() -> None:
    assert may_send(SendPolicySettings(), GROUP).allowed


# How it is told


@pytest.mark.parametrize(
    ("policy", "override", "begins"),
    [
        (DENY_GROUPS, None, 'session.sendPolicy.rules[0] (channel "discord", chatType "group") denies; the session\'s'),
        (SendPolicySettings(rules=(rule("allow"),)), None, "session.sendPolicy.rules[0] (everything) allows"),
        (
            SendPolicySettings(default="deny"),
            None,
            'no rule matches, and session.sendPolicy.default is "deny" ("allow" would',
        ),
        (SendPolicySettings(), None, 'no rule denies, and session.sendPolicy.default is "allow"'),
        (SendPolicySettings(), "deny", 'the session\'s own sendPolicy is "deny" ("allow", or null to follow the rules'),
        (DENY_GROUPS, "allow", 'the session\'s own sendPolicy is "allow"'),
    ],
)
def test_a_decision_names_the_rule_that_made_it(policy: SendPolicySettings, override: str | None, begins: str) -> None:
    assert may_send(policy, GROUP, override).reason.startswith(begins)


def test_an_override_that_is_no_known_word_stops_the_message() -> None:
    assert not may_send(SendPolicySettings(), GROUP, "off").allowed


def test_in_shadow_a_denied_message_passes_and_is_told() -> None:
    policy = SendPolicySettings(rules=DENY_GROUPS.rules, shadow=True)
    decision = may_send(policy, GROUP)
    assert (decision.allowed, decision.would_deny, decision.rule) == (True, True, "session.sendPolicy.rules[0]")
    assert decision.reason.startswith("session.sendPolicy.shadow is true; without it: session.sendPolicy.rules[0] (ch")


rules = st.builds(
    rule,
    st.sampled_from(["allow", "deny"]),
    st.sampled_from([None, "discord", "TELEGRAM"]),
    st.sampled_from([None, "direct", "group"]),
    st.sampled_from([None, "main", "discord:", "agent:ops:"]),
)
places = st.sampled_from([*PLACES.values(), Destination.of(parse("agent:ops:discord:group:1"), SCHEME)])
overrides = st.sampled_from([None, "allow", "deny"])


@given(st.lists(rules, max_size=5), st.sampled_from(["allow", "deny"]), places, overrides)
def test_the_order_of_rules_never_matters_and_shadow_blocks_nothing(
    written: list[PolicyRuleSettings], default: str, place: Destination, override: str | None
) -> None:
    def decide(rules: list[PolicyRuleSettings], *, shadow: bool) -> tuple[bool, bool]:
        policy = SendPolicySettings(rules=tuple(rules), default=default, shadow=shadow)  # type: ignore[arg-type]  # generated
        decision = may_send(policy, place, override)
        assert decision.rule
        return decision.allowed, decision.would_deny

    allowed, would_deny = decide(written, shadow=False)
    assert not would_deny
    assert decide(written[::-1], shadow=False) == (allowed, False)
    assert decide(written, shadow=True) == (True, not allowed)
