"""The send flow: a pure function from an event to the next step of `sessions_send`.

States, and what moves them:

- `primary`: the target works on the request. Its end leads on; a failure ends the exchange.
- `handover`: the primary run has ended, and the waiting call is about to get the outcome as its result. Nothing is
  queued or noted before that result is committed. So turn 1 never refers to a reply that the requester does not have.
  No outcome is lost if the call breaks off. A call that stopped waiting gets no handover: the outcome comes as a
  message.
- `turn`: turn 1 gives the requester the reply, turn 2 gives the target the requester's answer, and so on.
- `announce`: the target, without tools, writes the message to its own chat.
- `done`: the exchange has ended. Only a person's retry of a failed run opens it again.

At most one run is open, and its id is in the exchange. The end of any other run, or the same event again, changes
nothing. The ids of runs follow from the exchange's id, so a unit that runs twice asks for the same run. The unit that
writes the event also executes the actions. Runs that end by an action come back as events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from backchannel.core.commands.control_words import REPLY_SKIP, is_silent
from backchannel.core.flows.exchange_texts import announce_text, failure_text, late_reply_text, primary_texts, turn_text
from backchannel.core.flows.exchange_values import (
    Action,
    AddNote,
    Change,
    Deliver,
    EarlyEnding,
    Event,
    Exchange,
    ExchangeOutcome,
    ExchangeState,
    Party,
    Reopen,
    SendRequest,
    SessionInterrupted,
    Stepped,
    StepRetried,
    WaitEnd,
    WaitEnded,
)
from backchannel.core.flows.flow import AbortRun, FlowRefused, QueueRun, RunEnded, Settle
from backchannel.core.messages import FlowStep, Provenance, ProvenanceKind
from backchannel.core.policy.limits import ExchangeLimitSettings, Wait, go_on, may_go_on, may_wait
from backchannel.core.runs import RunKind, RunState
from backchannel.core.sessions import Address

SEND_TOOL = "sessions_send"

_NOWHERE = ("internal", "unknown")
_TARGET_GONE = "the target was deleted"
_CHANGED = {Change.RESET: "was reset", Change.STOP: "was stopped", Change.DELETE: "was deleted"}


def open_exchange(
    request: SendRequest, waits: Iterable[Wait], limits: ExchangeLimitSettings, show: Callable[[str], str] = str
) -> Stepped | FlowRefused:
    """Begin an exchange with its primary run, or refuse it for a circle of waits or a limit of its chain."""
    requester, target = request.requester, request.target
    if request.is_waiting and requester is not None:
        decision = may_wait(waits, str(requester.key), str(target.key), show)
        if not decision.allowed:
            return FlowRefused(decision)
    decision = may_go_on(request.origin, target.name, limits)
    if not decision.allowed:
        return FlowRefused(decision)
    chain, path = go_on(request.origin, target.name, request.run_id)
    exchange = Exchange(
        id=request.exchange_id,
        requester=requester,
        target=target,
        request=request.message,
        call_id=request.call_id,
        primary_run=request.run_id,
        max_turns=limits.max_ping_pong_turns,
        chain=chain,
        path=path,
        address=request.address if is_deliverable(request.address) else None,
        is_waiting=request.is_waiting,
        run_id=request.run_id,
        reply_to=request.reply_to,
    )
    return exchange, (primary_run(exchange),)


def step_exchange(exchange: Exchange, event: Event, address_now: Address | None = None) -> Stepped:
    """Return the next step. `address_now` is used if the exchange has no frozen address of its target."""
    match event:
        case RunEnded() if event.run_id == exchange.run_id and event.state.is_finished:
            return _run_ended(exchange, event, address_now)
        case WaitEnded():
            return _wait_ended(exchange, event, address_now)
        case SessionInterrupted() if exchange.state is not ExchangeState.DONE:
            return _interrupted(exchange, event)
        case StepRetried() if exchange.state is ExchangeState.DONE:
            return _retried(exchange, event)
    return exchange, ()


def why_no_loop(exchange: Exchange) -> str | None:
    """Return why there are no reply-back turns; None if there are turns."""
    if exchange.requester is None:
        return "the requester is not a session"
    if exchange.is_same_session:
        return "requester and target are one session"
    if exchange.requester.key.is_subagent:
        return "the requester is a sub-agent"
    if exchange.max_turns == 0:
        return "session.agentToAgent.maxPingPongTurns is 0"
    if is_silent(exchange.reply):
        return "the reply is empty or a control word"
    return exchange.loop_end


def why_loop_ends(exchange: Exchange, turn: RunEnded) -> str | None:
    """Return why the turn that ended was the last; None if another follows."""
    if turn.state is not RunState.OK:
        return f"turn {exchange.turn} ended as {turn.state}"
    if not _text(turn.reply).strip():
        return f"turn {exchange.turn} ended without a reply"
    if _text(turn.reply).strip() == REPLY_SKIP:
        return f"turn {exchange.turn} ended with {REPLY_SKIP}"
    if exchange.turn >= exchange.max_turns:
        return f"turn {exchange.turn} was the last of {exchange.max_turns}"
    return exchange.loop_end


def is_deliverable(address: Address | None) -> bool:
    """True if messages can be delivered to an address."""
    return address is not None and address.channel not in _NOWHERE


# A run ended


def _run_ended(exchange: Exchange, event: RunEnded, address_now: Address | None) -> Stepped:
    exchange = replace(exchange, run_id=None)
    match exchange.state:
        case ExchangeState.PRIMARY:
            return _primary_ended(exchange, event, address_now)
        case ExchangeState.TURN:
            return _turn_ended(exchange, event, address_now)
    return _announce_ended(exchange, event)


def _primary_ended(exchange: Exchange, event: RunEnded, address_now: Address | None) -> Stepped:
    if event.state is RunState.OK:
        exchange = replace(exchange, reply=_text(event.reply), latest=_text(event.reply))
    else:
        exchange = replace(exchange, failure=_why(event, "primary"))
    if exchange.is_waiting and exchange.call_id is not None:
        return replace(exchange, state=ExchangeState.HANDOVER), ()
    # A program that waits can read the answer from the run again. A call inside a run has only its result.
    return _outcome_is_there(exchange, address_now, is_told=exchange.is_waiting)


def _outcome_is_there(exchange: Exchange, address_now: Address | None, *, is_told: bool) -> Stepped:
    """Continue after the primary run. `is_told` is true if the caller has the outcome."""
    exchange = replace(exchange, is_waiting=False)
    if exchange.failure is not None:
        notes = () if is_told else failure_note(exchange, exchange.failure)
        failed = replace(exchange, loop_end=exchange.loop_end or exchange.failure)
        return _settle(failed, ExchangeOutcome.CANCELLED, exchange.failure, notes)
    exchange = replace(exchange, has_reply=is_told)
    why = why_no_loop(exchange)
    return _next_turn(exchange) if why is None else _leave_loop(exchange, why, address_now)


def _turn_ended(exchange: Exchange, event: RunEnded, address_now: Address | None) -> Stepped:
    if exchange.turn == 1 and event.has_started:
        exchange = replace(exchange, has_reply=True)
    if event.state is RunState.OK and _text(event.reply).strip() not in ("", REPLY_SKIP):
        exchange = replace(exchange, latest=event.reply)
    why = why_loop_ends(exchange, event)
    return _next_turn(exchange) if why is None else _leave_loop(exchange, why, address_now)


def _next_turn(exchange: Exchange) -> Stepped:
    turn = exchange.turn + 1
    exchange = replace(exchange, state=ExchangeState.TURN, turn=turn, run_id=turn_id(exchange, turn))
    return exchange, (turn_run(exchange),)


def _leave_loop(exchange: Exchange, why: str, address_now: Address | None) -> Stepped:
    """Continue with the announce. The requester gets a reply that it does not have yet as a note."""
    notes = late_reply_note(exchange)
    exchange = replace(exchange, loop_end=exchange.loop_end or why, has_reply=exchange.has_reply or bool(notes))
    if exchange.ending is EarlyEnding.CANCELLED:
        return _settle(exchange, ExchangeOutcome.CANCELLED, _TARGET_GONE, notes)
    if exchange.target.key.is_subagent:
        return _settle(exchange, ExchangeOutcome.NO_CHANNEL, "the target is a sub-agent", notes)
    address = exchange.address or address_now
    if not is_deliverable(address):
        return _settle(exchange, ExchangeOutcome.NO_CHANNEL, "the target has no channel to announce to", notes)
    exchange, queued = _announce(replace(exchange, address=address))
    return exchange, (*notes, *queued)


def _announce(exchange: Exchange) -> Stepped:
    count = exchange.announces + 1
    run_id = _announce_id(exchange, count)
    exchange = replace(exchange, state=ExchangeState.ANNOUNCE, run_id=run_id, announces=count, announces_again=False)
    return exchange, (announce_run(exchange),)


def _announce_ended(exchange: Exchange, event: RunEnded) -> Stepped:
    if exchange.ending is EarlyEnding.CANCELLED:
        return _settle(exchange, ExchangeOutcome.CANCELLED, _TARGET_GONE)
    if event.state is RunState.ABORTED and exchange.announces_again:
        return _announce(exchange)
    if event.state is not RunState.OK:
        return _settle(exchange, ExchangeOutcome.FAILED, _why(event, "announce"))
    if is_silent(event.reply):
        return _settle(exchange, ExchangeOutcome.SKIPPED, "the target chose to stay silent")
    if exchange.address is None:
        raise ValueError(f"exchange {exchange.id!r} announces without an address")
    done = replace(exchange, state=ExchangeState.DONE, outcome=ExchangeOutcome.ANNOUNCED, reason=None)
    return done, (Deliver(run_id=event.run_id, text=_text(event.reply), address=exchange.address),)


def _settle(exchange: Exchange, outcome: ExchangeOutcome, reason: str, before: tuple[Action, ...] = ()) -> Stepped:
    """End the exchange. Its receipt is settled once, even if a failed primary run is retried later."""
    if exchange.outcome is not None:
        return replace(exchange, state=ExchangeState.DONE), before
    done = replace(exchange, state=ExchangeState.DONE, outcome=outcome, reason=reason)
    return done, (*before, Settle(outcome=outcome, reason=reason))


# The caller's wait ended


def _wait_ended(exchange: Exchange, event: WaitEnded, address_now: Address | None) -> Stepped:
    if exchange.state is ExchangeState.PRIMARY and exchange.is_waiting:
        return replace(exchange, is_waiting=False), ()
    if exchange.state is ExchangeState.HANDOVER and event.how is not WaitEnd.EXPIRED:  # too late: the outcome is there
        return _outcome_is_there(exchange, address_now, is_told=event.how is WaitEnd.ANSWERED)
    return exchange, ()


# A session was reset, stopped or deleted


def _interrupted(exchange: Exchange, event: SessionInterrupted) -> Stepped:
    """Shorten the exchange. The end of its open run then continues it.

    A running run of the other session may finish: nobody asked to stop it.
    """
    if event.change is Change.DELETE and _is(exchange.requester, event):
        exchange = replace(exchange, is_requester_gone=True)
    if (
        exchange.state is ExchangeState.ANNOUNCE
        and event.change is Change.RESET
        and event.active_run == exchange.run_id
    ):
        return replace(exchange, announces_again=True), ()
    ending = ending_for(exchange, event)
    if ending is None or exchange.ending in (ending, EarlyEnding.CANCELLED):
        return exchange, ()
    who = "target" if _is(exchange.target, event) else "requester"
    why = f"the {who} {_CHANGED[event.change]}"
    shorter = replace(exchange, ending=ending, loop_end=exchange.loop_end or why)
    if exchange.run_id is None or (exchange.state is ExchangeState.PRIMARY and ending is EarlyEnding.LOOP_OVER):
        return shorter, ()
    return shorter, (AbortRun(run_id=exchange.run_id, even_running=_is(exchange.speaker, event)),)


def ending_for(exchange: Exchange, event: SessionInterrupted) -> EarlyEnding | None:
    """Return how a change of a session shortens an open exchange; None if it continues unchanged."""
    if _is(exchange.target, event):
        if event.change is Change.DELETE or exchange.state is ExchangeState.PRIMARY:
            return EarlyEnding.CANCELLED
    elif not _is(exchange.requester, event):
        return None
    return None if exchange.state is ExchangeState.ANNOUNCE else EarlyEnding.LOOP_OVER


def _is(party: Party | None, event: SessionInterrupted) -> bool:
    return party is not None and party.key == event.key


# A person retries


def _retried(exchange: Exchange, event: StepRetried) -> Stepped:
    if exchange.outcome is ExchangeOutcome.FAILED:
        return _announce_retried(exchange, event)
    if event.run_id == exchange.primary_run and exchange.reply is None:
        # The receipt is settled, the caller has its result, and the turns are over. Only a note can bring a reply now.
        return replace(
            exchange, state=ExchangeState.PRIMARY, run_id=event.run_id, ending=EarlyEnding.CANCELLED, failure=None
        ), ()
    return exchange, ()


def why_not_retried(exchange: Exchange, run_id: str) -> str | None:
    """Return why a retry of a run would not help its exchange; None if the exchange would use the result."""
    if step_exchange(exchange, StepRetried(run_id=run_id)) != (exchange, ()):
        return None
    if exchange.state is ExchangeState.HANDOVER and run_id == exchange.primary_run:
        return "its caller is about to be told how it ended; retry it when that is done"
    if exchange.state is ExchangeState.DONE:
        return f"its exchange is over ({exchange.outcome}: see the receipt) and would ignore the result"
    return f"its exchange has continued without it, to {exchange.state}, and would ignore the result"


def _announce_retried(exchange: Exchange, event: StepRetried) -> Stepped:
    reopened = replace(exchange, outcome=None, reason=None)
    if event.run_id is None:
        exchange, queued = _announce(reopened)
        return exchange, (Reopen(), *queued)
    if event.run_id != _announce_id(exchange, exchange.announces):
        return exchange, ()
    return replace(reopened, state=ExchangeState.ANNOUNCE, run_id=event.run_id, announces_again=False), (Reopen(),)


def _why(event: RunEnded, what: str) -> str:
    told = f": {event.error}" if event.error else ""
    return f"the {what} run ended as {event.state}{told}"


def _text(text: str | None) -> str:
    return text or ""


# The runs and notes of an exchange: their session, their text, and their named author


def turn_id(exchange: Exchange, turn: int) -> str:
    """Return the id of a turn's run. It is fixed, so a unit that runs twice asks for the same run."""
    return f"{exchange.id}/turn/{turn}"


def _announce_id(exchange: Exchange, count: int) -> str:
    """Return the id of the n-th announce run."""
    return f"{exchange.id}/announce/{count}"


def primary_run(exchange: Exchange) -> QueueRun:
    """Make the run that works on the request."""
    return _run(exchange, RunKind.PRIMARY, primary_texts(exchange), _from(exchange, exchange.requester, FlowStep.ASK))


def turn_run(exchange: Exchange) -> QueueRun:
    """Make the run of the current turn. Its message is the other side's reply."""
    other = exchange.target if exchange.speaker is exchange.requester else exchange.requester
    says = replace(_from(exchange, other, FlowStep.TURN), turn=exchange.turn, max_turns=exchange.max_turns)
    return _run(exchange, RunKind.TURN, (turn_text(exchange),), says)


def announce_run(exchange: Exchange) -> QueueRun:
    """Make the run that writes the message to the target's chat. The gateway is its author."""
    asks = Provenance(
        kind=ProvenanceKind.INTERNAL_SYSTEM, source_tool=SEND_TOOL, exchange_id=exchange.id, step=FlowStep.ANNOUNCE
    )
    return _run(exchange, RunKind.ANNOUNCE, (announce_text(exchange),), asks)


def late_reply_note(exchange: Exchange) -> tuple[AddNote, ...]:
    """Make the note with a late reply; none if there is no reply or no requester."""
    taker = exchange.note_taker
    if taker is None or exchange.has_reply or is_silent(exchange.reply):
        return ()
    return (_note(exchange, taker, late_reply_text(exchange), FlowStep.LATE_REPLY),)


def failure_note(exchange: Exchange, why: str) -> tuple[AddNote, ...]:
    """Make the note that no reply will come; none if the requester knows it, or there is no requester."""
    taker = exchange.note_taker
    if taker is None or exchange.outcome is not None:
        return ()
    return (_note(exchange, taker, failure_text(exchange, why), FlowStep.FAILURE),)


def _run(exchange: Exchange, kind: RunKind, texts: tuple[str, ...], provenance: Provenance) -> QueueRun:
    if exchange.run_id is None:
        raise ValueError(f"exchange {exchange.id!r} has no run to queue")
    return QueueRun(
        id=exchange.run_id,
        kind=kind,
        key=exchange.speaker.key,
        texts=texts,
        provenance=provenance,
        chain=exchange.chain,  # turns and announces keep the hop of their send
        reply_to=exchange.reply_to if exchange.speaker is exchange.requester else None,
    )


def _note(exchange: Exchange, taker: Party, text: str, step: FlowStep) -> AddNote:
    return AddNote(key=taker.key, text=text, provenance=_from(exchange, exchange.target, step))


def _from(exchange: Exchange, source: Party | None, step: FlowStep) -> Provenance:
    """Return who wrote a message: the other session, or a person outside all sessions."""
    if source is None:
        return Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_tool=SEND_TOOL, exchange_id=exchange.id, step=step)
    return Provenance(
        kind=ProvenanceKind.INTER_SESSION,
        source_session_key=source.name,
        source_channel=source.channel,
        source_tool=SEND_TOOL,
        exchange_id=exchange.id,
        step=step,
    )
