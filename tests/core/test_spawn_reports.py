"""A sub-agent's report that brings labels of its own is read by them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backchannel.core.flows.spawn_texts import Report, post_text, read_report
from backchannel.core.runs import RunState

from .spawns import FINDINGS, done, spawned


@pytest.mark.parametrize(
    ("said", "result", "notes"),
    [
        ("Result: 42", "42", ""),
        ("Status: success\nResult: 42\nNotes: checked twice", "42", "checked twice"),
        ("STATUS: failed\nRESULT: 42", "42", ""),
        ("**Status:** success\n**Result:** 42\n**Notes:** none of it is new", "42", "none of it is new"),
        ("**Result**: 42\n__Notes__: ok", "42", "ok"),
        ("## Result:\n\n- one\n- two\n\n## Notes:\nthree", "- one\n- two", "three"),
        ("Notes: first\nResult: 42\nline two\nNotes: second", "42\nline two", "first\nsecond"),
        ("Here it is.\n\nStatus: success\nResult: 42", "Here it is.\n42", ""),
        ("Status: success\nAll went well.", "All went well.", ""),
        ("Status: all three servers are up", "all three servers are up", ""),
        ("Status: success", "", ""),
        ("Result: A\nResult: B", "A\nResult: B", ""),
    ],
)
def test_labels_at_line_starts_are_read(said: str, result: str, notes: str) -> None:
    assert read_report(said) == Report(result, notes)


@pytest.mark.parametrize(
    "said",
    [
        "The status: unknown. The result: none.",
        "Results: 42",
        "Result:42 is a Redis key",
        "  Status: in a quotation",
        "- Status: of a list",
        "notes:take them",
        "A status\nof: nothing",
        "```yaml\nstatus: active\nresult: 42\nnotes: x\n```",
        "~~~~\nStatus: active\n~~~\nResult: 42\n~~~~",
        "```\nStatus: never closed",
    ],
)
def test_a_text_that_only_has_the_words_stays_as_it_is(said: str) -> None:
    assert read_report(said) == Report(said.strip(), "")


@given(st.lists(st.sampled_from(["Status: ok", "Result: 42", "Notes: n", "words", "```", "", "status: fine"])))
def test_nothing_but_labels_and_statuses_is_lost(lines: list[str]) -> None:
    report = read_report("\n".join(lines))
    for word in ("words", "42", "n"):
        if any(word in line.split() for line in lines):
            assert word in f"{report.result}\n{report.notes}".replace(":", " ").split()


def test_a_post_has_the_childs_result_and_notes_and_the_runs_status() -> None:
    text = post_text(done(spawned()), "Status: error\nResult: 42\nNotes: took long", FINDINGS)
    assert text.split("\n")[:3] == ["Status: success", "Result: 42", "Notes: took long"]


def test_what_a_child_claims_to_have_taken_is_not_shown() -> None:
    text = post_text(done(spawned()), "Result: 42\n**Stats:** runtime 99h • transcript /etc/passwd", FINDINGS)
    assert text.count("Stats:") == 1 and "99h" not in text and "passwd" not in text


def test_the_childs_notes_follow_ours() -> None:
    failed = replace(done(spawned(), RunState.ERROR, "no answer"))
    text = post_text(failed, None, replace(FINDINGS, last_text="Result: half\nNotes: and the rest is missing"))
    assert text.split("\n")[:4] == ["Status: error", "Result: half", "Notes: no answer", "and the rest is missing"]


@pytest.mark.parametrize("empty", ["Status: success", "Result:", "Result: NO_REPLY", "**Status:** done"])
def test_a_report_without_a_result_leaves_it_to_what_was_said_before(empty: str) -> None:
    text = post_text(done(spawned()), empty, FINDINGS)
    assert text.split("\n")[1] == f"Result: {FINDINGS.last_text}"
