"""The secrets of settings: which they are, and that they are hidden wherever they turn up."""

from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import field

from backchannel.core.secrets.credentials import MASK
from backchannel.core.secrets.known import KnownSecrets, hide_key, secrets_in, shown_settings
from backchannel.core.settings import HIDDEN, Settings, secret, setting

KEY = "Qx7RtLm2PpZ4vN8s"


class Program(Settings, frozen=True, kw_only=True, tag_field="kind", tag="program"):
    args: tuple[str, ...] = ()
    env: Annotated[dict[str, str], secret("Its environment.")] = field(default_factory=dict)
    url: Annotated[str | None, setting("Where it is.")] = None
    about: str | None = None


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (("--api-key", "abc"), ["--api-key", HIDDEN]),
        (("--pass", "swordfish", "file"), ["--pass", HIDDEN, "file"]),
        (("-p", KEY), ["-p", HIDDEN]),
        (("--key", "swordfish"), ["--key", HIDDEN]),
        (("--token=swordfish", "next"), [f"--token={MASK}", "next"]),
        (("-H", "X-Api-Key: abc123"), ["-H", "X-Api-Key: [redacted]"]),
        (("-p", "8080", "--model", "Llama-3-70B-Instruct"), ["-p", "8080", "--model", "Llama-3-70B-Instruct"]),
        (("--max-tokens", "4096", "mcp-server-git"), ["--max-tokens", "4096", "mcp-server-git"]),
        (("postgres://bob:swordfish@db.example/x",), [f"postgres://bob:{MASK}@db.example/x"]),
    ],
)
def test_an_argument_is_hidden_by_the_flag_before_it_and_by_its_looks(args: tuple[str, ...], shown: list[str]) -> None:
    program = Program(args=args)
    assert shown_settings(program, KnownSecrets(secrets_in(program)))["args"] == shown


def test_what_an_address_says_besides_where_it_leads_is_secret() -> None:
    program = Program(url=f"https://bob:sword%20fish@x.example/hooks/{KEY}?key=sesame&lang=en")
    assert {"sword fish", "sword%20fish", KEY, "sesame"} <= set(secrets_in(program))
    shown = shown_settings(program, KnownSecrets(secrets_in(program)))["url"]
    assert shown == f"https://bob:{MASK}@x.example/hooks/{MASK}?key={MASK}&lang=en"


def test_a_secret_of_one_setting_is_hidden_in_every_other_and_in_any_text() -> None:
    program = Program(
        args=("--token", "swordfish"), env={"DB_PASSWORD": "hunter2x", "MODE": "production"}, about="not swordfish"
    )
    secrets = KnownSecrets(secrets_in(program))
    assert shown_settings(program, secrets) == {
        "kind": "program",
        "args": ["--token", HIDDEN],
        "env": HIDDEN,
        "url": None,
        "about": f"not {MASK}",
    }
    said = "started with --token swordfish and hunter2x in production, password=other1"
    assert secrets.hide(said) == f"started with --token {MASK} and {MASK} in production, password=[redacted]"


def test_a_secret_is_known_as_json_and_addresses_write_it() -> None:
    secrets = KnownSecrets(['se"cret value'])
    assert secrets.mask('{"a": "se\\"cret value"} ?a=se%22cret%20value') == f'{{"a": "{MASK}"}} ?a={MASK}'


def test_what_redaction_finds_in_a_text_of_the_settings_is_known_from_then_on() -> None:
    secrets = KnownSecrets(secrets_in(Program(about="Log in with password=swordfish, then wait.")))
    assert secrets.mask("it typed swordfish") == f"it typed {MASK}"


@pytest.mark.parametrize("key", ["x", "EMPTY", "ollama", "Not-Needed", "sk-no-key-required"])
def test_a_placeholder_for_a_key_is_cut_out_of_no_text(key: str) -> None:
    text = f"context_length_exceeded by {key}, see the max example of Ollama"
    assert KnownSecrets([key]).mask(text) == text
    assert hide_key(text, key) == text


def test_a_key_is_hidden_whole_in_pieces_and_as_providers_echo_it() -> None:
    assert hide_key("you sent sk-test-0123456789, or test-0123", "sk-test-0123456789").count("[redacted]") == 2
    for key in ("sk-test-0123456789", "x"):
        assert hide_key("wrong key sk-t****89", key) == "wrong key [redacted]"
