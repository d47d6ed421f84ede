"""The calls that need an approval, and the texts about them."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.policy.approvals import Approval, ApprovalRuleSettings, ApprovalState, ask_text, asks


def rule(tool: str, ask: Any = "always", match: str | None = None) -> ApprovalRuleSettings:
    return ApprovalRuleSettings(tool=tool, match=match, ask=ask)


@pytest.mark.parametrize(
    ("rules", "is_asked"),
    [
        ([], False),
        ([rule("exec")], True),
        ([rule("write")], False),
        ([rule("ex*")], True),
        ([rule("exec", "never"), rule("*")], False),
        ([rule("exec", match="rm *")], True),
        ([rule("exec", match="ls*")], False),
        ([rule("exec", "never", match="rm -r*"), rule("exec")], False),
    ],
)
def test_the_first_rule_that_fits_decides(rules: list[ApprovalRuleSettings], is_asked: bool) -> None:
    assert asks(rules, "exec", {"command": "rm -rf build"}) is is_asked


@pytest.mark.parametrize("value", ["secret plan", ["a", "secret plan"], {"deep": [{"er": "secret plan"}]}])
def test_a_pattern_is_compared_with_every_value_however_deep(value: Any) -> None:
    assert asks([rule("post", match="secret*")], "post", {"what": value})


@pytest.mark.parametrize(
    ("arguments", "is_asked"),
    [
        ({"command": "git status"}, False),
        ({"command": "git status", "limit": 5, "quiet": True}, False),
        ({"command": "rm -r .", "note": "git status"}, True),
        ({"command": ["git status", "rm -r ."]}, True),
        ({}, True),
    ],
)
def test_an_argument_beside_it_does_not_take_the_question_away(arguments: Any, is_asked: bool) -> None:
    assert asks([rule("shell", "never", match="git status"), rule("shell")], "shell", arguments) is is_asked


@pytest.mark.parametrize(("pattern", "fits"), [("7", True), ("true", True), ("null", True), ("8", False)])
def test_numbers_and_such_are_compared_as_they_are_written(pattern: str, fits: bool) -> None:
    assert asks([rule("post", match=pattern)], "post", {"n": 7, "yes": True, "no": None}) is fits


def test_the_question_shows_the_call_and_how_to_answer_and_hides_credentials() -> None:
    arguments = '{"command":"curl -H \\"Authorization: Bearer sk-abcdefghijklmnopqrstuvwxyz0123456789\\" x"}'
    approval = Approval("1a2b3c4d", "r/0/0", "r", "agent:main:main", "exec", arguments, ApprovalState.PENDING, 1)
    text = ask_text(approval)
    assert text.startswith("May I call exec?\n") and "curl" in text
    assert "/approve 1a2b3c4d" in text and "/deny 1a2b3c4d" in text
    assert "abcdefghijklmnop" not in text


def test_a_question_about_a_huge_call_is_short() -> None:
    approval = Approval(
        "1", "r/0/0", "r", "k", "write", '{"content":"' + "x" * 100_000 + '"}', ApprovalState.PENDING, 1
    )
    text = ask_text(approval)
    assert len(text) < 2_000
    assert "Only its beginning, of 100014 characters" in text


def test_a_question_shows_what_cannot_be_seen() -> None:
    arguments = '{"command":"ls \u202efr- mr\u202c \u009b2K\u200b \U000e0041"}'
    approval = Approval("1", "r/0/0", "r", "k", "exec", arguments, ApprovalState.PENDING, 1)
    assert r"ls \u202efr- mr\u202c \u009b2K\u200b \udb40\udc41" in ask_text(approval)
    assert "beginning" not in ask_text(approval)
