"""The reference page and the starter file say what the schema says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.build.reference import insert, render_settings

from backchannel.config import agent, check_config, config_from, load_config, starter_config
from backchannel.config.defaults import ANTHROPIC_MODEL, OPENAI_MODEL
from backchannel.config.schema import ConfigFile
from backchannel.config.validation import setting_paths

from .conftest import Write

PAGE = Path(__file__).parents[2] / "docs/reference/configuration.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert insert(page, "settings", render_settings()) == page, "run `make reference`"


def test_every_setting_has_its_row_with_a_meaning() -> None:
    table = render_settings()
    rows = {row.split("`")[1]: row for row in table.splitlines() if row.startswith("| `")}
    headings = set(re.findall(r"^### `(\w+)`$", table, re.MULTILINE))

    assert set(setting_paths(ConfigFile)) == set(rows) | headings
    for path, row in rows.items():
        assert not row.endswith("|  |"), f"{path} has no description"


def test_the_defaults_shown_are_those_that_hold() -> None:
    table, config = render_settings(), config_from({})

    for path, value in {
        "gateway.port": config.gateway.port,
        "gateway.limits.bodyBytes": config.gateway.limits.body_bytes,
        "session.agentToAgent.maxPingPongTurns": config.session.agent_to_agent.max_ping_pong_turns,
        "agents.defaults.timeoutSeconds": config.agents.defaults.timeout_seconds,
        "agents.defaults.subagents.maxChildren": config.agents.defaults.subagents.max_children,
    }.items():
        assert re.search(rf"^\| `{re.escape(path)}` \| [^|]+ \| `{value}` \|", table, re.MULTILINE)


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the marks"):
        insert("# Configuration", "settings", "")


def test_the_page_names_the_models_that_are_chosen() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert f"`{ANTHROPIC_MODEL}`" in page
    assert f"`{OPENAI_MODEL}`" in page


def test_the_examples_of_the_page_load(write: Write, tmp_path: Path) -> None:
    (tmp_path / "researcher.md").write_text("Find out.", encoding="utf-8")
    examples = re.findall(r"```json5\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    assert examples
    for example in examples:
        assert check_config(write(example), {"MY_TOKEN": "a token of some length"}) == []


def test_the_starter_file_has_three_agents_that_may_talk_and_no_findings(write: Write) -> None:
    file = write(starter_config())

    assert check_config(file, {}) == []
    config = load_config(file, {})
    assert [listed.id for listed in config.agents.list] == ["main", "researcher", "writer"]
    assert config.tools.agent_to_agent.enabled
    assert {agent(config, listed.id).visibility for listed in config.agents.list} == {"all"}
    assert ANTHROPIC_MODEL in starter_config()


def test_every_setting_that_the_starter_file_comments_out_is_a_good_one(write: Write) -> None:
    # Commented lines that hold a setting end in a comma; the prose of the others does not.
    text = re.sub(r"^(\s*)// (\w+: .*,)$", r"\1\2", starter_config(), flags=re.MULTILINE)
    assert text.count("//") < starter_config().count("//") - 4

    tokens = {"MY_TOKEN": "a token of some length", "TELEGRAM_TOKEN": f"4242:{'another-token-of-some-length':A<35}"}
    assert check_config(write(text), tokens) == []
