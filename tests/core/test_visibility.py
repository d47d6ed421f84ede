"""Visibility: the whole matrix of modes, sandbox and agents, and that a query says the same as the decision."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.config.agents import agent
from backchannel.config.schema import Config
from backchannel.config.schema_agents import (
    AgentsSettings,
    AgentToolSettings,
    ListedAgentSettings,
    SandboxSettings,
    SessionToolSettings,
)
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.policy.visibility import (
    OPERATOR,
    AgentToAgentSettings,
    Mode,
    Viewer,
    VisibleScope,
    explain,
    is_restricted,
    is_sandboxed,
    may_talk,
    scope,
    sees,
    unseen,
)
from backchannel.core.text import matches

parse = SessionKey.parse
CALLER = parse("agent:main:telegram:group:42")
OPEN = AgentToAgentSettings(enabled=True, allow=("main", "ops*"))

OWN = (CALLER, None)
SPAWNED = (parse("agent:main:subagent:1"), str(CALLER))
SPAWNED_ELSEWHERE = (parse("agent:closed:subagent:2"), str(CALLER))
SPAWNED_BY_ANOTHER = (parse("agent:main:subagent:3"), "agent:main:main")
SAME_AGENT = (parse("agent:main:cron:nightly"), None)
ALLOWED_AGENT = (parse("agent:ops-eu:main"), None)
CLOSED_AGENT = (parse("agent:closed:main"), None)
TARGETS = {
    "own": OWN,
    "spawned": SPAWNED,
    "spawned under another agent": SPAWNED_ELSEWHERE,
    "spawned by another session": SPAWNED_BY_ANOTHER,
    "same agent": SAME_AGENT,
    "other agent, allowed": ALLOWED_AGENT,
    "other agent, not allowed": CLOSED_AGENT,
}
AGENTS = ["main", "ops-eu", "closed"]

TREE = ["own", "spawned", "spawned under another agent"]
AGENT = [*TREE, "spawned by another session", "same agent"]
VISIBLE = {
    Mode.SELF: ["own"],
    Mode.TREE: TREE,
    Mode.AGENT: AGENT,
    Mode.ALL: [*AGENT, "other agent, allowed"],
}


def viewer(mode: Mode, *, sandboxed: bool = False, spawned_only: bool = True) -> Viewer:
    return Viewer(CALLER, mode, is_sandboxed=sandboxed, is_clamped=sandboxed and spawned_only, talk=OPEN)


MATRIX = list(itertools.product(Mode, [False, True], [False, True], TARGETS))


@pytest.mark.parametrize(("mode", "sandboxed", "spawned_only", "name"), MATRIX)
def test_a_session_sees_what_its_mode_and_sandbox_let_it(
    mode: Mode, sandboxed: bool, spawned_only: bool, name: str
) -> None:
    in_force = Mode.TREE if sandboxed and spawned_only and mode in (Mode.AGENT, Mode.ALL) else mode
    expected = name in VISIBLE[in_force]
    view = viewer(mode, sandboxed=sandboxed, spawned_only=spawned_only)

    assert view.mode is in_force
    assert sees(view, *TARGETS[name]).allowed is expected
    assert explain(view, *TARGETS[name]).allowed is expected
    assert scope(view, AGENTS).includes(*TARGETS[name]) is expected


@pytest.mark.parametrize("name", TARGETS)
def test_an_operator_sees_everything(name: str) -> None:
    assert sees(OPERATOR, *TARGETS[name]).allowed
    assert scope(OPERATOR, AGENTS) == VisibleScope(everything=True)
    assert (OPERATOR.mode, is_restricted(OPERATOR, AGENTS), OPERATOR.hides_existence) == ("all", False, False)


agents = st.sampled_from(["main", "ops", "ops-eu", "research", "closed"])
rests = st.sampled_from(["main", "cron:a", "telegram:group:1", "subagent:1", "subagent:2"])
keys = st.builds(lambda agent, rest: parse(f"agent:{agent}:{rest}"), agents, rests)
patterns = st.sampled_from(["*", "main", "OPS*", "*-eu", "re*ch", "closed", ""])
talks = st.builds(
    AgentToAgentSettings,
    enabled=st.booleans(),
    allow=st.none() | st.lists(patterns, max_size=3).map(tuple),
)
viewers = st.builds(
    lambda caller, mode, sandboxed, clamped, talk: Viewer(caller, mode, sandboxed, sandboxed and clamped, talk),
    st.none() | keys,
    st.sampled_from(Mode),
    st.booleans(),
    st.booleans(),
    talks,
)


@given(viewers, keys, st.none() | keys.map(str))
def test_the_query_and_the_decision_always_agree(view: Viewer, target: SessionKey, spawned_by: str | None) -> None:
    known = ["main", "ops", "ops-eu", "research", "closed"]
    assert scope(view, known).includes(target, spawned_by) is sees(view, target, spawned_by).allowed


@given(viewers, keys, st.none() | keys.map(str))
def test_a_wider_mode_never_hides_what_a_narrower_one_shows(
    view: Viewer, target: SessionKey, spawned_by: str | None
) -> None:
    shown = [
        sees(Viewer(view.caller, mode, view.is_sandboxed, view.is_clamped, view.talk), target, spawned_by).allowed
        for mode in Mode
    ]
    assert shown == sorted(shown)


@given(viewers, keys, st.none() | keys.map(str))
def test_a_view_that_is_not_restricted_hides_nothing(view: Viewer, target: SessionKey, spawned_by: str | None) -> None:
    if not is_restricted(view, [target.agent]):
        assert sees(view, target, spawned_by).allowed


@given(viewers, st.lists(agents, unique=True))
def test_a_view_that_is_restricted_could_hide_something(view: Viewer, known: list[str]) -> None:
    caller = view.caller.agent if view.caller else "main"
    others = [parse(f"agent:{agent}:telegram:group:9") for agent in (caller, *known)]
    assert is_restricted(view, known) is any(not sees(view, other, None).allowed for other in others)


@given(viewers, keys, st.none() | keys.map(str))
def test_to_a_sandboxed_caller_every_refusal_is_the_same(
    view: Viewer, target: SessionKey, spawned_by: str | None
) -> None:
    decision = sees(view, target, spawned_by)
    if view.hides_existence and view.caller is not None and not decision.allowed:
        assert decision == unseen(view)


@given(viewers, keys, st.none() | keys.map(str))
def test_a_refusal_names_its_setting(view: Viewer, target: SessionKey, spawned_by: str | None) -> None:
    for decision in (sees(view, target, spawned_by), explain(view, target, spawned_by)):
        if not decision.allowed:
            assert decision.rule is not None
            assert decision.rule in decision.reason


@pytest.mark.parametrize(
    ("view", "target", "reason"),
    [
        (
            viewer(Mode.TREE),
            SAME_AGENT,
            "another session of its agent is not visible to agent:main:telegram:group:42: "
            'tools.sessions.visibility is "tree" ("agent" would allow it)',
        ),
        (
            viewer(Mode.ALL),
            CLOSED_AGENT,
            "a session of another agent is not visible to agent:main:telegram:group:42: "
            'tools.agentToAgent.allow is ["main", "ops*"] (adding "closed" would allow it)',
        ),
        (
            Viewer(CALLER, Mode.AGENT),
            CLOSED_AGENT,
            "a session of another agent is not visible to agent:main:telegram:group:42: "
            'tools.sessions.visibility is "agent" ("all" would allow it); '
            "tools.agentToAgent.enabled is false (true would allow it)",
        ),
        (
            viewer(Mode.AGENT, sandboxed=True),
            SAME_AGENT,
            "another session of its agent is not visible to agent:main:telegram:group:42: "
            'agents.defaults.sandbox.sessionToolsVisibility is "spawned", and the caller runs sandboxed '
            '("all" would allow it)',
        ),
    ],
)
def test_a_refusal_names_every_setting_in_the_way_and_what_would_allow_it(
    view: Viewer, target: tuple[SessionKey, str | None], reason: str
) -> None:
    assert explain(view, *target).reason == reason


def test_a_sandboxed_caller_is_told_its_settings_and_nothing_of_the_target() -> None:
    assert sees(viewer(Mode.ALL, sandboxed=True), *CLOSED_AGENT).reason == (
        "no such session is visible to this sandboxed session: "
        'tools.sessions.visibility is "all"; agents.defaults.sandbox.sessionToolsVisibility is "spawned", '
        'which stops at "tree" ("all" would not)'
    )
    assert sees(viewer(Mode.SELF, sandboxed=True, spawned_only=False), *SPAWNED).reason == (
        "no such session is visible to this sandboxed session: "
        'tools.sessions.visibility is "self" ("tree" or "agent" or "all" would show more)'
    )


@pytest.mark.parametrize(
    ("enabled", "allow", "one", "other", "expected"),
    [
        (False, None, "a", "b", False),
        (False, ("*",), "a", "b", False),
        (False, None, "a", "a", True),
        (True, None, "a", "b", True),
        (True, (), "a", "b", False),
        (True, (), "a", "a", True),
        (True, ("*",), "a", "b", True),
        (True, ("a",), "a", "b", False),
        (True, ("b",), "a", "b", False),
        (True, ("A", "B"), "a", "b", True),
        (True, ("Team-*",), "team-x", "team-y", True),
        (True, ("team-*",), "team-x", "x-team", False),
        (True, ("a*", "*-b"), "abc", "x-b", True),
    ],
)
def test_agents_may_talk_when_both_match(
    enabled: bool, allow: tuple[str, ...] | None, one: str, other: str, expected: bool
) -> None:
    talk = AgentToAgentSettings(enabled=enabled, allow=allow)
    assert may_talk(one, other, talk).allowed is expected
    assert may_talk(other, one, talk).allowed is expected


@pytest.mark.parametrize(
    ("mode", "sandboxed", "talk", "restricted"),
    [
        (Mode.AGENT, False, AgentToAgentSettings(enabled=True), True),
        (Mode.ALL, False, AgentToAgentSettings(), True),
        (Mode.ALL, False, AgentToAgentSettings(enabled=True), False),
        (Mode.ALL, False, AgentToAgentSettings(enabled=True, allow=("main", "*")), False),
        (Mode.ALL, False, AgentToAgentSettings(enabled=True, allow=("main", "o*")), True),
        (Mode.ALL, False, AgentToAgentSettings(enabled=True, allow=tuple(AGENTS)), False),
        (Mode.ALL, False, AgentToAgentSettings(enabled=False, allow=tuple(AGENTS)), True),
        (Mode.ALL, False, AgentToAgentSettings(enabled=True, allow=()), True),
        (Mode.ALL, True, AgentToAgentSettings(enabled=True), True),
    ],
)
def test_a_view_is_restricted_when_it_could_hide_something(
    mode: Mode, sandboxed: bool, talk: AgentToAgentSettings, restricted: bool
) -> None:
    assert is_restricted(Viewer(CALLER, mode, sandboxed, sandboxed, talk), AGENTS) is restricted


@pytest.mark.parametrize(("mode", "restricted"), [(Mode.SELF, True), (Mode.TREE, True), (Mode.AGENT, False)])
def test_where_there_is_one_agent_nothing_is_hidden_from_whoever_sees_all_of_it(mode: Mode, restricted: bool) -> None:
    assert is_restricted(Viewer(CALLER, mode), [CALLER.agent]) is restricted


@pytest.mark.parametrize(
    ("mode", "key", "scheme", "expected"),
    [
        ("off", "agent:main:cron:a", KeyScheme(), False),
        ("non-main", "agent:main:main", KeyScheme(), False),
        ("non-main", "agent:main:home", KeyScheme(main_key="home"), False),
        ("non-main", "agent:main:global", KeyScheme(global_scope=True), False),
        ("non-main", "agent:main:telegram:direct:1", KeyScheme(), True),
        ("all", "agent:main:main", KeyScheme(), True),
    ],
)
def test_the_mode_and_the_main_key_decide_whether_a_session_is_sandboxed(
    mode: object, key: str, scheme: KeyScheme, expected: bool
) -> None:
    assert is_sandboxed(parse(key), scheme, mode) is expected  # type: ignore[arg-type]  # parametrised


def test_a_viewer_joins_a_session_and_its_agents_settings() -> None:
    sandbox = SandboxSettings(mode="non-main", session_tools_visibility="spawned")
    tools = AgentToolSettings(sessions=SessionToolSettings(visibility="all"))
    listed = (ListedAgentSettings(id="main", default=True, sandbox=sandbox, tools=tools),)
    config = Config(state_dir=Path("unused"), agents=AgentsSettings(list=listed))
    settings, scheme, talk = agent(config, "main"), KeyScheme(main_key="home"), config.tools.agent_to_agent

    group = Viewer.of(CALLER, scheme, settings, talk)
    main = Viewer.of(parse("agent:main:main"), scheme, settings, talk)

    assert group == Viewer(CALLER, Mode.ALL, is_sandboxed=True, is_clamped=True, talk=talk)
    assert (group.mode, group.hides_existence) == (Mode.TREE, True)
    assert main == Viewer(parse("agent:main:home"), Mode.ALL, talk=talk)


def test_a_decision_cannot_be_taken_for_its_answer() -> None:
    with pytest.raises(TypeError, match="allowed"):
        bool(sees(viewer(Mode.SELF), *CLOSED_AGENT))


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("main", "main", True),
        ("main", "mainly", False),
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("**", "anything", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*b*c*", "abcd", True),
        ("*c*b*", "abcd", False),
        ("a*bc*c", "abcc", True),
        ("a*bc*c", "abc", False),
        ("A*", "abc", True),
        ("a?c", "abc", False),
        ("a.c", "abc", False),
    ],
)
def test_a_star_stands_for_any_characters(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_patterns_match_as_regular_expressions_do(pattern: str, name: str) -> None:
    assert matches(pattern, name) is bool(re.fullmatch(pattern.replace("*", ".*"), name))
