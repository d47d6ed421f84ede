"""Configurations of older generations: read as they are, with a warning for each older name."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.config import check_config, config_from, load_config
from backchannel.errors import ConfigError
from backchannel.openclaw.migrating import plan_migration
from backchannel.openclaw.settings import ROUTING, modernise
from tests.config.conftest import Write

from .generations import EXAMPLES, Example, plain

PAGE = Path(__file__).parents[2] / "docs/reference/configuration.md"


def told(file: Path, level: str = "warning", **env: str) -> list[tuple[int | None, str]]:
    return [(finding.line, str(finding)) for finding in check_config(file, env) if finding.level == level]


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_each_generation_is_read_as_the_same_settings_of_today(write: Write, example: Example, tmp_path: Path) -> None:
    then = load_config(write(example.then), {}, state=tmp_path)
    now = load_config(write(example.now), {}, state=tmp_path)

    assert plain(then) == plain(now)
    assert any("an older name" in finding.message for finding in then.warnings) is (example.then != example.now)
    assert not any("an older name" in finding.message for finding in now.warnings)


def test_each_older_name_is_a_warning_with_path_line_and_todays_name(write: Write) -> None:
    file = write("""{
        session: { sendPolicy: { rules: [
            { match: { surface: "irc" }, action: "deny" },
            { match: { provider: "irc" }, action: "deny" } ] } },
        agent: {
            sandbox: { mode: "off" },
            subagents: { maxChildren: 3,
                tools: { deny: ["x"] } } },
        routing: {
            agents: { "Research Bot": {} },
            agentToAgent: { enabled: false },
            bindings: [
                { match: { provider: "irc" }, agentId: "research bot" } ] },
    }""")
    rewrites = ": `backchannel config migrate` rewrites it"

    assert told(file)[:-1] == [
        (3, f"session.sendPolicy.rules[0].match.surface: an older name for `{rule(0)}`{rewrites}"),
        (4, f"session.sendPolicy.rules[1].match.provider: an older name for `{rule(1)}`{rewrites}"),
        (5, f"agent: an older name for `agents.defaults`{rewrites}"),
        (8, f"agent.subagents.tools: an older name for `tools.subagents.tools`{rewrites}"),
        (10, f'routing.agents["Research Bot"]: an older name for `agents.list[0]`{rewrites}'),
        (11, f"routing.agentToAgent: an older name for `tools.agentToAgent`{rewrites}"),
        (12, f"routing.bindings: an older name for `bindings`{rewrites}"),
        (13, f"routing.bindings[0].match.provider: an older name for `bindings[0].match.channel`{rewrites}"),
    ]
    assert told(file)[-1][1].endswith("no such channel is configured, so this binding has no effect")
    assert told(file, "error") == []


def rule(index: int) -> str:
    return f"session.sendPolicy.rules[{index}].match.channel"


# Both names


def test_a_value_under_the_new_name_wins_and_the_old_one_is_told_as_ignored(write: Write) -> None:
    file = write("""{
        agent: { model: "old/one", thinking: "low", sandbox: { mode: "off", sessionToolsVisibility: "all" } },
        agents: { defaults: { model: "new/one", sandbox: { sessionToolsVisibility: "spawned" } } },
        routing: { agentToAgent: { enabled: true, allow: ["a"] } },
        tools: { agentToAgent: { allow: ["b"] } },
    }""")

    config = load_config(file, {})

    assert config.agents.defaults.model == "new/one"
    assert config.agents.defaults.thinking == "low"
    assert (config.agents.defaults.sandbox.mode, config.agents.defaults.sandbox.session_tools_visibility) == (
        "off",
        "spawned",
    )
    assert config.tools.agent_to_agent.enabled
    assert config.tools.agent_to_agent.allow == ("b",)
    ignored = [finding.path for finding in config.warnings if "and ignored" in finding.message]
    assert ignored == ["agent.model", "agent.sandbox.sessionToolsVisibility", "routing.agentToAgent.allow"]


@pytest.mark.parametrize(
    ("match", "channel", "ignored"),
    [
        ({"surface": "a", "provider": "b", "channel": "c"}, "c", ["provider", "surface"]),
        ({"surface": "a", "provider": "b"}, "b", ["surface"]),
        ({"surface": "a", "channel": "c"}, "c", ["surface"]),
        ({"surface": "a"}, "a", []),
    ],
)
def test_the_newest_name_of_a_channel_wins(match: dict[str, str], channel: str, ignored: list[str]) -> None:
    config = config_from({"session": {"sendPolicy": {"rules": [{"match": match, "action": "deny"}]}}})

    assert config.session.send_policy.rules[0].match.channel == channel
    told = [warning.path.rpartition(".")[2] for warning in config.warnings if "and ignored" in warning.message]
    assert told == ignored


def test_an_agent_of_both_places_is_one_agent_whose_new_entry_wins_by_field(write: Write) -> None:
    file = write("""{
        agents: { list: [ { id: "ada", model: "new/one", subagents: { model: "new/small" } }, { id: "bob" } ] },
        routing: { agents: {
            Ada: { model: "old/one", name: "Ada", subagents: { model: "old/small", allowAgents: ["bob"] } },
            eve: { name: "Eve" },
        } },
    }""")

    config = load_config(file, {})

    assert [agent.id for agent in config.agents.list] == ["ada", "bob", "eve"]
    ada = config.agents.list[0]
    assert (ada.model, ada.name, ada.subagents.model, ada.subagents.allow_agents) == (
        "new/one",
        "Ada",
        "new/small",
        ("bob",),
    )
    ignored = [finding.path for finding in config.warnings if "and ignored" in finding.message]
    assert ignored == ["routing.agents.Ada.model", "routing.agents.Ada.subagents.model"]


def test_instructions_of_either_form_are_one_setting(write: Write, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("of the file", encoding="utf-8")
    file = write("""{
        agents: { defaults: { instructions: { file: "a.md" } }, list: [ { id: "a", instructions: "new" } ] },
        agent: { instructions: "old" },
        routing: { agents: { a: { instructions: { file: "none.md" } } } },
    }""")

    config = load_config(file, {})

    assert (config.agents.defaults.instructions, config.agents.list[0].instructions) == ("of the file", "new")


def test_the_order_of_agents_is_kept_so_the_first_is_the_default() -> None:
    assert config_from({"routing": {"agents": {"b": {}, "a": {}}}}).default_agent == "b"
    assert config_from({"routing": {"agents": {"b": {}, "a": {"default": True}}}}).default_agent == "a"
    both = {"routing": {"agents": {"b": {}}}, "agents": {"list": [{"id": "c"}]}}
    assert config_from(both).default_agent == "c"


def test_an_id_that_repeats_the_name_is_not_needed_and_another_is_an_error(write: Write) -> None:
    assert told(write("{ routing: { agents: { Ada: { id: 'ada' } } } }"))[0] == (
        1,
        "routing.agents.Ada.id: not needed: the agent stands under its id",
    )
    assert told(write("{ routing: { agents: { Ada: { id: 'bob' } } } }"), "error") == [
        (1, "routing.agents.Ada.id: differs from the name that the agent stands under; keep one")
    ]


@pytest.mark.parametrize("text", ["{ routing: {} }", "{ routing: { agents: {} } }", "{ agent: {} }"])
def test_an_older_group_with_nothing_in_it_is_told_and_means_nothing(write: Write, text: str) -> None:
    [(line, message)] = told(write(text))

    assert line == 1
    assert "an older name" in message
    assert plain(load_config(write(text), {})) == plain(config_from({}))


# What is wrong


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{ routing: 5 }", "routing: got a number, expected an object"),
        ("{ routing: null }", "routing: got null, expected an object"),
        ("{ routing: { agents: [] } }", "routing.agents: got a list, expected an object"),
        ("{ routing: { agents: { a: 'x' } } }", "routing.agents.a: got a text, expected an object"),
        ("{ routing: { agentToAgent: true } }", "routing.agentToAgent: got true, expected an object"),
        ("{ routing: { bindings: {} } }", "routing.bindings: got an object, expected a list of objects"),
        ("{ routing: { agents: { '!': {} } } }", "routing.agents[\"!\"]: got '!', expected letters, digits, "),
        ("{ routing: { agents: { a: {}, A: {} } } }", "routing.agents.A: got 'A', routing.agents.a has this id too"),
        ("{ routing: { defaultAgentId: 'a' } }", "routing.defaultAgentId: unknown setting; today the agent's entry in"),
        ("{ routing: { agent: {} } }", "routing.agent: unknown setting; did you mean `agents`?"),
        ("{ routing: { queue: {} } }", "routing.queue: unknown setting; of the older group `routing` these are read: "),
        ("{ agent: [] }", "agent: got a list, expected an object"),
        ("{ agent: { subagents: 5 } }", "agent.subagents: got 5, expected an object"),
        (
            "{ agent: { subagents: 5 }, agents: { defaults: { subagents: {} } } }",
            "agent.subagents: got a number, expected an object",
        ),
        ("{ agent: { subagents: { tools: [] } } }", "agent.subagents.tools: got a list, expected an object"),
        ("{ agent: { sandbox: { mode: 'onn' } } }", "agent.sandbox.mode: got 'onn', expected one of"),
        ("{ agent: { heartbeat: {} } }", "agent.heartbeat: unknown setting; known here:"),
        ("{ agent: { modle: 'a/b' } }", "agent.modle: unknown setting; did you mean `model`?"),
        ("{ agent: {}, agents: 5 }", "agents: got 5, expected an object"),
        ("{ agent: {}, agents: 5 }", "agent: cannot be put into `agents`, which is no object"),
        (
            "{ routing: { agents: { a: {} } }, agents: { list: {} } }",
            "routing.agents: cannot be put into `agents.list`",
        ),
        ("{ routing: { agents: { a: {} } }, agents: 'x' }", "agents: got 'x', expected an object"),
        (
            "{ session: { sendPolicy: { rules: [{ match: { surface: 5 }, action: 'deny' }] } } }",
            "session.sendPolicy.rules[0].match.surface: got 5, expected text (put it in quotes)",
        ),
        (
            "{ bindings: [{ match: { provider: '' }, agentId: 'main' }] }",
            "bindings[0].match.provider: got '', expected",
        ),
        (
            "{ session: { sendPolicy: { rules: [{ match: 'surface' }] } } }",
            "rules[0].match: got 'surface', expected an",
        ),
        (
            "{ routing: { agents: { a: { default: true }, b: { default: true } } } }",
            "routing.agents.b.default: routing.agents.a is the default too, and only one agent can be",
        ),
    ],
)
def test_what_is_wrong_is_told_by_the_path_in_the_file(write: Write, text: str, error: str) -> None:
    errors = [message for _, message in told(write(text), "error")]

    assert any(error in message for message in errors), errors


def test_an_error_has_the_line_of_the_older_name(write: Write) -> None:
    file = write("""{
        agents: { list: [ { id: "ada" } ] },
        agent: {
            subagents: {
                maxChildren: -1 } },
        routing: { agents: {
            ada: {
                model: "no-slash" },
            bob: {
                name: "${NOBODY}",
                instructions: { file: "none.md" } } } },
    }""")

    assert [line for line, _ in told(file, "error")] == [5, 10]
    file.write_text(file.read_text().replace("-1", "1"))
    assert told(file, "error", NOBODY="x")[0] == (
        8,
        "routing.agents.ada.model: got 'no-slash', expected `provider/model`, such as `openai/gpt-5-mini`",
    )
    file.write_text(file.read_text().replace("no-slash", "a/b"))
    [(line, message)] = told(file, "error", NOBODY="x")
    assert line == 11
    assert message.startswith("routing.agents.bob.instructions.file: got 'none.md', the file cannot be read")


def test_what_a_variable_holds_is_not_shown_in_an_error_about_an_older_name(write: Write) -> None:
    file = write("{ agent: { sandbox: { mode: '${X}' } }, routing: { agents: { a: { model: '${X}' } } } }")

    errors = told(file, "error", X="hush")

    assert errors
    assert "hush" not in repr(errors)


def test_a_name_with_a_dollar_sign_is_a_name_and_no_variable(write: Write) -> None:
    file = write("{ routing: { agents: { '${HOME}': {} } } }")

    assert [agent.id for agent in load_config(file, {"HOME": "nowhere"}).agents.list] == ["home"]


def test_many_older_names_are_told_in_short_and_hide_no_error(write: Write) -> None:
    rules = ",\n".join("{ match: { surface: 'x' }, action: 'deny' }" for _ in range(300))
    file = write("{ session: { sendPolicy: { rules: [" + rules + "] } } }")

    warnings = told(file)
    assert len(warnings) == 101
    assert warnings[-1] == (None, "and 200 more older names")

    file.write_text(file.read_text().removesuffix("}") + ",\n gateway: { port: 'high' } }")
    [(line, message)] = told(file, "error")
    assert line == 301
    assert message.startswith("gateway.port: got 'high'")


def test_a_mapping_of_a_program_may_have_older_names_too() -> None:
    config = config_from({"agent": {"timeoutSeconds": 5}})

    assert config.agents.defaults.timeout_seconds == 5
    assert [(warning.path, warning.line) for warning in config.warnings] == [("agent", None)]


def test_what_was_given_is_not_changed() -> None:
    raw: dict[str, Any] = {
        "agent": {"subagents": {"tools": {}}},
        "routing": {"agents": {"a": {"id": "a"}}},
        "bindings": [{"match": {"surface": "x"}, "agentId": "a"}],
    }
    before = json.dumps(raw)

    modernise(raw)

    assert json.dumps(raw) == before


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1) | st.sampled_from(["", "a", "${A}"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "agents",
                    "agentToAgent",
                    "bindings",
                    "defaults",
                    "list",
                    "subagents",
                    "tools",
                    "match",
                    "surface",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["agent", "agents", "routing", "tools", "bindings"]), anything, min_size=1))
def test_whatever_stands_in_an_older_place_is_read_or_refused_and_never_lost(raw: dict[str, Any]) -> None:
    modern = modernise(raw)

    assert not {"agent", "routing"} & set(modern.raw)
    roots = {str(path[0]) for path in [move.old for move in modern.moves] + [issue.path for issue in modern.errors]}
    assert {name for name in ("agent", "routing") if name in raw} <= roots
    with TemporaryDirectory() as folder:
        file = Path(folder, "c.json5")
        file.write_text(json.dumps(raw), encoding="utf-8")
        has_errors = any(finding.level == "error" for finding in check_config(file, {"A": "x"}))
        try:
            plan_migration(file)
        except ConfigError:
            assert has_errors


def test_the_reference_names_every_older_name() -> None:
    page = PAGE.read_text(encoding="utf-8")

    for name in ("match.surface", "match.provider", "agent.…", "agent.subagents.tools", *ROUTING):
        assert f"{name}`" in page or f"routing.{name}" in page, f"{PAGE.name}: add `{name}`"


def test_pairing_is_read_as_the_older_policy_says(write: Write, tmp_path: Path) -> None:
    file = write("""{ channels: { telegram: {
        adapter: "telegram", token: "4242:a-token-of-the-tests-AAAAAAAAAAAAAAAAAAA",
        dmPolicy: "pairing" } } }""")

    assert load_config(file, {}, state=tmp_path).channels["telegram"].pairing
    older = "channels.telegram.dmPolicy: an older name for `channels.telegram.pairing`"
    assert (3, f"{older}: `backchannel config migrate` rewrites it") in told(file)
