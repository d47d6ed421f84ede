"""Redaction and cutting: what is hidden, what is left alone, and that neither takes long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.core.excerpts import TEXT_LIMIT, condense, present, present_line, read_piece, reading_text
from backchannel.core.messages import (
    Block,
    ImageBlock,
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    decode_message,
    encode_message,
)
from backchannel.core.secrets.credentials import REDACTED, is_secret_name
from backchannel.core.secrets.redaction import (
    MAX_DEPTH,
    TOO_DEEP,
    redact,
    redact_message,
    redact_opening,
    redact_value,
    redact_value_opening,
)
from tests.support.timing import grows_linearly, is_at_most

# Made up, and put together here: none of them stands in this file as a scanner of repositories would find it.
MIXED = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0dF3hJ6kL9nP2rS5uV8xY1zA4cE7gI0kM3oQ6sU9wX2"
HEX = "0123456789abcdef" * 4
PEM = "-----BEGIN {0}PRIVATE KEY-----\n" + "\n".join([MIXED[:64]] * 4) + "\n-----END {0}PRIVATE KEY-----"
JWT = f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{MIXED[:43]}"
GITHUB = "ghp_" + MIXED[:36]

KEYS = {
    "AWS access key id": "AKIA" + "IOSFODNN7EXAMPLE",
    "AWS access key id of letters": "ASIA" + "IOSFODNNXEXAMPLE",
    "Google API key": "AIza" + MIXED[:35],
    "Google OAuth token": "ya29." + MIXED,
    "Azure client secret": "abc8Q~" + MIXED[:34],
    "GitHub token": GITHUB,
    "GitHub OAuth token": "gho_" + MIXED[:36],
    "GitHub user token": "ghu_" + MIXED[:36],
    "GitHub server token": "ghs_" + MIXED[:36],
    "GitHub fine-grained token": "github_pat_" + MIXED[:22] + "_" + MIXED[:59],
    "GitLab token": "glpat-" + MIXED[:20],
    "Bitbucket app password": "ATBB" + MIXED[:32],
    "Slack bot token": "xoxb-" + "123456789012-1234567890123-" + MIXED[:24],
    "Slack app token": "xapp-" + "1-A0123-4567-" + HEX[:64],
    "Discord bot token": "MTE5ODYyMjQ4MzQ3MTkyNTI0OA" + ".G9kmXs." + MIXED[:38],
    "Telegram bot token": "123456789:" + "AAF" + MIXED[:32],
    "OpenAI key": "sk-" + MIXED[:48],
    "OpenAI project key": "sk-proj-" + MIXED[:60],
    "Anthropic key": "sk-ant-api03-" + MIXED + "-AA",
    "OpenRouter key": "sk-or-v1-" + HEX,
    "Groq key": "gsk_" + MIXED[:52],
    "Hugging Face token": "hf_" + MIXED[:34],
    "npm token": "npm_" + MIXED[:36],
    "PyPI token": "pypi-" + "AgEIcHlwaS5vcmc" + MIXED[:60],
    "Stripe key": "sk_live_" + MIXED[:24],
    "Twilio key": "SK" + HEX[:32],
    "SendGrid key": "SG." + MIXED[:22] + "." + MIXED[:43],
    "our own token": "bc_" + MIXED[:43],
    "JWT": JWT,
    "PEM block": PEM.format(""),
    "PEM block of a kind": PEM.format("RSA "),
    "PEM block, escaped": PEM.format("EC ").replace("\n", "\\n"),
}


@pytest.mark.parametrize("secret", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("around", ["{}", "use {} now", "({}),", '{{"x": "{}"}}', "a\\n{}\\nb", "x={}&y=1", "`{}`"])
def test_a_key_is_hidden_wherever_it_stands(secret: str, around: str) -> None:
    shown, hidden = redact(around.format(secret))
    assert hidden
    assert REDACTED in shown
    for start in range(0, len(secret) - 12, 6):
        if not secret[start : start + 12].startswith("-----"):
            assert secret[start : start + 12] not in shown


PAIRS = [
    ("DB_PASSWORD=hunter2\nNEXT=1", "DB_PASSWORD=[redacted]\nNEXT=1"),
    ("export API_KEY='abc def'", "export API_KEY='[redacted]'"),
    ('{"password":"hun\\"ter2","user":"bob"}', '{"password":"[redacted]","user":"bob"}'),
    ('{\\"api_key\\": \\"abc\\", \\"x\\": 1}', '{\\"api_key\\": \\"[redacted]\\", \\"x\\": 1}'),
    ('{"pin": 1, "password": 12345}', '{"pin": 1, "password": [redacted]}'),
    ("db:\n  password: swordfish\n  user: bob", "db:\n  password: [redacted]\n  user: bob"),
    ("- clientSecret: swordfish # old", "- clientSecret: [redacted] # old"),
    ("https://x/y?access_token=abcdef&user=bob", "https://x/y?access_token=[redacted]&user=bob"),
    ("redirect%3Ftoken%3Dabcdef1", "redirect%3Ftoken%3D[redacted]"),
    ("connect(passwd='abc', port=1)", "connect(passwd='[redacted]', port=1)"),
    ("aws_secret_access_key = wJalr/K7MDENG+bPx", "aws_secret_access_key = [redacted]"),
    ("AWS Secret Access Key: wJalr/K7MDENG+bPx is mine", "AWS Secret Access Key: [redacted] is mine"),
    (f"AccountName=a;AccountKey={MIXED}==;EndpointSuffix=b", "AccountName=a;AccountKey=[redacted];EndpointSuffix=b"),
    (f"https://a/b?sv=2022&sig={MIXED[:40]}%3D&sp=r", "https://a/b?sv=2022&sig=[redacted]&sp=r"),
    ("Server=x;Password=a,b&c;Database=y", "Server=x;Password=[redacted];Database=y"),
    ("my password: hunter2, thanks", "my password: [redacted], thanks"),
    ("**Password:** hunter2", "**Password:** [redacted]"),
    ("Password: `hunter2`", "Password: `[redacted]`"),
    ("X-Api-Key: 12345abc", "X-Api-Key: [redacted]"),
    ("mysql --password hunter2 db", "mysql --password [redacted] db"),
    ("Log in with the password hunter2x, then wait.", "Log in with the password [redacted], then wait."),
    ('the passphrase is "tr0ub4dor" today', 'the passphrase is "[redacted]" today'),
    ("use the token Qx7RtLm2PpZ4vN8s here", "use the token [redacted] here"),
    ("curl -u bob:hunter2 https://x", "curl -u bob:[redacted] https://x"),
    ("Authorization: Bearer abcdef123456", "Authorization: Bearer [redacted]"),
    ('"Authorization": "Basic dXNlcjpwYXNz"', '"Authorization": "Basic [redacted]"'),
    ("Cookie: session=abcdef; theme=dark", "Cookie: [redacted]"),
    ("postgres://bob:hunter2@db.example/x", "postgres://bob:[redacted]@db.example/x"),
    ("postgres://bob:p@ss@db.example/x", "postgres://bob:[redacted]@db.example/x"),
    ("redis://:hunter2@h:6379", "redis://:[redacted]@h:6379"),
    ('{"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEv", "id": "1"}', '{"private_key": "[redacted]", "id": "1"}'),
    (f"before {PEM.format('')[:150]}", "before [redacted]"),
    (f"before {PEM.format('OPENSSH ')} after", "before [redacted] after"),
    (f"İstanbul: {GITHUB} İ", "İstanbul: [redacted] İ"),
]


@pytest.mark.parametrize(("text", "expected"), PAIRS)
def test_of_a_named_value_the_value_alone_is_hidden(text: str, expected: str) -> None:
    assert redact(text) == (expected, True)


ORDINARY = [
    "",
    "the password is hard to remember",
    "a password of 8-16 letters, a password argon2id hashes, the password sha256 made, password 12-character",
    "token count2 and secret number7 and API key v2 and password field1()",
    "a token: it is used to log in",
    "the secret: be kind",
    "the API key: see the docs",
    "Token: expired",
    "Bearer tokens are sent in the header",
    "password reset: https://example.com/reset",
    "3f2b8c1e-9a44-4d0e-8a51-0c4a7f1d2e90",
    "session 018f3c5e-7b1a-7c3e-9d2f-1a2b3c4d5e6f of agent:main:subagent:018f3c5e-7b1a-7c3e-9d2f-1a2b3c4d5e6f",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    f"sha256:{HEX}",
    "agent:main:cron:nightly",
    "sessionKey=agent:main:cron:nightly idempotencyKey=abc123",
    "/home/bob/.ssh/id_rsa",
    "private_key=/etc/ssl/private/server.pem",
    "PWD=/home/bob/x",
    "max_tokens=4096, total_tokens: 1600, token: 42",
    "tokens 1.6k (in 1.2k / out 0.4k) • est $0.02",
    "token = get_token()",
    "token=None, password=self.password, api_key=api_key",
    "def login(token: CancellationToken | None, password: str) -> None:",
    "if token:  # pragma: no cover",
    "password=${DB_PASSWORD} token=$TOKEN secret=<secret> api_key={{ key }} pwd=****",
    'url = "https://x?token=" + value + "&x=1"',
    '{"type":"object","properties":{"password":{"type":"string"}},"required":["password"]}',
    "sk-fading-circle-spinner-large",
    "task-management-system-for-teams",
    "bc_some_long_variable_name_here_too",
    "eyJ is how JWTs begin",
    "AKIA is a prefix",
    "-----BEGIN PRIVATE KEY----- is how it begins",
    "docker run -u 1000:1000 image",
    "http://localhost:3000/x?a=b@c",
    "git@github.com:org/repo.git",
    "primary key: id1, keyboard: qwerty1, secretary: Jane5",
    "passed: 12, pass=12 fail=3",
    "data:image/png;base64,iVBORw0KGgo" + MIXED * 5,
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_comes_back_as_the_same_object(text: str) -> None:
    shown, hidden = redact(text)
    assert shown is text
    assert not hidden


PIECES = [
    *KEYS.values(),
    *"=:,;&?@/.-_\"'`\\ \n{}[]()<>*#$|1aX",
    *["password", "token", "api_key", "DB_PASSWORD", "--token ", "bearer ", "cookie: a=", "sig=", " -u bob:", "://"],
    *["Authorization: Bearer ", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "hunter2", "the", "self."],
    *["\\n", "%3D", "${", "null", "get(", "/etc/x", "İ", REDACTED, "=>", "12345678"],
]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=500)
def test_redacting_twice_is_redacting_once(text: str) -> None:
    shown, _ = redact(text)
    assert redact(shown) == (shown, False)


@given(st.text(max_size=200))
def test_any_text_can_be_redacted(text: str) -> None:
    shown, hidden = redact(text)
    assert hidden == (shown != text)


MEGABYTE = 1_000_000
HOSTILE = [
    *[
        "a",
        " ",
        "1",
        "\n",
        "-",
        "İ",
        "sk-",
        "eyJ-",
        "://a:",
        ".aaaaaa",
        "aaa8Q~",
        ":AA1234567",
        "--a-b-c-d-",
        "_api_key",
    ],
    *["password=", "token: ", 'api_key="', 'password=\\"', "cookie: a=", "authorization: ", "bearer ", " -u a:bbb"],
    *[
        "-----BEGIN PRIVATE KEY-----",
        "hooks.slack.com/services/",
        "password=${",
        "\n\n\ntoken: x",
        "SG.aaaaaaaaaaaaaaaaaaaa-",
    ],
]
OPENED = [
    *[
        ("-----BEGIN PRIVATE KEY-----\n", "A"),
        ("password=", "a."),
        ("password=", "/a"),
        ("password=a", ",a"),
        ("token=", "a_"),
    ],
    *[
        ('password="', '\\"'),
        ("://", "a:"),
        ("password={{", "a"),
        ("eyJ", "aaaaaaaa."),
        ("sk-", "sk-"),
        ("token: ", "a, "),
    ],
]


@pytest.mark.parametrize(("start", "piece"), [*(("", piece) for piece in HOSTILE), *OPENED])
def test_a_hostile_text_is_redacted_in_linear_time(start: str, piece: str) -> None:
    assert grows_linearly(lambda size: redact(start + piece * (size // len(piece))), MEGABYTE // 10)


def test_an_ordinary_message_costs_little_more_than_to_read_it() -> None:
    short = message(TextBlock(text="Can you look at the build? It fails since this morning: see the log. " * 4))
    line = encode_message(short)

    def show() -> None:
        for _ in range(1000):
            present(short)

    def read() -> None:
        for _ in range(1000):
            decode_message(line)

    assert is_at_most(50, show, read, noticed_s=0)


# Beginnings


@pytest.mark.parametrize("text", ["", "a word", f"use {GITHUB}, it works", "x" * 5000])
def test_the_opening_of_a_short_text_is_its_beginning_redacted(text: str) -> None:
    assert redact_opening(text, 4000)[0] == redact(text)[0][:4000]


@pytest.mark.parametrize("before", [*range(90, 110), *range(4100, 4200, 9)])
@pytest.mark.parametrize(
    "secret", [GITHUB, JWT, PEM.format(""), f"password={MIXED}", f"https://me:{MIXED}@example.org"]
)
def test_no_half_of_a_secret_is_in_an_opening_wherever_it_ends(secret: str, before: int) -> None:
    # Behind a long secret, which leaves room in the opening, one may stand where the looking ends.
    for filler in ("a ", "hf_" + HEX * 100):
        text = filler * 5000 if len(filler) < 3 else filler
        shown, _ = redact_opening(f"{text[:before]} {secret} and the rest" + " of it" * 5000, 100)
        assert len(shown) <= 100
        assert MIXED[:8] not in shown


def test_an_opening_keeps_what_was_hidden_in_it() -> None:
    assert redact_opening(PEM.format("") * 40, 100) == (REDACTED, True)
    assert redact_opening(f"{GITHUB} " * 400, 25) == (f"{REDACTED} {REDACTED} [re", True)


def test_the_opening_of_a_value_hides_what_the_whole_would_hide() -> None:
    value = {"password": {"of": ["me"]}, "url": f"https://me:{MIXED}@example.org", "more": [GITHUB, 7, None]}
    assert redact_value_opening(value, 100) == redact_value(value)[0]


def test_the_opening_of_megabytes_costs_little() -> None:
    def texts(count: int) -> tuple[str, dict[str, Any]]:
        text = "token=abc1 " * (count * 1000)
        return text, {"text": text, "many": {str(n): [{"token": text[:n]}] * 1000 for n in range(count)}}

    def look(text: str, value: dict[str, Any]) -> None:
        for _ in range(20):
            redact_opening(text, 300)
        redact_value_opening(value, 100)

    few, many = texts(200), texts(1000)
    assert is_at_most(2.5, lambda: look(*many), lambda: look(*few))  # all of it would take five times as long


# Messages


def message(*blocks: Block, label: str | None = None) -> Message:
    return Message(id="m1", role=Role.ASSISTANT, content=blocks, timestamp=1, label=label)


def call(arguments: Any) -> ToolCallBlock:
    return ToolCallBlock(id="r/1/0", name="http", arguments=arguments)


def test_a_clean_message_comes_back_as_the_same_object() -> None:
    clean = message(TextBlock(text="hi"), ThinkingBlock(thinking="hm"), call({"a": [1, "b", {"c": None}]}))
    shown, hidden = present(clean)
    assert shown is clean
    assert not hidden


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (TextBlock(text=f"use {GITHUB}"), TextBlock(text="use [redacted]")),
        (ThinkingBlock(thinking=GITHUB, signature="s"), ThinkingBlock(thinking=REDACTED)),
        (call({"a": [{"b": GITHUB}]}), call({"a": [{"b": REDACTED}]})),
        (call({GITHUB: 1}), call({REDACTED: 1})),
        (call(f"token={GITHUB}"), call("token=[redacted]")),
        (call({"password": "the", "n": 1}), call({"password": REDACTED, "n": 1})),
        (call({"api-key": 1234}), call({"api-key": REDACTED})),
        (call({"secrets": {"a": ["x", True, None, ""]}}), call({"secrets": {"a": [REDACTED, True, None, ""]}})),
        (call({"headers": {"Authorization": "x"}}), call({"headers": {"Authorization": REDACTED}})),
        (
            ImageBlock(mime_type="image/png", url=f"https://u:{MIXED}@h/x"),
            ImageBlock(mime_type="image/png", url="https://u:[redacted]@h/x"),
        ),
    ],
)
def test_credentials_are_hidden_in_every_kind_of_block(block: Block, expected: Block) -> None:
    assert redact_message(message(block)) == (message(expected), True)


def test_signatures_and_image_data_are_left_out_without_being_called_redacted() -> None:
    before = message(
        ThinkingBlock(thinking="hm", signature="opaque"),
        ImageBlock(mime_type="image/png", data="iVBORw0KGgo="),
        ImageBlock(mime_type="image/gif", url=" DATA:image/gif;base64,R0lGOD"),
        ImageBlock(mime_type="image/jpeg", url="https://example.com/a.jpg"),
    )
    after = message(
        ThinkingBlock(thinking="hm"),
        ImageBlock(mime_type="image/png"),
        ImageBlock(mime_type="image/gif"),
        ImageBlock(mime_type="image/jpeg", url="https://example.com/a.jpg"),
    )
    assert redact_message(before) == (after, False)


def test_a_label_is_redacted_too() -> None:
    assert redact_message(message(label=GITHUB)) == (message(label=REDACTED), True)


def test_arguments_nested_without_end_are_cut_off() -> None:
    value: Any = GITHUB
    for depth in range(5000):
        value = [value] if depth % 2 else {"password": value}
    shown, _ = redact_value(value)
    assert TOO_DEEP in repr(shown)
    assert repr(shown).count("[") <= MAX_DEPTH


@pytest.mark.parametrize(
    "name", ["password", "DB_PASSWORD", "dbPassword", "x-api-key", "apiKey", "accessToken", "SECRET_1", "db_pass"]
)
def test_a_name_is_read_at_its_end(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["", "max_tokens", "sessionKey", "key", "passenger", "compass", "token_count", "idempotencyKey"]
)
def test_a_name_that_only_begins_like_a_secret_is_none(name: str) -> None:
    assert not is_secret_name(name)


# Cutting


def test_a_long_text_is_cut_with_a_marker_that_says_how_to_read_on() -> None:
    cut, _ = present(message(TextBlock(text="x" * 6500)))
    assert cut.text == "x" * 4000 + (
        "… [2,500 more characters are left out: sessions_history with messageId 'm1' and offset 4000 reads them]"
    )


def test_every_long_string_is_cut_and_no_other() -> None:
    long, short = "x" * (TEXT_LIMIT + 1), "x" * TEXT_LIMIT
    before = message(TextBlock(text=short), ThinkingBlock(thinking=long), call({"a": [long, short], long: 1}))
    text, thinking, arguments = present(before)[0].content
    assert text == TextBlock(text=short)
    assert isinstance(thinking, ThinkingBlock)
    assert "1 more characters" in thinking.thinking
    assert f"offset {TEXT_LIMIT + 1 + TEXT_LIMIT} " in thinking.thinking
    assert isinstance(arguments, ToolCallBlock)
    (first, second), name = arguments.arguments["a"], list(arguments.arguments)[1]
    assert "1 more characters" in first
    assert second == short
    assert "1 more characters" in name


def test_the_offset_of_a_marker_is_where_the_rest_begins() -> None:
    before = message(TextBlock(text=f"é {GITHUB}"), call({"a": 1}), TextBlock(text="a" * 4000 + "rest"))
    shown = present(before)[0].content[2]
    assert isinstance(shown, TextBlock)
    assert read_piece(redact_message(before)[0], offset_in(shown.text)).text == "rest"


def test_once_something_was_cut_everything_further_is_read_from_there() -> None:
    before = message(TextBlock(text=f"{GITHUB} " * 500), call({"a": "b" * 5000}), ThinkingBlock(thinking="c" * 5000))
    text, arguments, thinking = present(before)[0].content
    assert isinstance(text, TextBlock) and isinstance(arguments, ToolCallBlock) and isinstance(thinking, ThinkingBlock)
    offset = offset_in(text.text)
    rest = read_piece(redact_message(before)[0], offset, limit=100_000).text
    assert text.text.partition("…")[0] + rest == reading_text(redact_message(before)[0])
    assert offset_in(arguments.arguments["a"]) == offset_in(thinking.thinking) == offset


def offset_in(cut: str) -> int:
    return int(cut.split("offset ")[1].split()[0])


def test_a_secret_across_the_limit_is_hidden_before_it_could_be_cut_in_half() -> None:
    shown, hidden = present(message(TextBlock(text="x" * 3980 + " " + GITHUB + " " + "y" * 100)))
    assert hidden
    assert "ghp_" not in shown.text


@given(st.lists(st.text("ab\n é", max_size=30), max_size=4), st.integers(1, 20))
def test_the_pieces_of_a_message_are_all_of_it(texts: list[str], limit: int) -> None:
    whole = message(*(TextBlock(text=text) for text in texts), call({"x": texts}))
    pieces, offset = [], 0
    while True:
        piece = read_piece(whole, offset, limit=limit)
        pieces.append(piece.text)
        if piece.next_offset is None:
            break
        offset = piece.next_offset
    assert "".join(pieces) == reading_text(whole)
    assert piece.total == len(reading_text(whole))


def test_an_offset_behind_the_end_reads_nothing() -> None:
    piece = read_piece(message(TextBlock(text="abc")), 10)
    assert (piece.text, piece.next_offset, piece.total) == ("", None, 3)


def test_a_message_of_many_long_strings_condenses_to_one_short_text() -> None:
    huge = message(*(call({"x": ["é" * 4000] * 10}) for _ in range(20)), label="x" * 5000)
    condensed = condense(huge)
    assert len(encode_message(condensed)) < 20_000
    assert condensed.text.startswith('http {"x":["ééé')
    assert f"messageId 'm1' and offset {TEXT_LIMIT} reads them" in condensed.text


def test_a_long_label_is_cut() -> None:
    assert present(message(label="x" * 5000))[0].label == "x" * 256


def test_long_names_of_tools_and_addresses_of_images_are_cut_too() -> None:
    odd = ToolCallBlock(id="", name="n" * 5000, arguments={})
    image = ImageBlock(mime_type="m" * 5000, url="https://example.com/" + "u" * 5000)
    named = msgspec.structs.replace(message(odd, image), tool_name="t" * 5000)
    shown, _ = present(named)
    tool, picture = shown.content
    assert isinstance(tool, ToolCallBlock) and tool.name.startswith("n" * TEXT_LIMIT + "…") and len(tool.name) < 4300
    assert isinstance(picture, ImageBlock) and picture.url is None and len(picture.mime_type) < 4300
    assert shown.tool_name == condense(named).tool_name == "t" * 256


@pytest.mark.parametrize("text", ["hello", f"use {GITHUB}", "x" * 9000, f"use {GITHUB} " + "x" * 9000])
def test_a_line_is_presented_as_its_message_is_the_first_time_and_the_next(text: str) -> None:
    said = message(TextBlock(text=text))
    shown, hidden = present(said)
    for _ in range(2):
        assert present_line(encode_message(said).decode()) == (msgspec.Raw(encode_message(shown)), hidden)
