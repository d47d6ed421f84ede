"""The send flow: every state with every event against a table of its own, then the rules one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from backchannel.core.flows.exchange import open_exchange, step_exchange, why_not_retried
from backchannel.core.flows.exchange_values import (
    AddNote,
    Change,
    Deliver,
    Event,
    Exchange,
    ExchangeOutcome,
    ExchangeState,
    Party,
    SessionInterrupted,
    StepRetried,
    WaitEnd,
    WaitEnded,
    read_exchange,
    write_exchange,
)
from backchannel.core.flows.flow import FlowRefused, QueueRun, RunEnded, Settle
from backchannel.core.messages import ProvenanceKind
from backchannel.core.policy.limits import ExchangeLimitSettings, Lineage, Wait
from backchannel.core.runs import Chain, RunKind, RunState
from backchannel.core.sessions import WEBCHAT, Address

from .exchanges import ADDRESS, CHILD, ORIGIN, A, B, after, ended, opened, parse, request, shown

FAILED = (RunState.ERROR, RunState.TIMEOUT, RunState.ABORTED)
EXPIRED, ANSWERED, BROKEN = WaitEnded(WaitEnd.EXPIRED), WaitEnded(WaitEnd.ANSWERED), WaitEnded(WaitEnd.BROKEN)


def change(party: Party, what: Change, active_run: str | None = None) -> SessionInterrupted:
    return SessionInterrupted(key=party.key, change=what, active_run=active_run)


# Every state with every event. A is the requester, B the target; B has a channel, and two turns are allowed.

WAITING = opened(is_waiting=True)
ALONE = opened()
HANDOVER = after(WAITING, "Full.")
FAILED_HANDOVER = after(WAITING, ended(WAITING, None, RunState.ERROR))
LATE = after(ALONE, "Full.")
GIVEN = after(HANDOVER, ANSWERED)
SECOND = after(LATE, "Which?")
ANNOUNCE = after(SECOND, "All.")

STATES: dict[str, Exchange] = {
    "primary, a call waits": WAITING,
    "primary, a program waits": opened(is_waiting=True, call_id=None, origin=None),
    "primary, nobody waits": ALONE,
    "primary, loop over": after(ALONE, change(A, Change.RESET)),
    "primary, requester gone": after(ALONE, change(A, Change.DELETE)),
    "primary, cancelled": after(ALONE, change(B, Change.RESET)),
    "primary, retried": after(ALONE, ended(ALONE, None, RunState.ERROR), StepRetried(run_id="p1")),
    "handover": HANDOVER,
    "handover, loop over": after(HANDOVER, change(B, Change.STOP)),
    "handover, cancelled": after(HANDOVER, change(B, Change.DELETE)),
    "handover, failed": FAILED_HANDOVER,
    "handover, failed, requester gone": after(FAILED_HANDOVER, change(A, Change.DELETE)),
    "turn 1, late": LATE,
    "turn 1, given": GIVEN,
    "turn 1, loop over": after(LATE, change(B, Change.RESET)),
    "turn 1, cancelled": after(LATE, change(B, Change.DELETE)),
    "turn 2, the last": SECOND,
    "announce": ANNOUNCE,
    "announce, reset": after(ANNOUNCE, change(B, Change.RESET, ANNOUNCE.run_id)),
    "announce, cancelled": after(ANNOUNCE, change(B, Change.DELETE)),
    "done, announced": after(ANNOUNCE, "The disk is full."),
    "done, skipped": after(ANNOUNCE, "ANNOUNCE_SKIP"),
    "done, failed": after(ANNOUNCE, ended(ANNOUNCE, None, RunState.ERROR)),
    "done, primary failed": after(ALONE, ended(ALONE, None, RunState.ERROR)),
    "done, no channel": after(opened(max_turns=0, address=None), "Full."),
}

EVENTS: dict[str, Callable[[Exchange], Event]] = {
    "ok": lambda x: ended(x, "Some text."),
    "blank": lambda x: ended(x, " \n"),
    "nothing": lambda x: ended(x, None),
    "reply skip": lambda x: ended(x, " REPLY_SKIP\n"),
    "other word": lambda x: ended(x, "ANNOUNCE_SKIP"),
    "error": lambda x: ended(x, "half", RunState.ERROR, error="boom"),
    "timeout": lambda x: ended(x, "half", RunState.TIMEOUT),
    "aborted": lambda x: ended(x, "half", RunState.ABORTED),
    "aborted in the queue": lambda x: ended(x, None, RunState.ABORTED, has_started=False),
    "another run ended": lambda x: RunEnded(run_id="elsewhere", state=RunState.OK, reply="Hello."),
    "not ended at all": lambda x: ended(x, "Soon.", RunState.RUNNING),
    "expired": lambda x: EXPIRED,
    "answered": lambda x: ANSWERED,
    "broken": lambda x: BROKEN,
    **{
        f"{name} {what}": lambda x, party=party, what=what: change(party, what)  # type: ignore[misc]
        for (name, party), what in itertools.product((("A", A), ("B", B), ("other", CHILD)), Change)
    },
    "B reset at work": lambda x: change(B, Change.RESET, x.run_id or "elsewhere"),
    "B stop at work": lambda x: change(B, Change.STOP, x.run_id or "elsewhere"),
    "retry": lambda x: StepRetried(),
    "retry of the run": lambda x: StepRetried(run_id="x1/announce/1"),
    "retry of the primary": lambda x: StepRetried(run_id="p1"),
    "retry of a turn": lambda x: StepRetried(run_id="x1/turn/1"),
}

SILENT = ("blank", "nothing", "reply skip", "other word")
FAILURES = ("error", "timeout", "aborted", "aborted in the queue")
WAITS = ("expired", "answered", "broken")
A_CHANGES = ("A reset", "A stop", "A delete")
B_CHANGES = ("B reset", "B stop", "B delete", "B reset at work", "B stop at work")
LOOP_ENDS = ("blank", "nothing", "reply skip", "error", "timeout", "aborted")


def cells(*rows: tuple[tuple[str, ...] | str, str]) -> dict[str, str]:
    """Write out the cells of one state; what no row names leaves the exchange exactly as it was."""
    table: dict[str, str] = {}
    for names, expected in rows:
        table |= dict.fromkeys((names,) if isinstance(names, str) else names, expected)
    return table


CANCEL = "done: settle:cancelled"
CANCEL_TELLING = "done: note@A settle:cancelled"
TO_ANNOUNCE = "announce: announce@B"
TO_ANNOUNCE_TELLING = "announce: note@A announce@B"
OPEN_TURN_1 = ((A_CHANGES, "turn: abort"), (B_CHANGES, "turn: abort-if-queued"))

TABLE: dict[str, dict[str, str]] = {
    "primary, a call waits": cells(
        (("ok", *SILENT, *FAILURES), "handover:"),
        ((*WAITS, *A_CHANGES), "primary:"),
        (B_CHANGES, "primary: abort"),
    ),
    "primary, a program waits": cells(
        ("ok", "turn: turn@A"),
        (SILENT, TO_ANNOUNCE),
        (FAILURES, CANCEL),
        ((*WAITS, *A_CHANGES), "primary:"),
        (B_CHANGES, "primary: abort"),
    ),
    "primary, nobody waits": cells(
        ("ok", "turn: turn@A"),
        (SILENT, TO_ANNOUNCE),
        (FAILURES, CANCEL_TELLING),
        (A_CHANGES, "primary:"),
        (B_CHANGES, "primary: abort"),
    ),
    "primary, loop over": cells(
        ("ok", TO_ANNOUNCE_TELLING),
        (SILENT, TO_ANNOUNCE),
        (FAILURES, CANCEL_TELLING),
        ("A delete", "primary:"),
        (B_CHANGES, "primary: abort"),
    ),
    "primary, requester gone": cells(
        (("ok", *SILENT), TO_ANNOUNCE),
        (FAILURES, CANCEL),
        (B_CHANGES, "primary: abort"),
    ),
    "primary, cancelled": cells(
        ("ok", CANCEL_TELLING),
        (SILENT, CANCEL),
        (FAILURES, CANCEL_TELLING),
        ("A delete", "primary:"),
    ),
    "primary, retried": cells(
        ("ok", "done: note@A"),
        ((*SILENT, *FAILURES), "done:"),
        ("A delete", "primary:"),
    ),
    "handover": cells(
        (("answered", "broken"), "turn: turn@A"),
        ((*A_CHANGES, *B_CHANGES), "handover:"),
    ),
    "handover, loop over": cells(
        ("answered", TO_ANNOUNCE),
        ("broken", TO_ANNOUNCE_TELLING),
        (("A delete", "B delete"), "handover:"),
    ),
    "handover, cancelled": cells(
        ("answered", CANCEL),
        ("broken", CANCEL_TELLING),
        ("A delete", "handover:"),
    ),
    "handover, failed": cells(
        ("answered", CANCEL),
        ("broken", CANCEL_TELLING),
        ((*A_CHANGES, *B_CHANGES), "handover:"),
    ),
    "handover, failed, requester gone": cells(
        (("answered", "broken"), CANCEL),
        ("B delete", "handover:"),
    ),
    "turn 1, late": cells(
        (("ok", "other word"), "turn: turn@B"),
        (LOOP_ENDS, TO_ANNOUNCE),
        ("aborted in the queue", TO_ANNOUNCE_TELLING),
        *OPEN_TURN_1,
    ),
    "turn 1, given": cells(
        (("ok", "other word"), "turn: turn@B"),
        ((*LOOP_ENDS, "aborted in the queue"), TO_ANNOUNCE),
        *OPEN_TURN_1,
    ),
    "turn 1, loop over": cells(
        (("ok", "other word", *LOOP_ENDS), TO_ANNOUNCE),
        ("aborted in the queue", TO_ANNOUNCE_TELLING),
        ("A delete", "turn:"),
        ("B delete", "turn: abort-if-queued"),
    ),
    "turn 1, cancelled": cells(
        (("ok", "other word", *LOOP_ENDS), CANCEL),
        ("aborted in the queue", CANCEL_TELLING),
        ("A delete", "turn:"),
    ),
    "turn 2, the last": cells(
        (("ok", "other word", *LOOP_ENDS, "aborted in the queue"), TO_ANNOUNCE),
        (A_CHANGES, "turn: abort-if-queued"),
        (B_CHANGES, "turn: abort"),
    ),
    "announce": cells(
        ("ok", "done: deliver"),
        (SILENT, "done: settle:skipped"),
        (FAILURES, "done: settle:failed"),
        (("A delete", "B reset at work"), "announce:"),
        ("B delete", "announce: abort"),
    ),
    "announce, reset": cells(
        ("ok", "done: deliver"),
        (SILENT, "done: settle:skipped"),
        (("error", "timeout"), "done: settle:failed"),
        (("aborted", "aborted in the queue"), TO_ANNOUNCE),
        ("A delete", "announce:"),
        ("B delete", "announce: abort"),
    ),
    "announce, cancelled": cells(
        (("ok", *SILENT, *FAILURES), CANCEL),
        (("A delete", "B reset at work"), "announce:"),
    ),
    "done, announced": {},
    "done, skipped": {},
    "done, failed": cells(
        ("retry", "announce: reopen announce@B"),
        ("retry of the run", "announce: reopen"),
    ),
    "done, primary failed": cells(("retry of the primary", "primary:")),
    "done, no channel": {},
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, EVENTS)))
def test_every_state_meets_every_event_as_the_table_says(state: str, event: str) -> None:
    before, happened = STATES[state], EVENTS[event](STATES[state])
    now, actions = step_exchange(before, happened)
    expected = TABLE[state].get(event)
    if expected is None:
        assert (now, actions) == (before, ())
        return
    assert now != before
    assert " ".join([f"{now.state}:", *shown(actions)]) == expected
    assert read_exchange(write_exchange(now)) == now
    if not isinstance(happened, RunEnded) or happened.run_id != now.run_id:
        assert step_exchange(now, happened) == (now, ()), "the same event again does nothing"


def test_the_table_names_only_states_and_events_there_are() -> None:
    assert list(TABLE) == list(STATES)
    assert {name for row in TABLE.values() for name in row} <= set(EVENTS)
    assert {exchange.state for exchange in STATES.values()} == set(ExchangeState)


# Opening


def open_with(turns: int = 5, hops: int = 8, runs: int = 100, waits: tuple[Wait, ...] = (), **given: object) -> object:
    limits = ExchangeLimitSettings(max_ping_pong_turns=turns, max_hops=hops, max_chain_runs=runs)
    return open_exchange(request(**given), waits, limits)


def test_an_accepted_send_is_one_run_on_the_target_one_hop_further() -> None:
    result = open_exchange(request(), (), ExchangeLimitSettings())
    assert isinstance(result, tuple)
    exchange, (run,) = result
    assert isinstance(run, QueueRun)
    assert (run.id, run.kind, run.key) == ("p1", RunKind.PRIMARY, B.key)
    assert run.texts[0] == "Is the disk full?"
    assert run.chain == Chain("cause", 3)
    assert exchange.path == (*ORIGIN.path, B.name)
    assert exchange.max_turns == 5
    assert run.provenance.kind is ProvenanceKind.INTER_SESSION
    assert (run.provenance.source_session_key, run.provenance.source_channel) == (A.name, "telegram")
    assert (run.provenance.source_tool, run.provenance.exchange_id) == ("sessions_send", "x1")


def test_an_operators_message_is_not_said_to_come_from_a_session() -> None:
    result = open_exchange(request(requester=None, call_id=None, origin=None), (), ExchangeLimitSettings())
    assert isinstance(result, tuple)
    exchange, (run,) = result
    assert isinstance(run, QueueRun)
    assert run.provenance.kind is ProvenanceKind.EXTERNAL_USER
    assert run.provenance.source_session_key is None
    assert run.chain == exchange.chain == Chain("p1", 0)


@pytest.mark.parametrize(("is_waiting", "is_refused"), [(True, True), (False, False)])
def test_a_circle_is_refused_only_when_the_send_would_wait(is_waiting: bool, is_refused: bool) -> None:
    result = open_with(waits=(Wait(str(B.key), str(A.key)),), is_waiting=is_waiting)
    assert isinstance(result, FlowRefused) is is_refused
    if isinstance(result, FlowRefused):
        assert f"{A.name} → {B.name} → {A.name}" in result.decision.reason


def test_waiting_on_oneself_is_refused() -> None:
    assert isinstance(open_with(target=A, is_waiting=True), FlowRefused)
    assert not isinstance(open_with(target=A), FlowRefused)


def test_an_operator_that_waits_closes_no_circle() -> None:
    assert not isinstance(
        open_with(requester=None, is_waiting=True, waits=(Wait(str(B.key), str(A.key)),)), FlowRefused
    )


def test_a_chain_that_has_gone_too_far_is_refused_with_its_path() -> None:
    for result in (open_with(hops=2), open_with(runs=3)):
        assert isinstance(result, FlowRefused)
        assert " → ".join((*ORIGIN.path, B.name)) in result.decision.reason
    assert not isinstance(open_with(hops=3, runs=4), FlowRefused)


# No loop


@pytest.mark.parametrize(
    ("exchange", "reply", "why"),
    [
        (opened(target=A), "Full.", "one session"),
        (opened(requester=None, call_id=None, origin=None), "Full.", "not a session"),
        (opened(requester=CHILD), "Full.", "sub-agent"),
        (opened(max_turns=0), "Full.", "maxPingPongTurns is 0"),
        *((opened(), reply, "empty or a control word") for reply in ("", " \n", "NO_REPLY", "REPLY_SKIP\n")),
    ],
)
def test_without_a_loop_the_announce_follows_at_once(exchange: Exchange, reply: str, why: str) -> None:
    now, actions = step_exchange(exchange, ended(exchange, reply))
    assert now.state is ExchangeState.ANNOUNCE
    assert [action.kind for action in actions if isinstance(action, QueueRun)] == [RunKind.ANNOUNCE]
    assert why in (now.loop_end or "")


@pytest.mark.parametrize(
    ("exchange", "notes"),
    [
        (opened(max_turns=0), ["agent:main:main"]),
        (opened(requester=CHILD), ["agent:main:subagent:7"]),
        (opened(max_turns=0, call_id=None, origin=None), ["agent:main:main"]),
        (opened(target=A), []),  # it wrote the reply itself
        (opened(requester=None, call_id=None, origin=None), []),
        (opened(max_turns=0, is_waiting=True, call_id=None, origin=None), []),
        (after(opened(max_turns=0, is_waiting=True), EXPIRED), ["agent:main:main"]),
    ],
)
def test_a_late_reply_without_a_loop_becomes_a_note(exchange: Exchange, notes: list[str]) -> None:
    _, actions = step_exchange(exchange, ended(exchange, "It is full."))
    found = [action for action in actions if isinstance(action, AddNote)]
    assert [str(note.key) for note in found] == notes
    assert all("It is full." in note.text and note.provenance.source_session_key == B.name for note in found)


def test_a_reply_that_the_call_gets_in_time_is_no_note() -> None:
    assert shown(step_exchange(after(opened(max_turns=0, is_waiting=True), "Full."), ANSWERED)[1]) == ["announce@B"]


# The loop


@pytest.mark.parametrize("max_turns", range(1, 6))
def test_turns_alternate_from_the_requester_on_up_to_the_limit(max_turns: int) -> None:
    exchange, heard = after(opened(max_turns), "reply 0"), []
    while exchange.state is ExchangeState.TURN:
        before, turn = exchange, exchange.turn
        exchange, (run,) = step_exchange(exchange, ended(exchange, f"reply {turn}"))
        assert isinstance(run, QueueRun)
        assert run.chain == before.chain
        heard.append(before.speaker)
        assert exchange.latest == f"reply {turn}"
    assert heard == ([A, B] * 3)[:max_turns]
    assert exchange.reply == "reply 0"
    assert exchange.state is ExchangeState.ANNOUNCE


def test_a_turn_comes_from_the_other_session() -> None:
    exchange = opened()
    exchange, (first,) = step_exchange(exchange, ended(exchange))
    exchange, (second,) = step_exchange(exchange, ended(exchange))
    assert isinstance(first, QueueRun)
    assert isinstance(second, QueueRun)
    assert (first.id, first.provenance.source_session_key) == ("x1/turn/1", B.name)
    assert (second.id, second.provenance.source_session_key) == ("x1/turn/2", A.name)


@pytest.mark.parametrize("text", ["REPLY_SKIP.", "I say REPLY_SKIP", "reply_skip", "NO_REPLY", "ANNOUNCE_SKIP"])
def test_only_the_exact_word_stops_the_loop(text: str) -> None:
    assert after(LATE, text).state is ExchangeState.TURN


def test_what_stops_the_loop_is_not_the_latest_reply() -> None:
    assert after(SECOND, "REPLY_SKIP").latest == "Which?"
    assert after(SECOND, ended(SECOND, "half an answ", RunState.TIMEOUT)).latest == "Which?"


# The announce


def test_the_announce_has_no_tools_and_goes_where_the_send_froze_it() -> None:
    exchange, (run,) = step_exchange(SECOND, ended(SECOND, "All."), Address(channel="signal", to="elsewhere"))
    assert isinstance(run, QueueRun)
    assert (run.id, run.kind) == ("x1/announce/1", RunKind.ANNOUNCE)
    assert run.provenance.kind is ProvenanceKind.INTERNAL_SYSTEM
    _, actions = step_exchange(exchange, ended(exchange, "Clean up."), Address(channel="signal", to="elsewhere"))
    assert actions[0] == Deliver(run_id="x1/announce/1", text="Clean up.", address=ADDRESS)


@pytest.mark.parametrize("at_first", [None, Address(channel="internal"), Address(channel="unknown")])
def test_a_target_without_an_address_is_announced_to_the_one_it_has_now(at_first: Address | None) -> None:
    exchange = opened(max_turns=0, address=at_first)
    exchange, _ = step_exchange(exchange, ended(exchange), WEBCHAT)
    _, actions = step_exchange(exchange, ended(exchange, "Clean up."), ADDRESS)
    assert actions[0] == Deliver(run_id="x1/announce/1", text="Clean up.", address=WEBCHAT)


@pytest.mark.parametrize(
    ("exchange", "address_now"),
    [(opened(target=CHILD), ADDRESS), (opened(address=None), None), (opened(address=None), Address(channel="unknown"))],
)
def test_without_a_channel_no_announce_is_run(exchange: Exchange, address_now: Address | None) -> None:
    exchange, actions = step_exchange(exchange, ended(exchange, "NO_REPLY"), address_now)
    assert shown(actions) == ["settle:no_channel"]


@pytest.mark.parametrize("text", ["REPLY_SKIP", "NO_REPLY\n", " ANNOUNCE_SKIP"])
def test_no_control_word_is_ever_announced(text: str) -> None:
    assert shown(step_exchange(ANNOUNCE, ended(ANNOUNCE, text))[1]) == ["settle:skipped"]


@pytest.mark.parametrize("state", FAILED)
def test_a_failed_announce_tells_why_and_can_be_retried(state: RunState) -> None:
    failed, (settle,) = step_exchange(ANNOUNCE, ended(ANNOUNCE, "half", state, error="the provider said no"))
    assert isinstance(settle, Settle)
    assert str(state) in settle.reason
    assert "the provider said no" in settle.reason
    again, (_, run) = step_exchange(failed, StepRetried())
    assert isinstance(run, QueueRun)
    assert (run.id, again.run_id, again.outcome) == ("x1/announce/2", "x1/announce/2", None)
    _, actions = step_exchange(again, ended(again, "Clean up."))
    assert actions[0] == Deliver(run_id="x1/announce/2", text="Clean up.", address=ADDRESS)


# When a session changes under an open flow, as requester and as target


def outcome_of(exchange: Exchange, event: SessionInterrupted) -> tuple[ExchangeState, list[str]]:
    """Let a session change, and the open run end as that makes it end."""
    exchange, actions = step_exchange(exchange, event)
    is_stopped = any(word in shown(actions) for word in ("abort", "abort-if-queued"))
    exchange, actions = step_exchange(
        exchange, ended(exchange, "Half.", RunState.ABORTED if is_stopped else RunState.OK)
    )
    if exchange.state is ExchangeState.HANDOVER:
        exchange, actions = step_exchange(exchange, ANSWERED)
    return exchange.state, shown(actions)


@pytest.mark.parametrize("what", Change)
@pytest.mark.parametrize("exchange", [LATE, SECOND], ids=["turn 1", "turn 2"])
def test_a_requester_that_changes_ends_the_loop_and_the_announce_runs(exchange: Exchange, what: Change) -> None:
    assert outcome_of(exchange, change(A, what)) == (ExchangeState.ANNOUNCE, ["announce@B"])


@pytest.mark.parametrize("what", Change)
def test_a_requester_that_changes_does_not_stop_the_primary_run(what: Change) -> None:
    notes = [] if what is Change.DELETE else ["note@A"]
    assert outcome_of(ALONE, change(A, what)) == (ExchangeState.ANNOUNCE, [*notes, "announce@B"])


@pytest.mark.parametrize("what", Change)
def test_a_target_that_changes_before_it_replied_cancels(what: Change) -> None:
    assert outcome_of(WAITING, change(B, what)) == (ExchangeState.DONE, ["settle:cancelled"])


@pytest.mark.parametrize("exchange", [LATE, SECOND], ids=["turn 1", "turn 2"])
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (Change.RESET, (ExchangeState.ANNOUNCE, ["announce@B"])),
        (Change.STOP, (ExchangeState.ANNOUNCE, ["announce@B"])),
        (Change.DELETE, (ExchangeState.DONE, ["settle:cancelled"])),
    ],
)
def test_a_target_that_changes_later_ends_the_loop(
    exchange: Exchange, what: Change, expected: tuple[ExchangeState, list[str]]
) -> None:
    assert outcome_of(exchange, change(B, what)) == expected


def test_an_aborted_turn_is_a_failed_turn_and_an_aborted_primary_a_failed_run() -> None:
    assert shown(step_exchange(LATE, ended(LATE, "half", RunState.ABORTED))[1]) == ["announce@B"]
    aborted = after(WAITING, ended(WAITING, "half", RunState.ABORTED))
    assert shown(step_exchange(aborted, ANSWERED)[1]) == ["settle:cancelled"]


def test_a_failure_is_told_once_as_the_calls_result_or_as_a_note() -> None:
    _, (settle,) = step_exchange(FAILED_HANDOVER, ANSWERED)
    assert settle == Settle(outcome=ExchangeOutcome.CANCELLED, reason="the primary run ended as error")
    _, (note, *_) = step_exchange(FAILED_HANDOVER, BROKEN)
    assert isinstance(note, AddNote)
    assert "the primary run ended as error" in note.text


@pytest.mark.parametrize(
    ("exchange", "is_left"),
    [
        (WAITING, False),
        (HANDOVER, False),
        (FAILED_HANDOVER, False),
        (after(WAITING, EXPIRED), True),
        (after(WAITING, EXPIRED, "Full."), True),
        (after(WAITING, EXPIRED, ended(WAITING, None, RunState.ERROR)), True),
        (GIVEN, True),
        (ALONE, True),
        (opened(is_waiting=False, call_id=None, origin=None), False),
    ],
)
def test_a_call_that_stopped_waiting_is_left_whatever_comes_after(exchange: Exchange, is_left: bool) -> None:
    assert exchange.is_left is is_left


@pytest.mark.parametrize(
    ("state", "run_id", "told"),
    [
        ("done, failed", "x1/announce/1", None),
        ("done, primary failed", "p1", None),
        ("done, announced", "x1/announce/1", "over (announced"),
        ("done, failed", "x1/turn/1", "over (failed"),
        ("announce", "x1/turn/1", "continued without it, to announce"),
        ("handover, failed", "p1", "about to be told"),
        ("turn 1, late", "p1", "continued without it, to turn"),
    ],
)
def test_a_run_is_retried_only_if_its_exchange_takes_it_up(state: str, run_id: str, told: str | None) -> None:
    why = why_not_retried(STATES[state], run_id)
    assert (why is None) if told is None else (told in (why or ""))


def test_a_session_that_is_both_sides_cancels_as_the_target() -> None:
    exchange = opened(target=A)
    exchange, actions = step_exchange(exchange, change(A, Change.DELETE))
    assert shown(actions) == ["abort"]
    assert shown(step_exchange(exchange, ended(exchange, None, RunState.ABORTED))[1]) == ["settle:cancelled"]


def test_keys_are_shown_as_they_can_be_written() -> None:
    main = replace(A, key=parse("agent:main:global"), shown="agent:main:main")
    result = open_exchange(request(requester=main, origin=None), (), ExchangeLimitSettings())
    assert isinstance(result, tuple)
    (run,) = result[1]
    assert isinstance(run, QueueRun)
    assert run.provenance.source_session_key == "agent:main:main"
    assert "global" not in "".join(run.texts)


def test_the_origin_of_a_call_from_outside_is_a_new_chain() -> None:
    assert opened(origin=None).chain == Chain("p1", 0)
    assert opened(origin=Lineage(chain=Chain("c", 0), path=("a",), runs=1)).chain == Chain("c", 1)
