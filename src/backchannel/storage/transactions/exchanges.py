"""Exchanges: what `sessions_send` started, each step in the commit of what caused it.

`core/exchange.py` decides; this executes. Whatever ends a run, a wait or a session calls in here from its own unit, so
"the primary run ended" and "turn 1 waits in the requester's inbox" are one commit. How one is opened is in `sends.py`.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from backchannel.core.delivery import Delivery, DeliveryState
from backchannel.core.exchange import step, why_not_retried
from backchannel.core.exchange_values import (
    AbortRun,
    Action,
    AddNote,
    Change,
    Deliver,
    Event,
    Exchange,
    Finish,
    QueueRun,
    Reopen,
    Retried,
    RunEnded,
    SessionInterrupted,
    Settle,
    Stepped,
    WaitEnd,
    WaitEnded,
    read_exchange,
    write_exchange,
)
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, TextBlock
from backchannel.core.runs import Run, RunRequest
from backchannel.core.text import quoted
from backchannel.errors import ExchangeNotFound, InvalidRequest
from backchannel.storage.ids import new_id
from backchannel.storage.transactions import deliveries, inbox, mending, receipts, runs, sessions
from backchannel.storage.tx import Tx, required


class Opened(msgspec.Struct, frozen=True):
    """An exchange, as it is now, and until when its caller waits (None: no longer, or never did)."""

    exchange: Exchange
    run: Run
    delivery_id: str
    delivery_state: str
    wait_until: int | None


def hold_wait(tx: Tx, call_id: str) -> None:
    """Say that the calling run waits under the fence it has now: recovery does not blame it for a crash."""
    tx.run(
        "UPDATE waits SET fence = "
        "coalesce((SELECT r.fence FROM tool_calls c JOIN runs r ON r.id = c.run_id WHERE c.id = ?), 0) "
        "WHERE call_id = ?",
        call_id,
        call_id,
    )


def find(tx: Tx, exchange_id: str) -> Exchange | None:
    row = tx.one("SELECT body FROM exchanges WHERE id = ?", exchange_id)
    return None if row is None else read_exchange(row[0])


def look(tx: Tx, exchange_id: str) -> Opened:
    """Load an exchange with its primary run, its receipt and its wait."""
    body, delivery_id = required(tx.one("SELECT body, delivery_id FROM exchanges WHERE id = ?", exchange_id))
    exchange = read_exchange(body)
    (state,) = required(tx.one("SELECT state FROM deliveries WHERE id = ?", delivery_id))
    wait = tx.one("SELECT until_at FROM waits WHERE call_id = ?", exchange.call_id) if exchange.call_id else None
    return Opened(exchange, runs.need(tx, exchange.primary_run), delivery_id, state, None if wait is None else wait[0])


def sent_by(tx: Tx, call_id: str) -> Opened | None:
    """Load the exchange that a tool call has opened, if it has."""
    row = tx.one("SELECT id FROM exchanges WHERE call_id = ?", call_id)
    return None if row is None else look(tx, row[0])


def repeat(tx: Tx, call_id: str) -> Opened | None:
    """Take up a call again that was made before a crash: what it has sent stays sent, and it waits on if it waited."""
    opened = sent_by(tx, call_id)
    if opened is not None:
        hold_wait(tx, call_id)
    return opened


def tell_of_call(tx: Tx, call_id: str) -> str | None:
    """Say what a call has sent, for one that can no longer say it itself; None when it has sent nothing."""
    opened = sent_by(tx, call_id)
    if opened is None:
        return None
    run, name = opened.run, opened.exchange.target.name
    state = f"it has ended as {run.state}" if run.is_finished else f"it is still {run.state}"
    return (
        f"its message was sent to session {name!r} as run {run.id!r} ({state}): do not send it again, "
        "what is replied comes as a message of its own"
    )


class Story(msgspec.Struct, frozen=True):
    """An exchange with all that became of it."""

    exchange: Exchange
    runs: list[Run]
    receipt: deliveries.Receipt
    created_at: int
    updated_at: int


def story(tx: Tx, exchange_id: str | None = None, run_id: str | None = None) -> Story:
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
    return Story(exchange, runs_of_it, deliveries.receipt(tx, delivery_id), created_at, updated_at)


# What happens to an exchange


def run_ended(tx: Tx, run: Run) -> None:
    """Take an exchange on, now that one of its runs has ended."""
    if run.exchange_id is not None:
        ended = RunEnded(
            run_id=run.id,
            state=run.state,
            reply=run.reply,
            error=run.error,
            has_started=run.session_id is not None,
        )
        _advance(tx, run.exchange_id, ended)


def check_retry(tx: Tx, run: Run) -> None:
    """Refuse to run something again whose exchange would not hear of it.

    Raises:
        InvalidRequest: the message says where the exchange is.
    """
    exchange = None if run.exchange_id is None else find(tx, run.exchange_id)
    if exchange is not None and (why := why_not_retried(exchange, run.id)) is not None:
        raise InvalidRequest(f"run {run.id!r} cannot be retried: {why}", runId=run.id)


def run_retried(tx: Tx, run: Run) -> None:
    """Take an exchange up again whose failed run a person retries."""
    if run.exchange_id is not None:
        _advance(tx, run.exchange_id, Retried(run_id=run.id))


def announce_again(tx: Tx, delivery: Delivery) -> bool:
    """Ask for an announce once more whose run failed; False when the receipt has its text, or is not one of these."""
    if delivery.exchange_id is None or delivery.text is not None or delivery.state is not DeliveryState.FAILED:
        return False
    _advance(tx, delivery.exchange_id, Retried())
    return True


def retry_delivery(tx: Tx, delivery_id: str) -> deliveries.Receipt:
    """Put a delivery back in line; one whose announce run failed has that run again."""
    if announce_again(tx, deliveries.need(tx, delivery_id)):
        return deliveries.receipt(tx, delivery_id)
    return mending.retry(tx, delivery_id)


def expire_wait(tx: Tx, exchange_id: str) -> Opened:
    """End a wait whose time ran out, unless the run has ended by now: then its outcome counts."""
    opened = look(tx, exchange_id)
    if opened.run.is_finished:
        return opened
    if opened.exchange.call_id is not None:
        tx.run("DELETE FROM waits WHERE call_id = ?", opened.exchange.call_id)
    _advance(tx, exchange_id, WaitEnded(WaitEnd.EXPIRED))
    return look(tx, exchange_id)


def call_answered(tx: Tx, call_id: str, *, is_error: bool) -> None:
    """A tool call that may have been waiting has its result; one that failed in itself did not bring the reply."""
    call_ended(tx, call_id, WaitEnd.BROKEN if is_error else WaitEnd.ANSWERED)


def call_ended(tx: Tx, call_id: str, how: WaitEnd) -> None:
    """A tool call that may have been waiting has its result, or will never have it."""
    row = tx.one("SELECT r.exchange_id FROM waits w JOIN runs r ON r.id = w.run_id WHERE w.call_id = ?", call_id)
    if row is not None:
        tx.run("DELETE FROM waits WHERE call_id = ?", call_id)
        _advance(tx, row[0], WaitEnded(how))


def open_of(tx: Tx, key: str, *, until: int, after: str, limit: int) -> list[str]:
    """Name some of a session's open exchanges that were there at a time, in the order of their ids."""
    rows = tx.all(
        "SELECT id FROM exchanges WHERE requester_key = ? AND state <> 'done' AND created_at <= ? AND id > ? "
        "UNION SELECT id FROM exchanges WHERE target_key = ? AND state <> 'done' AND created_at <= ? AND id > ? "
        "ORDER BY 1 LIMIT ?",
        *(key, until, after) * 2,
        limit,
    )
    return [exchange_id for (exchange_id,) in rows]


def session_interrupted(tx: Tx, exchange_id: str, key: SessionKey, change: Change, active_run: str | None) -> None:
    """Shorten an exchange, one of whose sessions was reset, stopped or deleted."""
    _advance(tx, exchange_id, SessionInterrupted(key=key, change=change, active_run=active_run))


def _advance(tx: Tx, exchange_id: str, event: Event) -> None:
    row = tx.one("SELECT body FROM exchanges WHERE id = ?", exchange_id)
    if row is None:
        return
    before = read_exchange(row[0])
    target = sessions.find(tx, str(before.target.key))
    exchange, actions = _named(tx, *step(before, event, target.address if target else None))
    if exchange != before:
        _write(tx, exchange)
    perform(tx, exchange, actions)


def _named(tx: Tx, exchange: Exchange, actions: tuple[Action, ...]) -> Stepped:
    """Give the run that is to be queued an id of its own."""
    named: list[Action] = []
    for action in actions:
        if isinstance(action, QueueRun):
            action = replace(action, id=runs.free_id(tx, action.id))
            exchange = replace(exchange, run_id=action.id)
        named.append(action)
    return exchange, tuple(named)


def _write(tx: Tx, exchange: Exchange) -> None:
    tx.run(
        "UPDATE exchanges SET state = ?, turn = ?, body = ?, updated_at = ? WHERE id = ?",
        exchange.state.value,
        exchange.turn,
        write_exchange(exchange),
        tx.now,
        exchange.id,
    )


def perform(tx: Tx, exchange: Exchange, actions: tuple[Action, ...]) -> None:
    """Do what a step asks for."""
    for action in actions:
        match action:
            case QueueRun():
                runs.queue_step(tx, _request(exchange, action))
            case AbortRun():
                _abort(tx, action)
            case AddNote():
                _add_note(tx, action)
            case Deliver():
                delivery_id = _receipt(tx, exchange)
                receipts.hand_over(tx, delivery_id, action.text, action.address, run_id=action.run_id)
            case Settle():
                receipts.settle(tx, _receipt(tx, exchange), action.outcome.value, action.reason)
            case Reopen():
                receipts.reopen(tx, _receipt(tx, exchange))
            case Finish():
                pass  # its state says so, and was written above


def _request(exchange: Exchange, action: QueueRun) -> RunRequest:
    return RunRequest(
        key=action.key,
        content=tuple(TextBlock(text=text) for text in action.texts),
        provenance=action.provenance,
        kind=action.kind,
        id=action.id,
        deliver=action.deliver,
        reply_to=action.reply_to,
        chain=action.chain,
        exchange_id=exchange.id,
    )


def _receipt(tx: Tx, exchange: Exchange) -> str:
    (delivery_id,) = required(tx.one("SELECT delivery_id FROM exchanges WHERE id = ?", exchange.id))
    return str(delivery_id)


def _abort(tx: Tx, action: AbortRun) -> None:
    run = runs.need(tx, action.run_id)
    if not run.is_finished and (action.even_running or run.session_id is None):
        runs.request_abort(tx, run.session_key, run.id)


def _add_note(tx: Tx, action: AddNote) -> None:
    note = Message(
        id=new_id(),
        role=Role.USER,
        content=(TextBlock(text=action.text),),
        timestamp=tx.now,
        provenance=action.provenance,
    )
    inbox.add_if_kept(tx, action.key, note)
