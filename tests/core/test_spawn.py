"""The sub-agent flow: every state with every event against a table, the rules one by one, then whole sequences."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backchannel.core.flows.flow import AbortRun, QueueRun, Settle
from backchannel.core.flows.spawn import announce_id, being_stopped, first_run, has_room, kept, may_spawn, step_spawn
from backchannel.core.flows.spawn_texts import announce_prompt, post_text
from backchannel.core.flows.spawn_values import (
    Action,
    ChildCancelled,
    ChildRunEnded,
    Event,
    Findings,
    PostText,
    Spawn,
    SpawnOutcome,
    SpawnRules,
    SpawnState,
    read_spawn,
    write_spawn,
)
from backchannel.core.messages import ProvenanceKind
from backchannel.core.runs import Chain, RunKind, RunState
from backchannel.core.sessions import WEBCHAT

from .spawns import ADDRESS, CHILD, ENDED_AT, FINDINGS, A, after, ended, outcome, parse, spawned

FAILED = (RunState.ERROR, RunState.TIMEOUT, RunState.ABORTED)
CANCELLED = ChildCancelled(reason="its requester was stopped", at=7_000)

# Every state with every event

RUN = spawned()
ANNOUNCE = after(RUN, "Full.")

STATES: dict[str, Spawn] = {
    "run": RUN,
    "run, from outside": spawned(requester_run=None, address=None, label=None),
    "announce": ANNOUNCE,
    "done, announced": after(ANNOUNCE, "The disk is full."),
    "done, skipped": after(ANNOUNCE, "ANNOUNCE_SKIP"),
    "done, announce failed": after(ANNOUNCE, ended(ANNOUNCE, None, RunState.ERROR)),
    "done, child failed": after(RUN, ended(RUN, None, RunState.ERROR)),
    "done, child timed out": after(RUN, ended(RUN, None, RunState.TIMEOUT)),
    "done, child aborted": after(RUN, ended(RUN, None, RunState.ABORTED)),
    "done, cancelled at work": after(RUN, CANCELLED),
    "done, cancelled at the announce": after(ANNOUNCE, CANCELLED),
}

EVENTS: dict[str, Callable[[Spawn], Event]] = {
    "ok": lambda x: ended(x, "Some text."),
    "blank": lambda x: ended(x, " \n"),
    "nothing": lambda x: ended(x, None),
    "skip": lambda x: ended(x, " ANNOUNCE_SKIP\n"),
    "skip in a sentence": lambda x: ended(x, "I reply ANNOUNCE_SKIP"),
    "another word": lambda x: ended(x, "NO_REPLY"),
    "error": lambda x: ended(x, "half", RunState.ERROR, error="boom"),
    "error with skip": lambda x: ended(x, "ANNOUNCE_SKIP", RunState.ERROR),
    "timeout": lambda x: ended(x, "half", RunState.TIMEOUT),
    "aborted": lambda x: ended(x, "half", RunState.ABORTED),
    "aborted in the queue": lambda x: ended(x, None, RunState.ABORTED, findings=Findings()),
    "queued": lambda x: ended(x, None, RunState.QUEUED),
    "running": lambda x: ended(x, "half", RunState.RUNNING),
    "the child's run": lambda x: ended(x, "Some text.", run_id="c1"),
    "the child's run, failed": lambda x: ended(x, "half", RunState.ERROR, run_id="c1"),
    "the announce": lambda x: ended(x, "Some text.", run_id="s1/announce"),
    "the announce, skipped": lambda x: ended(x, "ANNOUNCE_SKIP", run_id="s1/announce"),
    "the announce, failed": lambda x: ended(x, None, RunState.ERROR, run_id="s1/announce"),
    "a later run": lambda x: ended(x, "Some text.", run_id="c2"),
    "the requester's run": lambda x: ended(x, "Some text.", run_id="r9"),
    "cancelled": lambda x: CANCELLED,
}

FAILURES = ("error", "error with skip", "timeout", "aborted", "aborted in the queue")
TEXTS = ("ok", "blank", "nothing", "skip in a sentence", "another word")
ASKED = "announce: announce:s1/announce"
POSTED = "done, posted: post"
SKIPPED = "done, skipped: settle:skipped"


def cells(*rows: tuple[tuple[str, ...], str]) -> dict[str, str]:
    """Write out the cells of one state; what no row names leaves the spawn exactly as it was."""
    return {name: expected for names, expected in rows for name in names}


AT_WORK = cells(
    ((*TEXTS, "skip", "the child's run"), ASKED),
    ((*FAILURES, "the child's run, failed"), POSTED),
    (("cancelled",), "done, cancelled: settle:cancelled abort:c1"),
)
TABLE: dict[str, dict[str, str]] = {
    "run": AT_WORK,
    "run, from outside": AT_WORK,
    "announce": cells(
        ((*TEXTS, *FAILURES, "the announce", "the announce, failed"), POSTED),
        (("skip", "the announce, skipped"), SKIPPED),
        (("cancelled",), "done, cancelled: settle:cancelled abort:s1/announce"),
    ),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, EVENTS)))
def test_every_state_meets_every_event_as_the_table_says(state: str, event: str) -> None:
    before, happened = STATES[state], EVENTS[event](STATES[state])
    now, actions = step_spawn(before, happened)
    expected = TABLE.get(state, {}).get(event)
    if expected is None:
        assert (now, actions) == (before, ())
        return
    assert outcome(now, actions) == expected
    assert read_spawn(write_spawn(now)) == now
    assert step_spawn(now, happened) == (now, ()), "the same event again does nothing"


def test_the_table_names_only_states_and_events_there_are() -> None:
    assert set(TABLE) == {name for name, spawn in STATES.items() if spawn.state is not SpawnState.DONE}
    assert {name for row in TABLE.values() for name in row} <= set(EVENTS)
    assert {spawn.state for spawn in STATES.values()} == set(SpawnState)
    assert {spawn.outcome for spawn in STATES.values()} == {None, *SpawnOutcome}


# May it be


@pytest.mark.parametrize(
    ("agent_id", "allowed", "expected"),
    [
        ("main", (), True),
        ("main", ("ops",), True),
        ("ops", ("ops",), True),
        ("ops", ("*",), True),
        ("ops", (), False),
        ("ops", ("research",), False),
        ("ops", ("ops2", "op"), False),
    ],
)
def test_an_agent_spawns_under_itself_and_those_it_may(agent_id: str, allowed: tuple[str, ...], expected: bool) -> None:
    assert may_spawn(A, agent_id, allowed, leaves_sandbox=False).allowed is expected


@pytest.mark.parametrize("agent_id", ["main", "ops"])
def test_a_sub_agent_never_spawns(agent_id: str) -> None:
    decision = may_spawn(parse("agent:main:subagent:7"), agent_id, ("*",), leaves_sandbox=False)
    assert not decision.allowed
    assert decision.rule is None
    assert "sub-agent" in decision.reason


def test_a_refused_agent_is_told_what_is_allowed_and_which_setting_would_allow_it() -> None:
    decision = may_spawn(A, "ops", ("writer", "research"), leaves_sandbox=False)
    assert decision.rule == "agents.list[main].subagents.allowAgents"
    assert decision.reason == (
        "'main' may spawn only under main, research, writer "
        "(add 'ops' to agents.list[main].subagents.allowAgents to allow it)"
    )


@pytest.mark.parametrize(("agent_id", "allowed"), [("main", ()), ("ops", ("ops",)), ("ops", ("*",))])
def test_no_spawn_leads_out_of_a_sandbox(agent_id: str, allowed: tuple[str, ...]) -> None:
    decision = may_spawn(A, agent_id, allowed, leaves_sandbox=True)
    assert not decision.allowed
    assert decision.rule == "agents.defaults.sandbox.mode"
    assert repr(agent_id) in decision.reason
    assert 'agents.defaults.sandbox.mode "non-main" or "all"' in decision.reason


def test_an_agent_that_is_not_allowed_is_refused_for_that_before_the_sandbox_is_looked_at() -> None:
    decision = may_spawn(A, "ops", (), leaves_sandbox=True)
    assert decision.rule == "agents.list[main].subagents.allowAgents"


@pytest.mark.parametrize(
    ("count", "limit", "expected"), [(0, 1, True), (19, 20, True), (20, 20, False), (21, 20, False), (0, 0, False)]
)
def test_there_is_room_for_as_many_children_as_are_set(count: int, limit: int, expected: bool) -> None:
    decision = has_room(count, limit)
    assert decision.allowed is expected
    assert decision.rule == "agents.defaults.subagents.maxChildren"


def test_a_full_requester_is_told_the_count_the_setting_and_what_would_help() -> None:
    reason = has_room(21, 20).reason
    assert "has 21 sub-agents" in reason
    assert "agents.defaults.subagents.maxChildren is 20" in reason
    assert "a higher value would allow more" in reason


def test_a_run_that_is_being_stopped_spawns_nothing() -> None:
    assert not being_stopped().allowed
    assert "stopped" in being_stopped().reason


# The child's run


def test_the_task_is_the_childs_first_message_and_comes_from_the_requester() -> None:
    run = first_run(RUN, "agent:main:telegram:group:42")
    assert (run.id, run.kind, run.key, run.texts[0]) == ("c1", RunKind.CHILD, CHILD, "Look at the disk.")
    assert (run.chain, run.reply_to, run.timeout_s) == (Chain("cause", 2), None, None)
    assert run.provenance.kind is ProvenanceKind.INTER_SESSION
    assert run.provenance.source_session_key == "agent:main:telegram:group:42"
    assert run.provenance.source_tool == "sessions_spawn"


def test_of_a_long_task_the_beginning_is_kept_and_the_child_is_told_all_of_it() -> None:
    assert kept(RUN) is RUN
    long = replace(RUN, task="a" * 5000)
    assert kept(long).task == "a" * 4000 + "… (1000 characters more)"
    assert first_run(long, "main").texts[0] == long.task


def test_a_spawn_belongs_to_the_barrier_of_its_run_or_has_one_of_its_own() -> None:
    assert RUN.barrier_id == "r9"
    assert spawned(requester_run=None).barrier_id == "s1"


@pytest.mark.parametrize("state", FAILED)
def test_a_child_that_failed_is_posted_without_a_further_run(state: RunState) -> None:
    spawn, actions = step_spawn(RUN, ended(RUN, "half", state, error="the provider said no"))
    assert actions == (PostText(text=post_text(spawn, None, FINDINGS)),)
    assert (spawn.status, spawn.error, spawn.ended_at) == (state, "the provider said no", ENDED_AT)
    assert (spawn.state, spawn.run_id, spawn.outcome) == (SpawnState.DONE, None, SpawnOutcome.POSTED)


@pytest.mark.parametrize("reply", ["ANNOUNCE_SKIP", "NO_REPLY", "", None])
def test_what_the_child_says_in_its_own_run_never_skips_the_announce(reply: str | None) -> None:
    assert after(RUN, ended(RUN, reply)).state is SpawnState.ANNOUNCE


# The announce


def test_the_announce_is_one_short_run_of_the_child_on_the_hop_of_its_spawn() -> None:
    spawn, (run,) = step_spawn(RUN, ended(RUN))
    assert isinstance(run, QueueRun)
    assert (run.id, run.kind, run.key) == ("s1/announce", RunKind.ANNOUNCE, CHILD)
    assert run.id == spawn.run_id == announce_id(RUN)
    assert (run.timeout_s, run.chain, run.reply_to) == (60, Chain("cause", 2), None)
    assert run.texts[0] == announce_prompt(spawn)
    assert run.provenance.kind is ProvenanceKind.INTERNAL_SYSTEM
    assert (run.provenance.source_session_key, run.provenance.source_tool) == (None, "sessions_spawn")


def test_the_announced_text_is_posted_with_what_the_rows_tell_then() -> None:
    later = replace(FINDINGS, tokens_in=5_000, cost=0.07)
    spawn, actions = step_spawn(ANNOUNCE, ended(ANNOUNCE, "The disk is full.", findings=later, at=9_000))
    assert actions == (PostText(text=post_text(spawn, "The disk is full.", later)),)
    assert (spawn.status, spawn.ended_at) == (RunState.OK, ENDED_AT)


@pytest.mark.parametrize("reply", ["ANNOUNCE_SKIP", " ANNOUNCE_SKIP", "ANNOUNCE_SKIP\n", "\n\t ANNOUNCE_SKIP \r\n"])
def test_exactly_the_word_keeps_an_announce_silent(reply: str) -> None:
    spawn, actions = step_spawn(ANNOUNCE, ended(ANNOUNCE, reply))
    assert actions == (Settle(outcome=SpawnOutcome.SKIPPED, reason="the sub-agent chose to stay silent"),)
    assert spawn.outcome is SpawnOutcome.SKIPPED
    assert spawn.reason == "the sub-agent chose to stay silent"


@pytest.mark.parametrize(
    "reply",
    [
        "ANNOUNCE_SKIP.",
        "announce_skip",
        "ANNOUNCE SKIP",
        "`ANNOUNCE_SKIP`",
        "ANNOUNCE_SKIP ANNOUNCE_SKIP",
        "ANNOUNCE_SKIP\nThe disk is full.",
        "I would reply ANNOUNCE_SKIP",
        "REPLY_SKIP",
        "NO_REPLY",
        "",
        None,
    ],
)
def test_nothing_else_does(reply: str | None) -> None:
    assert isinstance(step_spawn(ANNOUNCE, ended(ANNOUNCE, reply))[1][0], PostText)


@pytest.mark.parametrize("state", FAILED)
@pytest.mark.parametrize(("error", "told"), [("no answer", ": no answer"), (None, "")])
def test_an_announce_that_fails_falls_back_on_the_childs_own_run(state: RunState, error: str | None, told: str) -> None:
    _, (post,) = step_spawn(ANNOUNCE, ended(ANNOUNCE, "Half a sent", state, error=error))
    assert isinstance(post, PostText)
    status, result, notes, _ = post.text.split("\n")
    assert (status, result) == ("Status: success", "Result: 3 % are left.")
    assert notes == f"Notes: the announce step ended as {state}{told}"


# Cancelled


@pytest.mark.parametrize(("spawn", "open_run", "at"), [(RUN, "c1", 7_000), (ANNOUNCE, "s1/announce", ENDED_AT)])
def test_a_cancelled_child_is_settled_and_its_open_run_aborted(spawn: Spawn, open_run: str, at: int) -> None:
    now, actions = step_spawn(spawn, CANCELLED)
    settled = Settle(outcome=SpawnOutcome.CANCELLED, reason="its requester was stopped")
    assert actions == (settled, AbortRun(open_run))
    assert (now.state, now.run_id, now.reason) == (SpawnState.DONE, None, "its requester was stopped")
    assert now.ended_at == at
    aborted = ended(now, "half", RunState.ABORTED, run_id=open_run)
    assert step_spawn(now, aborted) == (now, ()), "the end of the aborted run is not announced"


# Rows


@pytest.mark.parametrize(
    "spawn",
    [
        *STATES.values(),
        spawned(address=WEBCHAT, label="«ö»\n", task="\x00 ```", rules=SpawnRules(deletes=True, archive_after_ms=0)),
        spawned(child=parse("agent:ops:discord:group:a%3Ab"), path=(), transcript=None),
    ],
)
def test_a_spawn_is_read_as_it_was_written(spawn: Spawn) -> None:
    assert read_spawn(write_spawn(spawn)) == spawn


# Whatever happens

OPEN = "the open run"
REPLIES = st.sampled_from([None, "", "ANNOUNCE_SKIP", " ANNOUNCE_SKIP\n", "ANNOUNCE_SKIP!", "NO_REPLY", "Full."])
RUN_ENDS = st.builds(
    ChildRunEnded,
    run_id=st.sampled_from([OPEN] * 3 + ["c1", "s1/announce", "r9", "elsewhere"]),
    state=st.sampled_from([RunState.OK] * 3 + list(RunState)),
    findings=st.sampled_from([FINDINGS, Findings()]),
    at=st.integers(1, 2**53),
    reply=REPLIES,
    error=st.sampled_from([None, "boom"]),
)
CANCELS = st.builds(ChildCancelled, reason=st.sampled_from(["stopped", "deleted"]), at=st.integers(1, 2**53))
SEQUENCES = st.lists(st.one_of(RUN_ENDS, RUN_ENDS, RUN_ENDS, CANCELS), max_size=10)
STARTS = st.builds(
    spawned,
    requester_run=st.sampled_from(["r9", None]),
    address=st.sampled_from([ADDRESS, None]),
    label=st.sampled_from(["disk", None]),
)


class SpawnWorld:
    """Feeds a spawn what may happen, and keeps count of what it asks for."""

    def __init__(self, spawn: Spawn) -> None:
        self.spawn = spawn
        self.open_runs = {spawn.child_run}
        self.actions: list[Action] = []
        self.child_end: ChildRunEnded | None = None

    def feed(self, event: Event) -> None:
        before = self.spawn
        if isinstance(event, ChildRunEnded):
            event = replace(event, run_id=before.run_id or "none") if event.run_id == OPEN else event
        is_taken = isinstance(event, ChildRunEnded) and event.run_id == before.run_id and event.state.is_finished
        now, actions = step_spawn(before, event)
        if isinstance(event, ChildRunEnded) and is_taken:
            self.open_runs.discard(event.run_id)
            self.child_end = event if before.state is SpawnState.RUN else self.child_end
        self._check(before, event, now, actions, is_taken=is_taken)
        self.spawn = now
        self.actions += actions

    def _check(self, before: Spawn, event: Event, now: Spawn, actions: tuple[Action, ...], *, is_taken: bool) -> None:
        assert read_spawn(write_spawn(now)) == now
        assert step_spawn(now, event) == (now, ()), "the same event again does nothing"
        if before.state is SpawnState.DONE or not (is_taken or isinstance(event, ChildCancelled)):
            assert (now, actions) == (before, ())
        for action in actions:
            if isinstance(action, QueueRun):
                assert self.child_end is event, "an announce follows the child's own run"
                assert self.child_end.state is RunState.OK
                self.open_runs.add(action.id)
            elif isinstance(action, AbortRun):
                assert isinstance(event, ChildCancelled)
                self.open_runs.remove(action.run_id)
        assert self.open_runs == ({now.run_id} - {None})
        assert len(self.open_runs) == (now.state is not SpawnState.DONE)


@settings(max_examples=200, deadline=None)
@given(STARTS, SEQUENCES)
def test_whatever_happens_a_spawn_is_settled_at_most_once_and_then_stays_so(spawn: Spawn, events: list[Event]) -> None:
    world = SpawnWorld(spawn)
    for event in events:
        world.feed(event)
    counts = Counter(type(action) for action in world.actions)
    assert counts[PostText] + counts[Settle] == (world.spawn.state is SpawnState.DONE)
    assert counts[QueueRun] <= 1
    assert counts[AbortRun] == (world.spawn.outcome is SpawnOutcome.CANCELLED)
    assert counts[PostText] == (world.spawn.outcome is SpawnOutcome.POSTED)
    if world.child_end is not None and world.child_end.state is not RunState.OK:
        assert not counts[QueueRun]
        assert counts[PostText] == 1


@settings(max_examples=100, deadline=None)
@given(STARTS, SEQUENCES, REPLIES, REPLIES)
def test_every_spawn_ends_once_its_runs_do(
    spawn: Spawn, events: list[Event], reply: str | None, announced: str | None
) -> None:
    world = SpawnWorld(spawn)
    for event in events:
        world.feed(event)
    for last in (reply, announced):
        world.feed(ended(world.spawn, last))
    assert world.spawn.state is SpawnState.DONE
    assert world.spawn.outcome is not None
    assert world.spawn.ended_at is not None
    assert sum(isinstance(action, PostText | Settle) for action in world.actions) == 1
