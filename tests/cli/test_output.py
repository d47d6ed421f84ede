"""The output of commands: ages, tables, messages and prose."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from backchannel.cli import output
from backchannel.cli.commands.history import show_message, text_of
from backchannel.cli.finding import GatewayAddress, _websocket_url
from backchannel.cli.output import WordWrap, age, clean, console, show_json, until
from backchannel.cli.short_forms import Long
from backchannel.cli.tables import build_table
from backchannel.core.messages import Message


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (90_000, "1d"), (-5, "0s")]
)
def test_ages_are_short(seconds: int, shown: str) -> None:
    assert age(1_000_000_000 - seconds * 1000, 1_000_000_000) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(4.2, "4s"), (59.8, "1m"), (3_599.5, "1h"), (5_400, "1h"), (3_540, "59m"), (86_390, "1d"), (180_000, "2d")],
)
def test_what_is_to_come_is_not_told_shorter_than_it_is(seconds: float, shown: str) -> None:
    assert until(int(seconds * 1000), 0) == shown


def test_json_on_a_terminal_writes_control_characters_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    value = {"said": "\x1b[2J\x9b1m\u202eé"}
    show_json(value, lines=True)
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    show_json(value, lines=True)

    piped, shown = capfdbinary.readouterr().out.splitlines()
    assert json.loads(piped) == json.loads(shown) == value
    assert rb"\u001b[2J\u009b1m\u202e" in shown and "é".encode() in shown


def test_control_characters_are_left_out() -> None:
    assert clean("a\x1b[31mb\x07\u202ec\ud800\nd\te\x85") == "a[31mbc\nd\te"


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://127.0.0.1:18790", "ws://127.0.0.1:18790"),
        ("https://gate.example/", "wss://gate.example"),
        ("ws://gate.example:1/ws", "ws://gate.example:1/ws"),
        ("gate.example:1", "ws://gate.example:1"),
        ("http://0.0.0.0:1", "ws://127.0.0.1:1"),
        ("http://[::]:1", "ws://[::1]:1"),
    ],
)
def test_addresses_are_read_as_people_write_them(written: str, url: str) -> None:
    assert _websocket_url(written) == url


def test_a_token_is_in_no_repr() -> None:
    assert "secret" not in repr(GatewayAddress("ws://localhost", "secret"))


def test_a_message_shows_its_calls_of_tools_only_when_asked() -> None:
    message = {
        "id": "1",
        "timestamp": 0,
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "I look."},
            {"type": "toolCall", "id": "1", "name": "look", "arguments": {"at": "it"}},
        ],
    }

    read = msgspec.convert(message, Message)
    assert text_of(read) == "I look."
    assert text_of(read, with_tools=True) == 'I look.\n→ look {"at":"it"}'


@pytest.mark.parametrize(
    ("message", "writer"),
    [
        ({"role": "user"}, "user"),
        ({"role": "user", "provenance": {"kind": "external_user", "sourceChannel": "webchat"}}, "user"),
        ({"role": "assistant"}, "assistant"),
        (
            {"role": "user", "provenance": {"kind": "inter_session", "sourceSessionKey": "agent:ops:main"}},
            "agent:ops:main",
        ),
        ({"role": "user", "provenance": {"kind": "inter_session"}}, "user"),
        ({"role": "user", "provenance": {"kind": "internal_system"}}, "system"),
        ({"role": "toolResult", "toolName": "look", "isError": True}, "look failed"),
    ],
)
def test_a_message_is_shown_with_who_wrote_it(
    message: dict[str, Any], writer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = message | {"id": "1", "timestamp": 0, "content": [{"type": "text", "text": "Hello."}]}
    show_message(msgspec.convert(shown, Message))

    assert capsys.readouterr().out.endswith(f"] {writer}: Hello.\n")


@pytest.mark.parametrize("width", [20, 30, 60, 80, 200])
def test_a_table_fits_the_terminal_and_loses_nothing_of_its_first_column(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    key = "   └─ agent:main:subagent:0b0b6b0e-1111-4111-8111-000000000003"
    console().print(build_table(["session", "status", "name", "cost"], [[key, "idle", "", "$0.25"]]))
    lines = capsys.readouterr().out.splitlines()
    first = min(len(key), max(16, width - len("  status") - len("  $0.25")))

    assert max(map(len, lines)) <= width
    assert "name" not in lines[0], "a column in which nothing stands is left out"
    assert "".join(line[:first].rstrip() for line in lines).endswith(key)


def test_a_table_whose_first_column_is_empty_begins_with_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(build_table(["code", "channel", "sender"], [["", "telegram", "7"], ["", "desk", "ann"]]))
    shown = capsys.readouterr().out
    assert "code" not in shown
    assert [line.split() for line in shown.splitlines()] == [["channel", "sender"], ["telegram", "7"], ["desk", "ann"]]


def test_spare_columns_give_way_first(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ["agent:main:main", "idle", "builtin/demo"]
    for width, left in ((80, ["key", "status", "model"]), (30, ["key", "status"])):
        monkeypatch.setenv("COLUMNS", str(width))
        table = build_table(["key", "status", "model"], [row], spare=["model"])
        assert [column.header for column in table.columns] == left


def test_long_texts_take_their_short_form_before_a_column_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = [Long("agent:main:subagent:1", "subagent:1"), "idle", Long("count to a hundred", "count…")]
    for width, line in (
        (80, "agent:main:subagent:1  idle    count to a hundred"),
        (40, "agent:main:subagent:1  idle    count…"),
        (30, "subagent:1  idle    count…"),
        (20, "subagent:1  idle"),
    ):
        monkeypatch.setenv("COLUMNS", str(width))
        console().print(build_table(["key", "status", "name"], [row], spare=["name"]))
        assert capsys.readouterr().out.splitlines()[1].rstrip() == line


@pytest.mark.parametrize("pieces", [["to see ", "what I ", "understand."], ["to see what I understand."]])
def test_prose_is_wrapped_at_its_words_in_whatever_pieces_it_comes(pieces: list[str]) -> None:
    wrap = WordWrap(16)

    assert "".join(wrap.feed(piece) for piece in pieces) == "to see what I \nunderstand."


def test_no_line_of_prose_fills_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    assert max(map(len, WordWrap().feed("one two three four five six seven eight").split("\n"))) < 20
    assert WordWrap().feed("twenty letters are 2") == "twenty letters are \n2"


def test_an_id_beside_a_long_key_takes_the_room_of_the_prose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = ["6becedafa7c7…/announce/1", "agent:researcher:subagent:1c9bc", "running", "what it says at length"]
    console().print(build_table(["id", "session", "status", "result"], [row]))

    assert capsys.readouterr().out.splitlines()[1].startswith("6becedafa7c7…/announce/1  agent:")


def test_code_long_words_and_breaks_of_its_own_stay_as_they_are() -> None:
    code = "```\nmake up ARGS=1 and more than fits\n```"

    assert WordWrap(16).feed(code) == code
    assert WordWrap(16).feed("a" * 40) == "a" * 40
    assert WordWrap(16).feed("one two\nthree four five") == "one two\nthree four five"
    assert WordWrap(8).feed("日本語 日本語") == "日本語 \n日本語"
