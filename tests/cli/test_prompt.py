"""The screen of `backchannel chat`: one prompt, whatever arrives and whoever types."""

from __future__ import annotations

import pytest

from .program import Program, Terminal

CONFIG = """{ agents: { list: [{ id: "main" }] } }"""


@pytest.mark.parametrize("kind", ["xterm-256color", "screen", "dumb"])
def test_each_line_has_one_prompt(program: Program, kind: str) -> None:
    program.write_config(CONFIG)
    with program.up(), program.terminal("chat", TERM=kind) as talk:
        talk.expect_line(">")
        _type_slowly(talk, "hello")
        talk.type("\n")
        talk.expect("You can say:")
        talk.expect_line(">")
        _type_slowly(talk, "what did I say?")
        talk.type("\n")
        talk.expect("1. hello")
        talk.expect_line(">")

    typed = [line for line in talk.screen if line.startswith(">")]
    assert typed == ["> hello", "> what did I say?", ">"]


def test_a_post_takes_the_place_of_the_empty_prompt(program: Program) -> None:
    program.write_config(CONFIG)
    with program.up(), program.terminal("chat") as talk:
        talk.expect_line(">")
        talk.type("spawn count to ten\n")
        talk.expect("Started `agent:main:subagent:")
        talk.expect_line(">")
        talk.expect("posted ")
        talk.expect("Status: success")
        talk.expect_line(">")
        _type_slowly(talk, "what now")
        screen = talk.screen

    assert [line for line in screen if line.startswith(">")] == ["> spawn count to ten", "> what now"]
    assert any(line.startswith("posted 20") for line in screen)


def test_a_post_is_shown_when_a_line_was_typed_and_taken_back(program: Program) -> None:
    program.write_config(CONFIG)
    with program.up(), program.terminal("chat") as talk:
        talk.expect_line(">")
        talk.type("hello\n")
        talk.expect("You can say:")
        talk.expect_line(">")
        talk.type("the")
        talk.expect_line("> the")
        program.answer("spawn", "--as", "main", "--follow", "count to ten")
        assert "posted" not in talk.shown
        talk.type("\x15")  # Ctrl-U: the line is empty again
        talk.expect("posted ")
        talk.expect_line(">")
        _type_slowly(talk, "what now")
        screen = talk.screen

    assert [line for line in screen if line.startswith(">")] == ["> hello", "> what now"]


def test_ctrl_c_right_after_a_key_is_not_lost(program: Program) -> None:
    program.write_config(CONFIG)
    with program.up(), program.terminal("chat") as talk:
        talk.expect_line(">")
        for count in range(20):
            talk.type(f"line {count}")
            talk.expect(f"line {count}")
            talk.type("\x03")
            talk.expect_line(">")
        talk.type("\x03")
        assert talk.wait() == 0


def _type_slowly(talk: Terminal, text: str) -> None:
    """Type key by key, each when the one before is on the screen."""
    for end in range(1, len(text) + 1):
        talk.type(text[end - 1])
        talk.expect_line(f"> {text[:end]}".rstrip())
