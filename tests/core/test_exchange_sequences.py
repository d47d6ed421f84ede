"""Whole exchanges, whatever happens on the way: each ends, each reply arrives, nothing is done twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backchannel.core.commands.control_words import is_silent
from backchannel.core.flows.exchange import step_exchange
from backchannel.core.flows.exchange_values import (
    Action,
    AddNote,
    Change,
    Deliver,
    Event,
    Exchange,
    ExchangeOutcome,
    ExchangeState,
    SessionInterrupted,
    StepRetried,
    WaitEnd,
    WaitEnded,
    read_exchange,
    write_exchange,
)
from backchannel.core.flows.flow import QueueRun, RunEnded, Settle
from backchannel.core.runs import RunKind, RunState

from .exchanges import ADDRESS, CHILD, A, B, ended, opened

OPEN = "the open run"
REPLIES = st.sampled_from([None, "", " ", "REPLY_SKIP", "ANNOUNCE_SKIP", "NO_REPLY", "One.", "Two.", "Three."])
ENDS = st.sampled_from([RunState.OK] * 5 + [RunState.ERROR, RunState.TIMEOUT, RunState.ABORTED])
RUNS = st.sampled_from([OPEN] * 6 + ["p1", "x1/turn/1", "x1/turn/2", "x1/announce/1", "elsewhere"])
SETUPS = st.fixed_dictionaries(
    {
        "max_turns": st.integers(0, 5),
        "requester": st.sampled_from([A, A, A, CHILD, None]),
        "target": st.sampled_from([B, B, B, CHILD, A]),
        "call_id": st.sampled_from(["r9/0/1", None]),
        "is_waiting": st.booleans(),
        "address": st.sampled_from([ADDRESS, None]),
    }
).filter(lambda setup: not (setup["is_waiting"] and setup["requester"] == setup["target"]))
RUN_ENDS = st.builds(
    RunEnded, run_id=RUNS, state=ENDS, reply=REPLIES, error=st.none() | st.just("boom"), has_started=st.booleans()
).filter(lambda end: end.has_started or end.state is RunState.ABORTED)
CHANGES = st.builds(
    SessionInterrupted,
    key=st.sampled_from([A.key, B.key, CHILD.key]),
    change=st.sampled_from(Change),
    active_run=st.sampled_from([None, OPEN]),
)
EVENTS = st.lists(st.one_of(RUN_ENDS, st.builds(WaitEnded, st.sampled_from(WaitEnd)), CHANGES), max_size=12)
LAST = st.lists(st.tuples(REPLIES, ENDS, st.sampled_from([WaitEnd.ANSWERED, WaitEnd.BROKEN])), min_size=10, max_size=10)
"""How whatever is open at last ends; ten ends are always enough."""
Ends = list[tuple[str | None, RunState, WaitEnd]]


class ExchangeWorld:
    """Feeds an exchange what can really happen, and keeps count of what it asks for."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.actions: list[Action] = []
        self.turns: list[QueueRun] = []
        self.announces = 0
        self.reasons_for_announces = 1
        self.has_had_reply = False

    def feed(self, event: Event) -> None:
        before = self.exchange
        self._watch(before, event)
        now, actions = step_exchange(before, event, address_now=None)
        assert read_exchange(write_exchange(now)) == now
        if before.state is ExchangeState.DONE and not isinstance(event, StepRetried):
            assert (now, actions) == (before, ())
        if not (isinstance(event, RunEnded) and event.run_id == now.run_id):
            assert step_exchange(now, event) == (now, ()), "the same event again does nothing"
        assert (now.run_id is None) is (now.state in (ExchangeState.HANDOVER, ExchangeState.DONE))
        self.exchange = now
        self._count(actions)

    def _watch(self, before: Exchange, event: Event) -> None:
        match event:
            case WaitEnded(how=WaitEnd.ANSWERED):
                self.has_had_reply |= before.state is ExchangeState.HANDOVER and before.failure is None
            case RunEnded(has_started=True) if event.run_id == before.run_id and before.state is ExchangeState.TURN:
                self.has_had_reply |= before.turn == 1
            case SessionInterrupted(change=Change.RESET) if event.active_run is not None:
                self.reasons_for_announces += 1
            case StepRetried():
                self.reasons_for_announces += 1

    def _count(self, actions: tuple[Action, ...]) -> None:
        self.actions += actions
        for action in actions:
            if isinstance(action, QueueRun):
                assert action.id == self.exchange.run_id
                if action.kind is RunKind.TURN:
                    self.turns.append(action)
                else:
                    assert action.key == self.exchange.target.key
                    self.announces += 1
            elif isinstance(action, AddNote):
                assert not self.exchange.is_requester_gone
                if self.exchange.reply and self.exchange.reply in action.text:
                    assert not self.has_had_reply, "no reply is given twice"
                    self.has_had_reply = True

    def drain(self, last: Ends) -> None:
        """Let everything that is open end."""
        for reply, state, how in last:
            if self.exchange.state is ExchangeState.HANDOVER:
                self.feed(WaitEnded(how))
            elif self.exchange.state is not ExchangeState.DONE:
                self.feed(ended(self.exchange, reply, state))
        assert self.exchange.state is ExchangeState.DONE


def _meant(event: Event, exchange: Exchange) -> Event:
    """Put the id of the run that is open now into an event about it."""
    match event:
        case RunEnded(run_id="the open run"):
            return replace(event, run_id=exchange.run_id or "none")
        case SessionInterrupted(active_run="the open run"):
            return replace(event, active_run=exchange.run_id)
    return event


def _live(setup: dict[str, Any], events: list[Event], last: Ends) -> ExchangeWorld:
    facts = {name: value for name, value in setup.items() if name != "max_turns"}
    world = ExchangeWorld(opened(setup["max_turns"], **facts))
    for event in events:
        world.feed(_meant(event, world.exchange))
    world.drain(last)
    return world


@settings(max_examples=300, deadline=None)
@given(SETUPS, EVENTS, LAST)
def test_whatever_happens_an_exchange_ends_and_its_receipt_is_settled_once(
    setup: dict[str, Any], events: list[Event], last: Ends
) -> None:
    world = _live(setup, events, last)
    kinds = Counter(type(action) for action in world.actions)
    assert kinds[Settle] + kinds[Deliver] == 1
    assert world.exchange.state is ExchangeState.DONE
    assert world.exchange.outcome is not None
    assert (world.exchange.outcome is ExchangeOutcome.ANNOUNCED) is (kinds[Deliver] == 1)
    assert not any(is_silent(action.text) for action in world.actions if isinstance(action, Deliver))


@settings(max_examples=300, deadline=None)
@given(SETUPS, EVENTS, LAST)
def test_turns_alternate_within_their_limit_and_the_announce_comes_last_and_once(
    setup: dict[str, Any], events: list[Event], last: Ends
) -> None:
    world = _live(setup, events, last)
    exchange = world.exchange
    assert len(world.turns) == exchange.turn <= exchange.max_turns
    sides = [exchange.requester, exchange.target] * 3
    assert [turn.key for turn in world.turns] == [side.key for side in sides[: len(world.turns)] if side]
    assert world.announces <= world.reasons_for_announces
    queued = [action.kind for action in world.actions if isinstance(action, QueueRun)]
    assert queued == sorted(queued, key=lambda kind: kind is RunKind.ANNOUNCE)
    if not world.announces:
        assert exchange.outcome in (ExchangeOutcome.CANCELLED, ExchangeOutcome.NO_CHANNEL)


@settings(max_examples=300, deadline=None)
@given(SETUPS, EVENTS, LAST)
def test_a_reply_always_reaches_a_requester_that_is_still_there(
    setup: dict[str, Any], events: list[Event], last: Ends
) -> None:
    is_program_waiting = setup["is_waiting"] and setup["call_id"] is None
    world = _live(setup, events, last)
    exchange = world.exchange
    is_there = exchange.requester is not None and not exchange.is_requester_gone and not exchange.is_same_session
    if not is_there or is_silent(exchange.reply):
        return
    assert exchange.has_reply
    # A program that waited has the reply from the run; everybody else had it in a transcript.
    assert world.has_had_reply or is_program_waiting


@settings(max_examples=300, deadline=None)
@given(SETUPS, EVENTS, LAST, st.sampled_from([None, "p1", "x1/announce/1", "x1/turn/1"]))
def test_a_retry_ends_too_and_settles_nothing_twice(
    setup: dict[str, Any], events: list[Event], last: Ends, run_id: str | None
) -> None:
    world = _live(setup, events, last)
    outcome = world.exchange.outcome
    world.feed(StepRetried(run_id=run_id))
    world.drain(last)
    settled = sum(isinstance(action, (Settle, Deliver)) for action in world.actions)
    if world.exchange.outcome is outcome is not ExchangeOutcome.FAILED:
        assert settled == 1
    else:
        assert outcome is ExchangeOutcome.FAILED
        assert settled in (1, 2)
    assert sum(isinstance(action, Deliver) for action in world.actions) <= 1


class Call:
    """The call in a run that sent, as a process repeats it that dies again and again before its result is written."""

    def __init__(self, world: ExchangeWorld) -> None:
        self._world = world
        self.written: str | None = None
        """What its result says, once it is written."""
        self._promised: str | None = None

    def answers(self) -> str | None:
        """Tell what it would answer now; None means that it waits on."""
        exchange = self._world.exchange
        if exchange.is_left:
            return "timeout"
        if exchange.state is ExchangeState.HANDOVER:
            return "ok" if exchange.failure is None else "error"
        return None

    def look(self) -> None:
        """Answer, and die before that is written."""
        answer = self.answers()
        assert self._promised in (None, answer), "a call that is repeated answers the same"
        self._promised = answer

    def expire(self) -> None:
        if self._world.exchange.state is ExchangeState.PRIMARY:  # else the run has ended, and its outcome counts
            self._world.feed(WaitEnded(WaitEnd.EXPIRED))
        self.look()

    def write(self) -> None:
        self.look()
        if self.written is None and self._promised is not None:
            self._close(self._promised, WaitEnd.ANSWERED)

    def break_off(self) -> None:
        if self.written is None:
            self._close("broken off", WaitEnd.BROKEN)

    def _close(self, written: str, how: WaitEnd) -> None:
        if not self._world.exchange.is_left:
            self._world.feed(WaitEnded(how))
        self.written = written


CALLS = st.lists(st.sampled_from(["expire", "look", "write", "break off", "run", "run", "fail"]), max_size=8)


@settings(max_examples=500, deadline=None)
@given(st.booleans(), st.integers(0, 2), CALLS, LAST)
def test_what_the_call_answers_and_what_is_said_afterwards_agree(
    waits: bool, max_turns: int, steps: list[str], last: Ends
) -> None:
    world = ExchangeWorld(opened(max_turns, is_waiting=waits))
    call = Call(world)
    for what in (*steps, "run", "write"):
        if call.written is not None and what not in ("run", "fail"):
            continue
        match what:
            case "run" if world.exchange.state is ExchangeState.PRIMARY:
                world.feed(ended(world.exchange, "One."))
            case "fail" if world.exchange.state is ExchangeState.PRIMARY:
                world.feed(ended(world.exchange, None, RunState.ERROR))
            case "expire":
                call.expire()
            case "look":
                call.look()
            case "write":
                call.write()
            case "break off":
                call.break_off()
    world.drain(last)
    notes = [action.text for action in world.actions if isinstance(action, AddNote)]
    said = [turn.texts[0] for turn in world.turns[:1]] + notes
    has_it = [text for text in said if "you already have this reply" in text]
    too_late = [text for text in said if "no longer waiting" in text]
    if call.written == "ok":
        assert not too_late and len(has_it) == (max_turns > 0)
    elif call.written == "error":
        assert not said
    else:
        assert len(too_late) == 1 and not has_it
