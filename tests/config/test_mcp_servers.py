"""The settings of MCP servers: their shape, what is refused and warned of, and that their secrets are not shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backchannel.config import Surroundings, check_config, config_from
from backchannel.errors import ConfigError
from backchannel.gateway.logs import secrets_of


def errors(**server: Any) -> list[str]:
    try:
        config_from({"mcp": {"servers": {"git": server}}})
    except ConfigError as error:
        return [problem["message"] for problem in error.details["problems"]]
    return []


def test_the_shape_is_the_one_of_every_client_and_variables_are_filled_in() -> None:
    config = config_from(
        {
            "mcp": {
                "servers": {
                    "git": {"command": "uvx", "args": ["mcp-server-git"], "env": {"KEY": "${KEY}"}, "cwd": "."},
                    "far": {"url": "https://far.example/mcp", "headers": {"Authorization": "Bearer ${KEY}"}},
                }
            }
        },
        {"KEY": "k"},
    )
    git, far = config.mcp.servers["git"], config.mcp.servers["far"]
    assert (git.command, git.args, git.env, git.cwd) == ("uvx", ("mcp-server-git",), {"KEY": "k"}, ".")
    assert (far.url, far.headers) == ("https://far.example/mcp", {"Authorization": "Bearer k"})
    assert (git.enabled, git.timeout_seconds, git.trust_annotations, git.effects) == (True, 60, False, {})


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({}, "expected `command` (a program) or `url` (an address); neither is there"),
        ({"command": "x", "url": "http://x"}, "expected `command` (a program) or `url` (an address); both are there"),
        ({"url": "http://x", "args": ["y"]}, "`args`, `env` and `cwd` are for a `command`; a `url` takes `headers`"),
        ({"command": "x", "headers": {"a": "b"}}, "`headers` are for a `url`; a `command` takes `env`"),
        ({"command": "x", "timeoutSeconds": 0}, "got 0, expected a number above 0, at most 600"),
        ({"command": "x", "effects": {"t": "some"}}, 'got \'some\', expected one of "none", "outside"'),
        ({"command": "x", "arguments": []}, "unknown setting; did you mean `args`?"),
    ],
)
def test_a_server_that_is_neither_or_both_is_refused(server: dict[str, Any], said: str) -> None:
    assert errors(**server) == [said]


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    assert errors(command="x", env={"PIN": 123456}) == ["got a number, expected text (put it in quotes)"]
    [address] = errors(url="ftp://user:hunter2@x")
    assert "hunter2" not in address


@pytest.mark.parametrize("name", ["a__b", "b_", "c d", "x" * 33])
def test_a_name_that_tools_cannot_begin_with_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a server's name is letters, digits"):
        config_from({"mcp": {"servers": {name: {"command": "x"}}}})


def test_names_that_differ_in_case_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match="has this name too"):
        config_from({"mcp": {"servers": {"git": {"command": "x"}, "Git": {"command": "x"}}}})


def test_a_check_warns_of_tools_of_servers_that_are_not_there(tmp_path: Path) -> None:
    file = tmp_path / "backchannel.json5"
    allow = ["group:mcp:git", "git__log", "GIT__*", "*", "group:mcp:gti", "other__tool", "plain"]
    file.write_text(json.dumps({"tools": {"allow": allow}, "mcp": {"servers": {"git": {"command": "x"}}}}))
    here = Surroundings(why_not_asked=lambda provider, own: None, tools=(), why_no_sandbox=lambda backend: None)
    found = [finding for finding in check_config(file, {}, state=tmp_path, here=here) if "tools.allow" in finding.path]
    assert [(finding.level, finding.path, finding.message) for finding in found] == [
        ("warning", "tools.allow[4]", "got 'group:mcp:gti', `mcp.servers` has no `gti`; did you mean `git`?"),
        ("warning", "tools.allow[5]", "got 'other__tool', `mcp.servers` has no `other`; configured: git"),
    ]


def test_secrets_of_servers_are_shown_nowhere_and_plain_words_are_not_taken_for_one() -> None:
    servers = {
        "git": {"command": "x", "env": {"GIT_TOKEN": "hunter2", "LOG_LEVEL": "warning", "X": "a" * 40}},
        "far": {"url": "https://far.example/mcp?key=sesame", "headers": {"Authorization": "Bearer open-sesame"}},
    }
    config = config_from({"mcp": {"servers": servers}})
    hidden = secrets_of(config, {})
    assert {"hunter2", "a" * 40, "Bearer open-sesame", "open-sesame", "https://far.example/mcp?key=sesame"} <= set(
        hidden
    )
    assert "warning" not in hidden
    assert not any(word in repr(config) for word in ("hunter2", "sesame", "a" * 40))


def warnings(tmp_path: Path, servers: dict[str, Any], **agent: Any) -> list[str]:
    bin = tmp_path / "bin"
    bin.mkdir(exist_ok=True)
    for name in ("mine", "sh"):
        (bin / name).write_text("#!/bin/sh")
        (bin / name).chmod(0o700)
    settings = {"mcp": {"servers": servers}, "agents": {"list": [{"id": "main", **agent}]}}
    config = config_from(settings, {"PATH": str(bin)}, state=tmp_path / "state")
    return [f"{finding.path}: {finding.message}" for finding in config.warnings]


def test_a_program_that_is_not_installed_is_warned_of_with_what_it_comes_with(tmp_path: Path) -> None:
    commands = ("uvx", "npx", "elsewhere", "/no/such/program", "mine", "./relative", "sh")
    servers = {f"s{at}": {"command": command} for at, command in enumerate(commands)}
    servers["off"] = {"command": "uvx", "enabled": False}  # type: ignore[dict-item]
    start = "no such program is found on PATH, so the server cannot start"
    assert warnings(tmp_path, servers) == [
        f"mcp.servers.s0.command: got 'uvx', {start}; it comes with the package uv",
        f"mcp.servers.s1.command: got 'npx', {start}; it comes with Node.js",
        f"mcp.servers.s2.command: got 'elsewhere', {start}",
        "mcp.servers.s3.command: got '/no/such/program', there is no such program, so the server cannot start",
    ]
    container = {"mode": "all", "backend": "docker", "network": True}
    assert warnings(tmp_path, {"s": {"command": "uvx"}}, sandbox=container, tools={"allow": ["s__*"]}) == []


def test_a_program_that_the_sandbox_of_an_agent_does_not_see_is_warned_of(tmp_path: Path) -> None:
    own = {"command": str(tmp_path / "bin" / "mine")}
    servers = {"mine": {"command": "mine"}, "own": own, "sh": {"command": "sh"}, "unused": {"command": "mine"}}
    allow = {"allow": ["group:mcp:mine", "own__*", "sh__*"]}
    seen = "in the sandbox only /usr and the workspace (as /workspace) are seen, and"
    assert warnings(tmp_path, servers, tools=allow, sandbox={"mode": "all"}) == [
        f"mcp.servers.mine.command: sandboxed sessions of main cannot start it: {seen} `mine` is not there",
        f"mcp.servers.own.command: sandboxed sessions of main cannot start it: {seen} `{own['command']}` is not there",
    ]
    assert warnings(tmp_path, servers, tools=allow) == []


def test_a_program_that_fetches_what_it_runs_is_warned_of_in_a_sandbox_without_network(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    npx = tmp_path / "bin" / "npx"
    npx.write_text("#!/bin/sh")
    npx.chmod(0o700)
    servers, allow = {"files": {"command": "npx"}}, {"allow": ["files__*"]}
    told = "it fetches what it runs, and the sandbox of main has no network (sandbox.network)"
    assert any(told in each for each in warnings(tmp_path, servers, tools=allow, sandbox={"mode": "non-main"}))
    online = {"mode": "non-main", "network": True}
    assert not any(told in each for each in warnings(tmp_path, servers, tools=allow, sandbox=online))
