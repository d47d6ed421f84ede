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
        ("warning", "agents.list[2].model", 4),
        ("warning", "agents.list[3].subagents.model", 5),
    ]
    missing = "the key for openai is missing: set OPENAI_API_KEY"
    assert f"got 'openai/gpt-5-mini', which cannot be asked as things are: {missing}" in str(found)
    assert "set ANTHROPIC_API_KEY, or configure models.providers.anthropic" in str(found)

    keys = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2"}
    assert "no errors, 1 warning." in program.answer("config", "check", **keys)


def told_by_check(program: Program, config: str) -> list[tuple[str, str]]:
    program.write_config(config)
    found = json.loads(program.run("config", "check", "--json").stdout)
    return [(finding["level"], f"{finding['path']}: {finding['message']}") for finding in found["findings"]]


def test_config_check_finds_what_up_would_refuse(program: Program) -> None:
    (store,) = told_by_check(program, '{ database: { url: "mysql://x" } }')
    assert store[0] == "error" and "database.url" in store[1] and "sqlite:///" in store[1]
    (door,) = told_by_check(program, '{ gateway: { host: "0.0.0.0" } }')
    assert door[0] == "error" and "gateway.host" in door[1] and "gateway.auth.token" in door[1]
    (name,) = told_by_check(program, '{ gateway: { host: "gateway.example" } }')
    assert name[0] == "warning" and "gateway.auth.token" in name[1]

    token = 'auth: { token: "0123456789abcdef" }'
    assert told_by_check(program, '{ gateway: { host: "0.0.0.0", ' + token + " } }") == []
    assert told_by_check(program, '{ gateway: { host: "::1" } }') == []


def test_config_check_says_which_provider_and_which_tool_was_meant(program: Program) -> None:
    (model,) = told_by_check(program, '{ agents: { defaults: { model: "antropic/claude" } } }')
    assert model[0] == "warning" and "did you mean `anthropic`?" in model[1]
    found = told_by_check(
        program,
        '{ tools: { deny: ["sesions_send", "my_own_tool", "sesions_*"] },'
        ' agents: { list: [{ id: "main", tools: { allow: ["group:session", "sessions_list"] } }] } }',
    )
    assert [level for level, _ in found] == ["warning", "warning"]
    assert "tools.deny[0]" in found[0][1] and "did you mean `sessions_send`?" in found[0][1]
    assert "agents.list[0].tools.allow[0]" in found[1][1] and "did you mean `group:sessions`?" in found[1][1]


def test_config_check_of_a_file_that_is_not_there(program: Program) -> None:
    assert "the defaults hold" in program.answer("config", "check")

    missing = program.run("--config", "nowhere.json5", "config", "check")
    assert missing.returncode == 1
    assert "nowhere.json5" in missing.stdout


def test_config_path_names_the_file(program: Program) -> None:
    lines = [line.split(maxsplit=1) for line in program.answer("config", "path").splitlines()]
    assert lines == [["file", str(program.config)], ["state", str(program.state)]]
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
