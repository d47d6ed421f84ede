"""A send is accepted: who asks whom, whether they may, and all that it starts, in one unit."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backchannel.core.exchange import SendLimits, open_exchange
from backchannel.core.exchange_values import Exchange, Party, Refused, SendRequest, write_exchange
from backchannel.core.keys import Kind, SessionKey, row_channel
from backchannel.core.limits import Wait
from backchannel.core.runs import FlowCall, Run
from backchannel.core.sessions import Session, read_address
from backchannel.errors import FenceLost, SessionNotFound, StopRequested
from backchannel.storage.ids import new_id
from backchannel.storage.transactions import chains, exchanges, idempotency, receipts, runs, sessions
from backchannel.storage.transactions.exchanges import Opened
from backchannel.storage.tx import LIVE, Check, Tx


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A send, as a tool asks for it; what it stands on is read in the unit that accepts it."""

    call: FlowCall
    requester: SessionKey | None
    target: SessionKey
    message: str
    wait_ms: int


def open_(tx: Tx, ask: Ask, limits: SendLimits, check: Check) -> Opened | Refused:
    """Accept a send with its primary run, its receipt and its wait; the same call again finds the first."""
    call = ask.call
    if call.digest is not None:
        idempotency.find_run(tx, call.run_id, call.digest)  # refuses a key that stands for something else
    if exchanges.find(tx, call.flow_id) is not None:
        return exchanges.look(tx, call.flow_id)
    calling_run = None if call.calling_run is None else runs.need(tx, call.calling_run)
    if calling_run is not None:
        _check_at_work(calling_run)
    target = _target(tx, ask.target)
    show = chains.shown(tx.scheme)
    request = SendRequest(
        exchange_id=call.flow_id,
        # A key of a client is the id of its run, and was looked at above.
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
    if isinstance(opened, Refused):
        return opened
    # Made only now: a send that is refused leaves nothing behind.
    check(sessions.ensure(tx, ask.target))
    exchange, actions = opened
    _insert(tx, exchange, ask)
    if call.digest is not None:
        idempotency.remember_run(tx, call.run_id, call.digest)
    exchanges.perform(tx, exchange, actions)
    return exchanges.look(tx, exchange.id)


def _check_at_work(run: Run) -> None:
    """Refuse a send that comes after its run has ended, or was asked to stop: its call is closed, or about to be.

    Raises:
        FenceLost, StopRequested
    """
    if run.is_finished:
        raise FenceLost(run.id)
    if run.abort_requested:
        raise StopRequested(run.id)


def _insert(tx: Tx, exchange: Exchange, ask: Ask) -> None:
    delivery_id = new_id()
    requester = None if ask.requester is None else str(ask.requester)
    tx.run(
        "INSERT INTO exchanges "
        "(id, requester_key, target_key, state, turn, body, call_id, delivery_id, created_at, updated_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        exchange.id,
        requester,
        str(ask.target),
        exchange.state.value,
        exchange.turn,
        write_exchange(exchange),
        exchange.call_id,
        delivery_id,
        tx.now,
        tx.now,
    )
    receipts.open_(tx, delivery_id, str(ask.target), exchange.id)
    if ask.wait_ms > 0 and exchange.call_id is not None:
        tx.run(
            "INSERT INTO waits (call_id, waiter_key, target_key, run_id, until_at) VALUES (?, ?, ?, ?, ?)",
            exchange.call_id,
            requester,
            str(ask.target),
            exchange.primary_run,
            tx.now + ask.wait_ms,
        )
        exchanges.hold_wait(tx, exchange.call_id)


def _target(tx: Tx, key: SessionKey) -> Session | None:
    """Load the session to send to; None is the main session of an agent before its first message.

    Raises:
        SessionNotFound: it is not there any more.
    """
    session = sessions.find(tx, str(key))
    is_there = session is not None and session.archived_at is None and not session.deleting
    if not is_there and not tx.scheme.is_main(key):
        raise SessionNotFound(f"there is no session {str(key)!r} any more: it was deleted", sessionKey=str(key))
    return session


def _requester(tx: Tx, key: SessionKey, show: Callable[[str], str]) -> Party:
    """Tell who asks. The main session of an agent may ask before its first message, and the call does not make it.

    Raises:
        SessionNotFound: nobody can ask in its name: it is not there, or not any more.
    """
    session = sessions.find(tx, str(key))
    if not tx.scheme.is_main(key) and (session is None or session.archived_at is not None):
        raise SessionNotFound(f"there is no session {show(str(key))!r} to send as", sessionKey=str(key))
    return _as_party(key, session, show)


def _as_party(key: SessionKey, session: Session | None, show: Callable[[str], str]) -> Party:
    name = show(str(key))
    channel = "unknown" if session is None else _channel(session, key)
    return Party(key=key, channel=channel, shown=None if name == str(key) else name)


def _channel(session: Session, key: SessionKey) -> str:
    address = session.address
    return row_channel(key, Kind(session.kind), session.channel, address.channel if address else None)


def _waits(tx: Tx) -> list[Wait]:
    """List who waits for whom; whoever has its answer by now, and only needs a slot to go on, waits for nobody."""
    rows = tx.all(
        "SELECT w.waiter_key, w.target_key FROM waits w JOIN runs r ON r.id = w.run_id "
        f"WHERE w.until_at > ? AND r.{LIVE}",
        tx.now,
    )
    return [Wait(*row) for row in rows]
