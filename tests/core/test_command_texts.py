"""The answers of chat commands: stopped runs, the state of a session, its usage."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.commands.texts import StatusView, model_text, models_text, send_text, status_text, stop_text
from backchannel.core.messages import Usage
from backchannel.core.policy.decisions import Decision
from backchannel.core.sessions import Session


def session(**changed: Any) -> Session:
    given: dict[str, Any] = dict.fromkeys(Session.__struct_fields__)
    given |= {
        "key": "agent:main:main",
        "deleting": False,
        "queued": 0,
        "tokens_in": 0,
        "tokens_out": 0,
        "held_posts": 0,
    }
    return Session(**{**given, **changed})


@pytest.mark.parametrize(
    ("runs", "subagents", "text"),
    [
        (0, 0, "Nothing is running here."),
        (1, 0, "Stopped 1 run."),
        (2, 0, "Stopped 2 runs."),
        (0, 1, "Stopped 1 sub-agent."),
        (1, 3, "Stopped 1 run and 3 sub-agents."),
    ],
)
def test_stopping_says_how_many(runs: int, subagents: int, text: str) -> None:
    assert stop_text(runs, subagents) == text


def test_the_status_of_a_session_that_nobody_has_spoken_to_names_its_model() -> None:
    assert status_text(StatusView(model="demo/demo")) == "Status: idle\nModel: demo/demo"


def test_the_status_tells_what_a_session_does_and_uses() -> None:
    busy = session(
        running_run="r",
        queued=2,
        total_tokens=12_345,
        context_tokens=200_000,
        tokens_in=1200,
        tokens_out=400,
        cost=0.02,
    )
    view = StatusView(busy, "demo/demo", running_ms=75_000, subagents=2, sending=Decision(True, "no rule denies"))
    assert status_text(view).splitlines() == [
        "Status: running for 1m15s, 2 messages waiting",
        "Model: demo/demo",
        "Context: 12.3k of 200.0k tokens",
        "Tokens: 1.6k (in 1.2k / out 0.4k), $0.02",
        "Sub-agents: 2 at work",
        "Sending: on",
    ]


def test_the_status_tells_how_much_was_read_from_the_cache() -> None:
    view = StatusView(
        session(total_tokens=1000), cached_share=Usage(input=60, cache_read=925, cache_write=15).cached_share
    )
    assert "Cache: 92% of the last request was read from it" in status_text(view).splitlines()
    assert Usage(input=1000, output=5).cached_share is None, "a provider without a cache"
    assert Usage(input=10, cache_write=90).cached_share == 0


@pytest.mark.parametrize(
    ("own", "decision", "line"),
    [
        (None, Decision(True, "no rule denies"), "Sending: on"),
        (None, Decision(False, "rules[0] denies"), "Sending: off: rules[0] denies"),
        ("allow", Decision(True, "own"), "Sending: on, set for this session"),
        ("deny", Decision(False, "own"), "Sending: off, set for this session"),
    ],
)
def test_the_status_says_whether_the_session_may_send_and_what_decides(
    own: str | None, decision: Decision, line: str
) -> None:
    view = StatusView(session(send_policy=own), sending=decision)
    assert status_text(view).splitlines() == ["Status: idle", "Tokens: none yet", line]


def test_a_change_is_told_as_it_will_be() -> None:
    assert model_text("a/b", "demo/demo") == "This session uses a/b from its next run on."
    assert model_text(None, "demo/demo") == "This session uses its agent's own model again, demo/demo."
    assert model_text(None, None) == "This session uses its agent's own model again."
    assert len({send_text(word) for word in ("on", "off", "inherit")}) == 3


def test_the_model_alone_tells_what_is_used_and_what_can_be_chosen() -> None:
    assert models_text("a/b", "demo/demo", ["a/b", "a/c"]) == (
        "This session uses a/b (the agent's own is demo/demo).\n"
        "Choose another with `/model <provider>/<model>`, of any provider that has a key; known here:\n- a/b\n- a/c"
    )
    assert models_text(None, "demo/demo", ()).splitlines()[0] == "This session uses demo/demo."
    assert models_text(None, None, ("a/b",)) == "The agent of this session is a function and asks no model."
