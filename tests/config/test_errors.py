"""The errors of a wrong configuration."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.config import check_config, load_config, starter_config
from backchannel.errors import ConfigError
from tests.support.privileges import folder_of_somebody

from .conftest import Write


def problems(file: Path, **env: str) -> list[tuple[int | None, str]]:
    return [(finding.line, str(finding)) for finding in check_config(file, env)]


def test_an_unknown_setting_is_told_with_file_line_path_and_nearest_name(write: Write) -> None:
    file = write('{\n  agents: {\n    list: [\n      { id: "a" },\n      { id: "b", modle: "x/y" },\n    ],\n  },\n}')

    with pytest.raises(ConfigError) as caught:
        load_config(file, {})

    assert caught.value.message == f"{file}, line 5: agents.list[1].modle: unknown setting; did you mean `model`?"
    assert caught.value.details["path"] == "agents.list[1].modle"
    assert caught.value.details["line"] == 5


def test_all_problems_are_told_at_once_in_the_order_of_the_file(write: Write) -> None:
    file = write("""{
        gatway: {},
        agents: { defaults: { timeoutSeconds: 0,
            maxConcurrent: "4" },
            list: [ {} ] },
        session: { dmScope: "perpeer" },
        tools: { sessions: "all" },
    }""")

    assert problems(file) == [
        (2, "gatway: unknown setting; did you mean `gateway`?"),
        (3, "agents.defaults.timeoutSeconds: got 0, expected a number above 0"),
        (
            4,
            "agents.defaults.maxConcurrent: got '4', expected a whole number from 1 to 100000"
            " (write it without quotes)",
        ),
        (5, "agents.list[0]: `id` is missing: text, not empty"),
        (
            6,
            'session.dmScope: got \'perpeer\', expected one of "main", "per-peer", "per-channel-peer", '
            '"per-account-channel-peer"; did you mean `per-peer`?',
        ),
        (7, "tools.sessions: got 'all', expected an object"),
    ]


def test_a_setting_in_the_wrong_place_is_told_what_is_known_there_and_no_other_meaning(write: Write) -> None:
    [(line, message)] = problems(
        write(
            "{ channels: { telegram: { adapter: 'bridge', token: 'x', url: 'https://a.example',"
            " secret: 'long enough for a secret' } } }"
        )
    )

    assert line == 1
    assert message.startswith("channels.telegram.token: unknown setting; known here: ")
    assert "gateway" not in message


def test_a_word_like_no_other_is_told_what_is_known(write: Write) -> None:
    [(_, message)] = problems(write("{ gateway: { zzz: 1 } }"))

    assert message == (
        "gateway.zzz: unknown setting; known here: allowedHosts, allowedOrigins, auth, controlUi, host, http, limits, "
        "port, trustedProxies"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{ session: { agentToAgent: { maxPingPongTurns: 6 } } }", "got 6, expected a whole number from 0 to 5"),
        ("{ session: { agentToAgent: { maxHops: NaN } } }", "got NaN, expected a whole number"),
        ("{ agents: { defaults: { timeoutSeconds: Infinity } } }", "got Infinity, expected a number"),
        ("{ agents: { defaults: { timeoutSeconds: 1e999 } } }", "this is not JSON5"),
        ("{ gateway: { port: 70000 } }", "got 70000, expected a whole number from 0 to 65535"),
        ("{ gateway: { port: true } }", "got true, expected a whole number"),
        ("{ gateway: null }", "got null, expected an object"),
        ("{ agents: { list: {} } }", "got an object, expected a list of objects"),
        ("{ session: { mainKey: 'a b' } }", "got 'a b', expected text of at most 64 characters"),
        ("{ agents: { list: [ { id: 'a', instructions: 5 } ] } }", "got 5, expected text, or an object"),
        (
            "{ channels: { c: { adapter: 'bridge', url: 'http://c', secret: '1234567890123456', owners: [5] } } }",
            "channels.c.owners[0]: got 5, expected text (put it in quotes)",
        ),
        (
            "{ channels: { c: { adapter: 'telegram', token: 't', apiRoot: 'api.example' } } }",
            "got 'api.example', expected text (The address of the Bot API, `https://…` or `http://…`",
        ),
        ("{ channels: { c: { adapter: 'brigde' } } }", 'expected one of "bridge", "telegram"; did you mean `bridge`?'),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_what_would(write: Write, text: str, told: str) -> None:
    assert any(told in message for _, message in problems(write(text))), problems(write(text))


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("", None, "the file is empty"),
        ("  // only a comment\n", 2, "there are no settings here"),
        ("[1]", None, "the file holds a list, expected an object"),
        ("'x'", None, "the file holds a text"),
        ("{ agents: {\n list: [\n", 3, "the file ends before the '[' of line 2 is closed"),
        ("{\n  gateway: { port: 1 }\n  session: {} }", 3, "column 3: expected ',' or '}', found 's'"),
        ("{ gateway {} }", 1, "column 11: expected ':' after 'gateway', found '{'"),
        ("{ a: bare }", 1, "column 6: expected a value, found a bare word (text needs quotes)"),
        ("{ a: 'open }\n}", 1, "column 6: this text in quotes is not closed on its line"),
        ("{ a: 1 } }", 1, "column 10: unexpected '}' after the end"),
        ("{ /* open }", 1, "column 3: this comment is not closed"),
        ("{ a: }", 1, "column 6: expected a value, found '}'"),
        ('{ a: "\\u00zz" }', 1, "this is not JSON5"),
        ("[" * 5000, 1, "nested more than 64 deep"),
        ("{ a: 1,\n a: 2,\n 'a': 3 }", 3, "a: this setting is given twice"),
    ],
)
def test_a_broken_file_is_told_with_line_and_column(write: Write, text: str, line: int | None, told: str) -> None:
    found = problems(write(text))

    assert found[0][0] == line
    assert told in found[0][1]


def test_a_syntax_error_shows_the_line_with_a_mark(write: Write) -> None:
    [(_, message)] = problems(write("{\n  agents: {},\n  gateway = {},\n}"))

    assert message.splitlines()[1:] == ["      gateway = {},", "              ^"]


def test_files_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "c.json5"
    assert "there is no such file" in problems(file)[0][1]

    file.write_bytes(b"{\n a: '\xff' }")
    assert problems(file) == [(2, "the file is not UTF-8 text (byte 0xff in line 2)")]

    file.write_bytes(b"{}" + b" " * (4 * 1024 * 1024))
    assert problems(file) == [(None, "the file is larger than 4 MiB")]

    file.write_bytes(b"\xef\xbb\xbf{}\r\n")
    assert problems(file) == []

    assert problems(tmp_path) == [(None, "this is a folder, expected a JSON5 file")]


def test_a_file_without_permission_is_told() -> None:
    with folder_of_somebody() as folder:
        file = folder / "c.json5"
        file.write_text("{}")
        file.chmod(0)

        assert problems(file) == [(None, "the file cannot be read: Permission denied")]


def test_a_missing_variable_is_named_with_its_path_and_told_once(write: Write) -> None:
    file = write('{ gateway: {\n auth: { token: "${NO_SUCH}" } }, session: { mainKey: "${not a name}" } }')

    assert problems(file) == [
        (
            2,
            "gateway.auth.token: the environment variable NO_SUCH is not set (set it, or write `$${` for a plain `${`)",
        ),
        (
            2,
            "session.mainKey: `${…}` must hold the name of an environment variable (write `$${` for a plain `${`)",
        ),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{ channels: { c: { adapter: 'bridge', url: 'http://c', secret: 'hush' } } }",
        "{ channels: { c: { adapter: 'bridge', url: 'http://c', secret: ['hush'] } } }",
        "{ channels: { c: { adapter: 'bridge', url: 'http://c', secret: '${SHORT}' } } }",
        "{ database: { url: 'mysql://me:hush@db' } }",
        "{ gateway: { auth: { token: { value: 'hush' } } } }",
        "{ gateway: { auth: { token: 'hush, long enough' } }, hooks: { token: 'hush, long enough' } }",
        "{ gateway: { auth: { token: hush } } }",
        "{ gateway: { auth: { 'token':\n hush } } }",
        "{ gateway: { auth: { token: 'hush' x",
        "{ gateway: { port: '${SHORT}' } }",
        "{ session: { dmScope: '${LONG}' } }",
        "{ agents: { list: [ { id: 'a', model: '${LONG}' } ] } }",
        "{ agents: { list: [ { id: '${LONG}' }, { id: '${LONG}' } ] } }",
        "{ bindings: [ { match: { channel: '${LONG}' }, agentId: '${LONG}' } ] }",
        "{ cron: { jobs: [ { id: 'x', schedule: '${LONG}', tz: '${LONG}', message: 'm' } ] } }",
        "{ agents: { list: [ { id: 'x', instructions: { file: '${LONG}' } } ] } }",
    ],
)
def test_no_secret_is_ever_in_an_error(write: Write, text: str) -> None:
    found = problems(write(text), SHORT="hush", LONG="hush-" * 30)

    assert found
    assert "hush" not in repr(found)


def test_an_override_that_is_wrong_is_told_with_its_variable(write: Write) -> None:
    file = write('{ database: { url: "sqlite:///x" } }')

    [(line, message)] = problems(file, BACKCHANNEL_DATABASE_URL="oracle://x")

    assert line is None
    assert message.startswith("database.url: got a text of 10 characters, expected text")
    assert message.endswith("(from BACKCHANNEL_DATABASE_URL)")


def test_the_error_is_fit_for_the_wire(write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("{ a: 1, b: 2 }"), {})

    details = caught.value.wire()["details"]
    assert details["code"] == "config"
    assert [problem["path"] for problem in details["problems"]] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "{" + ",\n".join(f"a{n}:1" for n in range(50_000)) + "}",
        "{" + "a:1,\n" * 50_000 + "}",
        "{ session: { identityLinks: { a: [" + '"${A}",' * 50_000 + "] } } }",
        "{ " + "a" * 1_000_000 + ": 1 }",
        "{ gateway: { host: " + "5" * 1_000_000 + " } }",
        "{ gateway: { port: '" + "x" * 1_000_000 + "' } }",
    ],
    ids=["unknown", "repeated", "unset", "long name", "long number", "long text"],
)
@pytest.mark.timeout(20)
def test_a_file_that_is_wrong_throughout_gets_a_short_answer(write: Write, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(text), {})

    assert len(caught.value.message) < 30_000
    assert len(caught.value.details["problems"]) <= 100


def test_a_half_written_file_is_always_an_error_with_a_line(write: Write) -> None:
    text = starter_config()
    end = text.rindex("}")

    for length in range(text.index("{") + 1, end, 7):
        [finding] = check_config(write(text[:length]), {})
        assert finding.level == "error"
        assert finding.line == text[:length].count("\n") + 1


@given(
    st.integers(0, len(starter_config()) - 1), st.sampled_from(["", "}", "]", '"', "'", ":", "\\", "0", "\x00", "é"])
)
def test_no_slip_of_the_pen_is_more_than_an_error(at: int, typed: str) -> None:
    text = starter_config()
    with TemporaryDirectory() as folder:
        file = Path(folder, "c.json5")
        file.write_text(text[:at] + typed + text[at + 1 :], encoding="utf-8")
        assert all(finding.level in ("error", "warning") for finding in check_config(file, {}))
