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
        ({"command": "x", "timeoutSeconds": 0}, "got 0, expected a number above 0"),
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
