"""A configuration file, loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backchannel.config import config_from, load_config, locate
from backchannel.config.schema_agents import ListedAgentSettings
from backchannel.core.keys import DmScope
from backchannel.errors import ConfigError

from .conftest import Write


def test_without_a_file_there_is_one_agent_on_loopback(tmp_path: Path) -> None:
    config = load_config(None, {}, state=tmp_path)

    assert [agent.id for agent in config.agents.list] == ["main"]
    assert config.default_agent == "main"
    assert (config.gateway.host, config.gateway.port) == ("127.0.0.1", 18790)
    assert config.database_url == f"sqlite:///{tmp_path}/backchannel.db"
    assert config.writes_transcript_files
    assert config.file is None


def test_json5_with_comments_and_trailing_commas_is_read(write: Write) -> None:
    file = write("""
        // a comment
        { agents: { list: [ { id: 'a', }, ], }, /* another */ "session": { dmScope: "per-peer", mainKey: "Home" } }
    """)

    config = load_config(file, {})

    assert config.agents.list[0].id == "a"
    assert config.session.dm_scope is DmScope.PER_PEER
    assert str(config.key_scheme.main("a")) == "agent:a:home"
    assert config.file == file


def test_the_file_in_the_state_folder_is_found(write: Write) -> None:
    file = write("{ gateway: { port: 1 } }")

    assert load_config(None, {"BACKCHANNEL_STATE_DIR": str(file.parent)}).gateway.port == 1
    assert load_config(None, {"BACKCHANNEL_CONFIG": str(file)}).gateway.port == 1


def test_what_is_given_wins_over_the_environment_and_that_over_the_home_folder(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path / "home")}
    usual = locate(None, None, env)
    assert usual == (tmp_path / "home/.backchannel", tmp_path / "home/.backchannel/backchannel.json5", False)

    env |= {"BACKCHANNEL_STATE_DIR": "~/state", "BACKCHANNEL_CONFIG": str(tmp_path / "c.json5")}
    assert locate(None, None, env) == (tmp_path / "home/state", tmp_path / "c.json5", True)

    given = locate(tmp_path / "s", tmp_path / "d.json5", env)
    assert given == (tmp_path / "s", tmp_path / "d.json5", True)


def test_environment_and_arguments_override_the_file(write: Write) -> None:
    file = write('{ gateway: { port: 1, auth: { token: "of the file, long" } }, database: { url: "sqlite:///a" } }')
    env = {"BACKCHANNEL_TOKEN": "of the environment", "BACKCHANNEL_DATABASE_URL": "postgresql://db/x"}

    config = load_config(file, env, host="::1", port=0)

    assert config.gateway.auth.token == "of the environment"
    assert config.database_url == "postgresql://db/x"
    assert not config.writes_transcript_files
    assert (config.gateway.host, config.gateway.port) == ("::1", 0)


def test_a_variable_that_is_not_set_is_not_missed_where_the_setting_is_overridden(write: Write) -> None:
    file = write('{ gateway: { auth: { token: "${NO_SUCH}" } } }')

    assert load_config(file, {"BACKCHANNEL_TOKEN": "a token, long enough"}).gateway.auth.token == "a token, long enough"


def test_an_empty_variable_overrides_nothing(write: Write) -> None:
    file = write('{ gateway: { auth: { token: "of the file, long" } } }')

    assert load_config(file, {"BACKCHANNEL_TOKEN": ""}).gateway.auth.token == "of the file, long"


def test_variables_are_substituted_in_texts_and_can_be_escaped(write: Write) -> None:
    file = write('{ agents: { list: [ { id: "a", name: "${WHO} and $${WHO}, $5", model: "${P}/${M}" } ] } }')

    agent = load_config(file, {"WHO": "Ada", "P": "openai", "M": "gpt-5"}).agents.list[0]

    assert agent.name == "Ada and ${WHO}, $5"
    assert agent.model == "openai/gpt-5"


def test_what_a_variable_holds_is_not_substituted_again(write: Write) -> None:
    file = write('{ agents: { list: [ { id: "a", name: "${A}" } ] } }')

    assert load_config(file, {"A": "${B}"}).agents.list[0].name == "${B}"


def test_agent_ids_have_one_spelling_everywhere(write: Write) -> None:
    file = write("""{
        agents: { list: [
            { id: "Main" }, { id: "Research Bot", default: true, subagents: { allowAgents: ["MAIN"] } },
        ] },
        bindings: [ { match: { channel: "x" }, agentId: "Research Bot" } ],
        cron: { jobs: [ { id: "j", schedule: "every 10m", message: "hi", agentId: "MAIN" } ] },
    }""")

    config = load_config(file, {})

    assert [agent.id for agent in config.agents.list] == ["main", "research-bot"]
    assert config.default_agent == "research-bot"
    assert config.agents.list[1].subagents.allow_agents == ("main",)
    assert config.bindings[0].agent_id == "research-bot"
    assert config.cron.jobs[0].agent_id == "main"


def test_the_first_agent_is_the_default_when_none_says_so(write: Write) -> None:
    config = load_config(write('{ agents: { list: [ { id: "b" }, { id: "a" } ] } }'), {})

    assert [(agent.id, agent.default) for agent in config.agents.list] == [("b", True), ("a", False)]


def test_instructions_are_text_or_a_file_beside_the_configuration(write: Write, tmp_path: Path) -> None:
    (tmp_path / "writer.md").write_text("Write well. ${NOT} substituted.", encoding="utf-8")
    file = write("""{ agents: {
        defaults: { instructions: "Be kind." },
        list: [ { id: "a", instructions: { file: "writer.md" } }, { id: "b" } ],
    } }""")

    config = load_config(file, {})

    assert config.agents.list[0].instructions == "Write well. ${NOT} substituted."
    assert config.agents.defaults.instructions == "Be kind."


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read"), (b"\xff\xfe", "not UTF-8"), (b"x" * (1024**2 + 1), "larger than 1 MiB")],
)
def test_instructions_that_cannot_be_read_are_an_error_with_the_place(
    write: Write, tmp_path: Path, content: bytes | None, told: str
) -> None:
    if content is not None:
        (tmp_path / "a.md").write_bytes(content)
    file = write('{ agents: { list: [\n{ id: "a",\ninstructions: { file: "a.md" } } ] } }')

    with pytest.raises(ConfigError, match=rf"line 3: agents.list\[0\].instructions.file: got 'a.md', .*{told}"):
        load_config(file, {})


def test_a_mapping_is_checked_like_a_file(tmp_path: Path) -> None:
    config = config_from({"agents": {"list": ({"id": "a"},)}, "gateway": {"port": 0}}, state=tmp_path)
    assert config.agents.list == (ListedAgentSettings(id="a", default=True),)
    assert config.state_dir == tmp_path

    with pytest.raises(ConfigError) as caught:
        config_from({"agents": {"list": [{"id": "a"}, {"id": "b", "modle": "x/y"}]}})
    assert caught.value.message == "agents.list[1].modle: unknown setting; did you mean `model`?"
    assert caught.value.details["line"] is None


@pytest.mark.parametrize("odd", ["\ud800", float("nan"), 10**5000, object(), b"bytes", {1: {2: 3}}, [[]]], ids=type)
def test_whatever_a_mapping_holds_is_refused_with_a_clear_error(odd: object) -> None:
    for mapping in (
        {"session": {"mainKey": odd}},
        {"gateway": {"port": odd}},
        {"database": {"url": odd}},
        {"agents": {"list": [odd]}},
        {"channels": odd if isinstance(odd, dict) else {"c": odd}},
        {"nothing": odd},
    ):
        with pytest.raises(ConfigError):
            config_from(mapping)


def test_a_mapping_may_name_agents_that_the_program_registers() -> None:
    mapping = {"cron": {"jobs": [{"id": "j", "schedule": "every 1h", "message": "hi", "agentId": "mine"}]}}

    assert config_from(mapping, registered=["Mine"]).cron.jobs[0].agent_id == "mine"
    with pytest.raises(ConfigError, match="no agent has this id"):
        config_from(mapping)


def test_no_secret_shows_when_a_configuration_is_printed(write: Write) -> None:
    file = write("""{
        gateway: { auth: { token: "hush-gateway-token" } }, hooks: { token: "hush-hooks-token-1" },
        database: { url: "postgresql://me:hush-password@db/x" },
        models: { providers: { p: { api: "openai", baseUrl: "http://p", apiKey: "hush-key" } } },
        channels: { c: { adapter: "bridge", url: "http://c", secret: "hush-channel-secret", owners: ["1"] } },
    }""")

    config = load_config(file, {})

    assert config.gateway.auth.token == "hush-gateway-token"
    assert "hush" not in repr(config)
    assert "hush" not in str(config)
    assert "hush" not in repr(config.gateway.auth.__rich_repr__())


def test_a_loaded_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config = load_config(None, {}, state=tmp_path)

    with pytest.raises(AttributeError):
        config.gateway.port = 1  # type: ignore[misc]  # that is what is tested


def test_importing_the_configuration_loads_nothing_heavy() -> None:
    code = "import sys, backchannel.config; print([m for m in ('pydantic_ai', 'httpx', 'rich') if m in sys.modules])"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[]"
