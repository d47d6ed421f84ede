"""Exchanges: the flows of `sessions_send`.

`core/flows/exchange.py` decides, and `__init__.py` takes the step in the commit that caused it. "The primary run ended"
and "turn 1 is in the requester's inbox" are one commit.
"""

from __future__ import annotations

from collections.abc import Callable

from backchannel.core.contracts import Check
from backchannel.core.delivery.delivery import Delivery, DeliveryState, Receipt
from backchannel.core.facts import SessionChanged
from backchannel.core.flows.exchange import open_exchange, step_exchange, why_not_retried
from backchannel.core.flows.exchange_values import (
    Action,
    AddNote,
    Ask,
    Change,
    Deliver,
    Event,
    Exchange,
    ExchangeOpened,
    ExchangeRecord,
    Party,
    Reopen,
    SendRequest,
    SessionInterrupted,
    Stepped,
    StepRetried,
    WaitEnd,
    WaitEnded,
    read_exchange,
    write_exchange,
)
from backchannel.core.flows.flow import FlowRefused, RunEnded
from backchannel.core.keys import SessionKey, row_channel
from backchannel.core.policy.limits import ExchangeLimitSettings, Wait
from backchannel.core.runs import Run
from backchannel.core.sessions import Session, read_address
from backchannel.core.text import quoted
from backchannel.errors import ExchangeNotFound, FenceLost, InvalidRequest, SessionNotFound, StopRequested
from backchannel.storage.events import CallClosed, RunClosed, RunRetried
from backchannel.storage.ids import new_id
from backchannel.storage.tables import EXCHANGES, WAITS
from backchannel.storage.tx import LIVE, Tx, required, tell_shadowed
from backchannel.storage.units import deliveries, flows, idempotency, runs, sessions
from backchannel.storage.units.flows import chains
from backchannel.storage.units.money import reserving


def record_wait(tx: Tx, call_id: str) -> None:
    """Record that the calling run waits under its current fence: a crash does not count for it."""
    tx.run(
        "UPDATE waits SET fence = "
        "coalesce((SELECT r.fence FROM tool_calls c JOIN runs r ON r.id = c.run_id WHERE c.id = ?), 0) "
        "WHERE call_id = ?",
        call_id,
        call_id,
    )


def look(tx: Tx, exchange_id: str) -> ExchangeOpened:
    """Load an exchange with its primary run, its receipt and its wait."""
    body, delivery_id = required(tx.one("SELECT body, delivery_id FROM exchanges WHERE id = ?", exchange_id))
    exchange = read_exchange(body)
    (state,) = required(tx.one("SELECT state FROM deliveries WHERE id = ?", delivery_id))
    wait = tx.one("SELECT until_at FROM waits WHERE call_id = ?", exchange.call_id) if exchange.call_id else None
    return ExchangeOpened(
        exchange, runs.need(tx, exchange.primary_run), delivery_id, state, None if wait is None else wait[0]
    )


def sent_by(tx: Tx, call_id: str) -> ExchangeOpened | None:
    """Load the exchange of a tool call, if it has one."""
    row = tx.one("SELECT id FROM exchanges WHERE call_id = ?", call_id)
    return None if row is None else look(tx, row[0])


def repeat(tx: Tx, call_id: str) -> ExchangeOpened | None:
    """Resume a call from before a crash: its message stays sent, and its wait continues."""
    opened = sent_by(tx, call_id)
    if opened is not None:
        record_wait(tx, call_id)
    return opened


def describe_call(tx: Tx, call_id: str) -> str | None:
    """Describe what a call without a result has sent; None if nothing."""
    opened = sent_by(tx, call_id)
    if opened is None:
        return None
    run, name = opened.run, opened.exchange.target.name
    state = f"it has ended as {run.state}" if run.is_finished else f"it is still {run.state}"
    return (
        f"its message was sent to session {name!r} as run {run.id!r} ({state}): do not send it again, "
        "what is replied comes as a message of its own"
    )


def story(tx: Tx, exchange_id: str | None = None, run_id: str | None = None) -> ExchangeRecord:
    """Load an exchange, by its id or by one of its runs, with its runs and its receipt.

    Raises:
        ExchangeNotFound: there is none.
    """
    row = tx.one(
        "SELECT body, delivery_id, created_at, updated_at FROM exchanges "
        "WHERE id = coalesce(?, (SELECT exchange_id FROM runs WHERE id = ?))",
        exchange_id,
        run_id,
    )
    if row is None:
        named = (
            f"no exchange {quoted(exchange_id)}" if exchange_id else f"no exchange has the run {quoted(run_id or '')}"
        )
        raise ExchangeNotFound(f"{named}: pass the runId that sessions_send returned")
    body, delivery_id, created_at, updated_at = row
    exchange = read_exchange(body)
    runs_of_it = runs.of_exchange(tx, exchange.id)
    return ExchangeRecord(exchange, runs_of_it, deliveries.receipt(tx, delivery_id), created_at, updated_at)


# Events of an exchange


def run_ended(tx: Tx, event: RunClosed) -> None:
    """Advance an exchange after the end of one of its runs."""
    run = event.run
    if run.exchange_id is not None:
        ended = RunEnded(
            run_id=run.id,
            state=run.state,
            reply=run.reply,
            error=run.error,
            has_started=run.session_id is not None,
        )
        flows.advance(tx, _KIND, run.exchange_id, ended)


def check_retry(tx: Tx, run: Run) -> None:
    """Refuse to retry a run whose exchange would ignore its end.

    Raises:
        InvalidRequest: the message says where the exchange is.
    """
    exchange = None if run.exchange_id is None else flows.find(tx, _KIND, run.exchange_id)
    if exchange is not None and (why := why_not_retried(exchange, run.id)) is not None:
        raise InvalidRequest(f"run {run.id!r} cannot be retried: {why}", runId=run.id)


def run_retried(tx: Tx, event: RunRetried) -> None:
    """Reopen an exchange whose failed run a person retries."""
    run = event.run
    if run.exchange_id is not None:
        flows.advance(tx, _KIND, run.exchange_id, StepRetried(run_id=run.id))


def announce_again(tx: Tx, delivery: Delivery) -> bool:
    """Queue a failed announce run again; False if the receipt has its text, or is of another kind."""
    if delivery.exchange_id is None or delivery.text is not None or delivery.state is not DeliveryState.FAILED:
        return False
    flows.advance(tx, _KIND, delivery.exchange_id, StepRetried())
    return True


def retry_delivery(tx: Tx, delivery_id: str) -> Receipt:
    """Queue a delivery again. If its announce run failed, that run comes again."""
    if announce_again(tx, deliveries.need(tx, delivery_id)):
        return deliveries.receipt(tx, delivery_id)
    return deliveries.retry(tx, delivery_id)


def expire_wait(tx: Tx, exchange_id: str) -> ExchangeOpened:
    """Expire a wait, unless its run has ended: then the outcome counts."""
    opened = look(tx, exchange_id)
    if opened.run.is_finished:
        return opened
    if opened.exchange.call_id is not None:
        tx.run("DELETE FROM waits WHERE call_id = ?", opened.exchange.call_id)
    flows.advance(tx, _KIND, exchange_id, WaitEnded(WaitEnd.EXPIRED))
    return look(tx, exchange_id)


def call_ended(tx: Tx, event: CallClosed) -> None:
    """Handle the end of a tool call that may have been waiting."""
    call_id = event.call_id
    row = tx.one("SELECT r.exchange_id FROM waits w JOIN runs r ON r.id = w.run_id WHERE w.call_id = ?", call_id)
    if row is not None:
        tx.run("DELETE FROM waits WHERE call_id = ?", call_id)
        flows.advance(tx, _KIND, row[0], WaitEnded(event.how))


def open_of(tx: Tx, key: str, *, until: int, after: str, limit: int) -> list[str]:
    """List some of a session's open exchanges from before a time, by id."""
    rows = tx.all(
        "SELECT id FROM exchanges WHERE requester_key = ? AND state <> 'done' AND created_at <= ? AND id > ? "
        "UNION SELECT id FROM exchanges WHERE target_key = ? AND state <> 'done' AND created_at <= ? AND id > ? "
        "ORDER BY 1 LIMIT ?",
        *(key, until, after) * 2,
        limit,
    )
    return [exchange_id for (exchange_id,) in rows]


def session_interrupted(tx: Tx, exchange_id: str, key: SessionKey, change: Change, active_run: str | None) -> None:
    """Shorten an exchange after one of its sessions was reset, stopped or deleted."""
    flows.advance(tx, _KIND, exchange_id, SessionInterrupted(key=key, change=change, active_run=active_run))


def _step(tx: Tx, exchange: Exchange, event: Event) -> Stepped:
    target = sessions.find(tx, str(exchange.target.key))
    return step_exchange(exchange, event, target.address if target else None)


def _perform(tx: Tx, exchange: Exchange, delivery_id: str, action: Action) -> None:
    match action:
        case AddNote():
            flows.add_note(tx, action.key, action.text, action.provenance)
        case Deliver():
            deliveries.hand_over(tx, delivery_id, action.text, action.address, run_id=action.run_id)
        case Reopen():
            deliveries.reopen(tx, delivery_id)


def _tell(tx: Tx, exchange: Exchange) -> None:
    tx.tell(SessionChanged(str(exchange.target.key), "exchange"))  # also where no run begins or ends with it


_KIND = flows.FlowKind(
    table="exchanges",
    runs_as="exchange_id",
    read=read_exchange,
    write=write_exchange,
    step=_step,
    tell=_tell,
    perform=_perform,
    columns=("turn",),
)
# Accepting a send: its parties, its checks, and all that it starts, in one unit.


def open_(tx: Tx, ask: Ask, limits: ExchangeLimitSettings, check: Check) -> ExchangeOpened | FlowRefused:
    """Accept a send with its primary run, receipt and wait. The same call again finds the first."""
    call = ask.call
    if flows.repeat(tx, _KIND, call) is not None:
        return look(tx, call.flow_id)
    calling_run = None if call.calling_run is None else runs.need(tx, call.calling_run)
    if calling_run is not None:
        _check_at_work(calling_run)
    target = _target(tx, ask.target, ask.target_session_id)
    show = chains.shown(tx.scheme)
    request = SendRequest(
        exchange_id=call.flow_id,
        # A client's key is the id of its run, and was checked above.
        run_id=call.run_id if call.digest is not None else runs.free_id(tx, call.run_id),
        requester=None if ask.requester is None else _requester(tx, ask.requester, show),
        target=_as_party(ask.target, target, show),
        message=ask.message,
        call_id=call.call_id,
        is_waiting=ask.wait_ms > 0,
        address=target.address if target else None,
        origin=chains.lineage(tx, call.calling_run, show),
        reply_to=None if calling_run is None or calling_run.reply_to is None else read_address(calling_run.reply_to),
    )
    opened = open_exchange(request, _waits(tx), limits, show)
    if isinstance(opened, FlowRefused):
        return opened
    # Created only now: a refused send leaves nothing behind.
    session = sessions.ensure(tx, ask.target)
    tell_shadowed(tx, str(ask.target), check(session))
    runs.check_room(tx, session)
    reserving.check_open(tx, session, chain_id=None if request.origin is None else request.origin.chain.id)
    exchange, actions = opened
    delivery_id = _insert(tx, exchange, ask)
    if call.digest is not None:
        idempotency.remember_run(tx, call.run_id, call.digest)
    flows.perform(tx, _KIND, exchange, delivery_id, actions)
    return look(tx, exchange.id)


def _check_at_work(run: Run) -> None:
    """Refuse a send of a run that has ended or must stop: its call is closed, or soon will be.

    Raises:
        FenceLost, StopRequested
    """
    if run.is_finished:
        raise FenceLost(run.id)
    if run.abort_requested:
        raise StopRequested(run.id)


def _insert(tx: Tx, exchange: Exchange, ask: Ask) -> str:
    """Write an exchange with its receipt and its wait; returns the receipt's id."""
    delivery_id = new_id()
    requester = None if ask.requester is None else str(ask.requester)
    tx.insert(
        EXCHANGES,
        id=exchange.id,
        requester_key=requester,
        target_key=str(ask.target),
        state=exchange.state.value,
        turn=exchange.turn,
        body=write_exchange(exchange),
        call_id=exchange.call_id,
        delivery_id=delivery_id,
        created_at=tx.now,
        updated_at=tx.now,
    )
    deliveries.open_receipt(tx, delivery_id, str(ask.target), exchange.id)
    if ask.wait_ms > 0 and exchange.call_id is not None:
        tx.insert(
            WAITS,
            call_id=exchange.call_id,
            waiter_key=requester,
            target_key=str(ask.target),
            run_id=exchange.primary_run,
            until_at=tx.now + ask.wait_ms,
        )
        record_wait(tx, exchange.call_id)
    return delivery_id


def _target(tx: Tx, key: SessionKey, session_id: str | None) -> Session | None:
    """Load the session to send to; None for an agent's main session before its first message.

    Raises:
        SessionIdReplaced: it was named by an id that it has no more.
        SessionNotFound: it is not there any more.
    """
    session = sessions.find(tx, str(key))
    sessions.check_current(tx, str(key), session, session_id)
    is_there = session is not None and session.archived_at is None and not session.deleting
    if not is_there and not tx.scheme.is_main(key):
        raise SessionNotFound(f"there is no session {str(key)!r} any more: it was deleted", sessionKey=str(key))
    return session


def _requester(tx: Tx, key: SessionKey, show: Callable[[str], str]) -> Party:
    """Load the requester. An agent's main session may ask before its first message, and is not created by that.

    Raises:
        SessionNotFound: it does not exist, or is archived.
    """
    session = sessions.find(tx, str(key))
    if not tx.scheme.is_main(key) and (session is None or session.archived_at is not None):
        raise SessionNotFound(f"there is no session {show(str(key))!r} to send as", sessionKey=str(key))
    return _as_party(key, session, show)


def _as_party(key: SessionKey, session: Session | None, show: Callable[[str], str]) -> Party:
    name = show(str(key))
    channel = "unknown" if session is None else _channel(session)
    return Party(key=key, channel=channel, shown=None if name == str(key) else name)


def _channel(session: Session) -> str:
    address = session.address
    return row_channel(session.key, session.kind, session.channel, address.channel if address else None)


def _waits(tx: Tx) -> list[Wait]:
    """List which session waits for which. A wait that has its answer does not count."""
    rows = tx.all(
        "SELECT w.waiter_key, w.target_key FROM waits w JOIN runs r ON r.id = w.run_id "
        f"WHERE w.until_at > ? AND r.{LIVE}",
        tx.now,
    )
    return [Wait(*row) for row in rows]
