"""The settings of one agent after all defaults."""

from __future__ import annotations

import pytest

from backchannel.config import DefaultModel, agent, config_from, with_default_model
from backchannel.errors import UnknownAgent


def test_an_agent_that_says_nothing_has_the_careful_defaults() -> None:
    settings = agent(config_from({}), "main")

    assert settings.model == settings.subagent_model == "builtin/demo"
    assert settings.timeout_s == 600
    assert (settings.allow_tools, settings.deny_tools) == (None, ())
    assert settings.visibility == "tree"
    assert (settings.sandbox_mode, settings.sandbox_visibility) == ("off", "spawned")
    assert settings.spawns_under == ()
    assert settings.is_default


def test_what_an_agent_says_wins_over_the_defaults_and_those_over_the_tools() -> None:
    config = config_from(
        {
            "tools": {"allow": ["t"], "sessions": {"visibility": "self"}},
            "agents": {
                "defaults": {
                    "model": "p/default",
                    "instructions": "Be kind.",
                    "thinking": "low",
                    "timeoutSeconds": 5,
                    "sandbox": {"mode": "all", "sessionToolsVisibility": "all"},
                    "subagents": {"allowAgents": ["*"], "model": "p/child"},
                    "tools": {"sessions": {"visibility": "agent"}},
                },
                "list": [
                    {
                        "id": "own",
                        "name": "Own",
                        "model": "p/own",
                        "instructions": "",
                        "thinking": "high",
                        "sandbox": {"mode": "off"},
                        "subagents": {"allowAgents": [], "model": "p/own-child"},
                        "tools": {"allow": [], "sessions": {"visibility": "all"}},
                    },
                    {"id": "plain"},
                ],
            },
        }
    )

    own, plain = agent(config, "own"), agent(config, "plain")

    assert (own.name, own.model, own.instructions, own.thinking) == ("Own", "p/own", "", "high")
    assert (own.sandbox_mode, own.sandbox_visibility) == ("off", "all")
    assert (own.spawns_under, own.subagent_model) == ((), "p/own-child")
    assert (own.allow_tools, own.visibility) == ((), "all")

    assert (plain.name, plain.model, plain.instructions, plain.thinking) == (None, "p/default", "Be kind.", "low")
    assert (plain.sandbox_mode, plain.timeout_s) == ("all", 5)
    assert (plain.spawns_under, plain.subagent_model) == (("*",), "p/child")
    assert (plain.allow_tools, plain.visibility) == (("t",), "agent")


def test_a_tool_denied_for_all_stays_denied() -> None:
    config = config_from(
        {
            "tools": {"deny": ["shell"]},
            "agents": {
                "defaults": {"tools": {"deny": ["web"]}},
                "list": [{"id": "own", "tools": {"deny": ["mail", "shell"]}}, {"id": "plain"}],
            },
        }
    )

    assert agent(config, "own").deny_tools == ("shell", "mail")
    assert agent(config, "plain").deny_tools == ("shell", "web")


def test_the_model_that_was_found_serves_agents_that_name_none() -> None:
    config = config_from({"agents": {"list": [{"id": "a"}, {"id": "b", "model": "p/m"}]}})

    config = with_default_model(config, DefaultModel("ollama/llama", "it answers"))

    assert (agent(config, "a").model, agent(config, "b").model) == ("ollama/llama", "p/m")


def test_an_agent_is_found_however_its_name_is_written() -> None:
    config = config_from({"agents": {"list": [{"id": "research-bot"}]}})

    assert agent(config, "Research Bot").id == "research-bot"
    with pytest.raises(UnknownAgent, match="did you mean research-bot"):
        agent(config, "reserch-bot")
    with pytest.raises(UnknownAgent, match="configured: research-bot"):
        agent(config, "zzz")


def test_a_model_may_have_fallbacks_wherever_it_is_named() -> None:
    context = {"model": {"primary": "p/sums", "fallbacks": ["p/other-sums"]}}
    children = {"model": {"primary": "p/child", "fallbacks": []}}
    usual = {"primary": "p/usual", "fallbacks": ["p/second", "p/third"]}
    own = {"id": "own", "model": "p/own", "subagents": {"model": "p/own-child"}}
    config = config_from(
        {
            "agents": {
                "defaults": {"model": usual, "context": context, "subagents": children},
                "list": [own, {"id": "plain"}],
            }
        }
    )

    plain, other = agent(config, "plain"), agent(config, "own")
    assert plain.row.refs == ("p/usual", "p/second", "p/third")
    assert other.row.refs == ("p/own", "p/second", "p/third")
    assert (plain.subagent_row.refs, other.subagent_row.refs) == (("p/child",), ("p/own-child",))
    assert plain.summary_row is not None and plain.summary_row.refs == ("p/sums", "p/other-sums")
    assert plain.row.led_by("p/third").refs == ("p/third", "p/second"), "a person's choice, and no model twice"
