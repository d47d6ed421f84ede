"""`backchannel init` and `backchannel config`: the files of this machine, without a gateway."""

from __future__ import annotations

import json

from backchannel.config import starter_config

from .program import Program


def test_init_writes_the_starter_file_and_says_what_next(program: Program) -> None:
    said = program.answer("init")

    assert program.config.read_text(encoding="utf-8") == starter_config()
    assert program.config.stat().st_mode & 0o777 == 0o600, "a token may be written into it"
    assert str(program.config) in said
    assert said.strip().endswith("up")


def test_init_replaces_a_file_only_when_told_to(program: Program) -> None:
    program.write_config("{ /* mine */ }")

    refused = program.run("init")
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert program.config.read_text() == "{ /* mine */ }"

    program.answer("init", "--force")
    assert program.config.read_text() == starter_config()
    assert [file.name for file in program.state.iterdir()] == ["backchannel.json5"]


def test_up_with_init_leaves_a_file_alone(program: Program) -> None:
    program.write_config('{ agents: { list: [{ id: "mine" }] } }')
    with program.up("--init") as up:
        assert "agents: mine (default)" in up.said


def test_config_check_of_a_good_file_finds_nothing(program: Program) -> None:
    program.answer("init")

    assert "Nothing is wrong." in program.answer("config", "check")
    assert program.json("config", "check") == {"ok": True, "file": str(program.config), "findings": []}


def test_config_check_shows_every_finding_with_its_line(program: Program) -> None:
    program.write_config("{\n  gateway: { prot: 1 },\n  agents: { defaults: { maxConcurrent: 0 } },\n}")

    done = program.run("config", "check")
    assert done.returncode == 1
    assert "gateway.prot" in done.stdout
    assert "agents.defaults.maxConcurrent" in done.stdout
    assert "2 errors, no warnings." in done.stdout

    found = json.loads(program.run("config", "check", "--json").stdout)
    assert not found["ok"]
    assert [finding["line"] for finding in found["findings"]] == [2, 3]


def test_config_check_warns_of_models_whose_provider_has_no_key(program: Program) -> None:
    own = '{ api: "openai", baseUrl: "http://127.0.0.1:1/v1" }'
    program.write_config(
        "{\n  models: { providers: { mistral: " + own + " } },\n"
        '  agents: { defaults: { model: "openai/gpt-5-mini" }, list: [\n'
        '    { id: "a", model: "mistral/small" }, { id: "b", model: "ollama/qwen" }, { id: "c", model: "own/one" },\n'
        '    { id: "d", model: "builtin/demo", subagents: { model: "anthropic/claude" } },\n  ] },\n}'
    )

    found = program.json("config", "check")
    assert found["ok"]
    assert [(finding["level"], finding["path"], finding["line"]) for finding in found["findings"]] == [
        ("warning", "agents.defaults.model", 3),
        ("warning", "agents.list[3].subagents.model", 5),
    ]
    assert "got 'openai/gpt-5-mini', which cannot be asked as things are: set OPENAI_API_KEY" in str(found)
    assert "set ANTHROPIC_API_KEY, or configure models.providers.anthropic" in str(found)

    keys = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2"}
    assert "Nothing is wrong." in program.answer("config", "check", **keys)


def test_config_check_of_a_file_that_is_not_there(program: Program) -> None:
    assert "the defaults hold" in program.answer("config", "check")

    missing = program.run("--config", "nowhere.json5", "config", "check")
    assert missing.returncode == 1
    assert "nowhere.json5" in missing.stdout


def test_config_path_names_the_file(program: Program) -> None:
    assert program.answer("config", "path").split() == ["file", str(program.config), "state", str(program.state)]
    assert program.json("config", "path") == {
        "file": str(program.config),
        "exists": False,
        "state": str(program.state),
    }


def test_config_show_hides_secrets(program: Program) -> None:
    program.write_config('{ gateway: { auth: { token: "not to be seen" }, port: 1234 } }')
    shown = program.answer("config", "show")

    assert "not to be seen" not in shown
    assert json.loads(shown)["gateway"]["port"] == 1234
    assert json.loads(shown)["gateway"]["auth"]["token"] == "<hidden>"
