"""Reservations: what the next call of a run may cost, charged before the call begins.

The commit that precedes a call tries a quote (`core/money/quotes.py`). If there is none, or it does not fit, nothing is
reserved, and the run reserves by a unit of its own once its request is built (`calls.py`). A run's row keeps its
reservation until the reply is committed:

- The reply is there: what it cost counts.
- Refused before anything was billed: the reservation serves the next attempt, or is given back when the run ends.
- Unknown, as after a crash or a cut connection: all of it counts. The next attempt reserves anew.
"""

from __future__ import annotations

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Usage, decode_message
from backchannel.core.money.amounts import (
    Amount,
    Reservation,
    open_reservation,
    read_reservation,
    used_amount,
    write_reservation,
)
from backchannel.core.money.budgets import (
    BudgetAnswer,
    BudgetDecision,
    BudgetRules,
    Spender,
    decide,
    is_near,
    is_used_up,
)
from backchannel.core.money.texts import used_up
from backchannel.core.runs import Run, RunRequest
from backchannel.core.sessions import Session
from backchannel.errors import BudgetExceeded
from backchannel.storage.tx import Tx
from backchannel.storage.units import sessions
from backchannel.storage.units.money import ledger


def check_open(tx: Tx, session: Session, request: RunRequest | None = None, *, chain_id: str | None = None) -> None:
    """Refuse a new message if nothing is left for it: one from outside, or one of a chain.

    Raises:
        BudgetExceeded: the message names the budget, and says when it opens again.
    """
    rules = tx.rules.budgets
    if rules is None or not rules.refuses:
        return
    sender = None
    if rules.needs_sender:
        sender = _sender_asked(request) if chain_id is None else _chain_sender(tx, chain_id)
    _check(tx, rules, _spender(rules, session, chain_id or "", sender))


def check_message(tx: Tx, session: Session | None, request: RunRequest) -> None:
    """Refuse a message of a chat if nothing is left for it. Its session may not exist yet.

    Raises:
        BudgetExceeded: as `check_open`.
    """
    rules = tx.rules.budgets
    if session is not None:
        return check_open(tx, session, request)
    if rules is None or not rules.refuses:
        return None
    channel = None if request.reply_to is None else request.reply_to.channel
    return _check(tx, rules, Spender(request.key.agent, str(request.key), "", channel, _sender_asked(request)))


def is_open(tx: Tx, key: SessionKey, session: Session | None) -> bool:
    """Whether there is money for a message to a session, which may not exist yet."""
    rules = tx.rules.budgets
    if rules is None or not rules.refuses:
        return True
    spender = Spender(key.agent, str(key), "") if session is None else _spender(rules, session, "", None)
    try:
        _check(tx, rules, spender)
    except BudgetExceeded:
        return False
    return True


def _check(tx: Tx, rules: BudgetRules, spender: Spender) -> None:
    for window, row in ledger.rows_of(tx, rules.windows(spender, tx.now)):
        if is_used_up(window.budget, row):
            raise used_up(window, row, tx.now)


def begin(tx: Tx, session: Session, message: Message, model: str | None, chain_id: str | None) -> str | None:
    """Reserve the first call of a new run by a quote; returns what its row keeps.

    None: the run reserves once its request is built.
    """
    rules = tx.rules.budgets
    if rules is None:
        return None
    sender = None
    if rules.needs_sender:
        sender = _sender_of(message) if chain_id is None else _chain_sender(tx, chain_id)
    spender = _spender(rules, session, chain_id or message.run_id or "", sender)
    return _quoted(tx, rules, spender, session.session_id, model or session.model, message, None, 0)


def begin_again(tx: Tx, run: Run, session: Session, message: Message | None) -> str | None:
    """Reserve the next call of a queued run that starts, by a quote; returns what its row keeps."""
    rules = tx.rules.budgets
    if rules is None:
        return None
    known = read_reservation(run.reserved)
    spender = _spender(rules, session, run.chain_id, sender_of_run(tx, rules, run, message))
    return _quoted(tx, rules, spender, session.session_id, run.model or session.model, message, known, run.step)


def go_on(tx: Tx, run: Run, result: Message) -> str | None:
    """Reserve the call that follows the last result of a round, by a quote; returns what the run's row keeps."""
    rules, known = tx.rules.budgets, read_reservation(run.reserved)
    if rules is None or known is None:
        return None
    session = sessions.required_session(tx, run.session_key)
    spender = _spender(rules, session, run.chain_id, known.sender)
    return _quoted(tx, rules, spender, run.session_id or "", run.model or session.model, result, known, run.step)


def again(tx: Tx, run: Run, *, is_sent: bool) -> str | None:
    """Reserve another attempt at a call; returns what the run's row keeps.

    Of an attempt that was sent, nobody knows what was billed: it counts whole.
    """
    rules, made = tx.rules.budgets, open_reservation(run.reserved, run.step)
    if rules is None or made is None or not is_sent:
        return run.reserved
    ledger.settle(tx, made, None)
    session = sessions.required_session(tx, run.session_key)
    spender = _spender(rules, session, run.chain_id, made.sender)
    anew, _ = try_charge(tx, rules, spender, made.amount, made.step, made)
    return write_reservation(anew or closed(made))


def settle_reply(tx: Tx, run: Run, usage: Usage) -> None:
    """Count the cost of a reply, in the commit that counts its step. The reservation is of the step before."""
    made = open_reservation(run.reserved, run.step - 1)
    if made is not None:
        ledger.settle(tx, made, used_amount(usage, made.amount))


def end(tx: Tx, run: Run, *, is_billed: bool) -> str | None:
    """Close the reservation of a run that ends or leaves its lane; returns what its row keeps."""
    made = open_reservation(run.reserved, run.step)
    if made is None:
        return run.reserved
    if is_billed:
        ledger.settle(tx, made, None)
    else:
        ledger.give_back(tx, made)
    return write_reservation(closed(made))


def closed(made: Reservation) -> Reservation:
    """Return what is left of a reservation that is not open any more: that its run was counted, and for whom."""
    return Reservation(step=-1, sender=made.sender, is_counted=made.is_counted)


def _quoted(
    tx: Tx,
    rules: BudgetRules,
    spender: Spender,
    session_id: str,
    model: str | None,
    message: Message | None,
    known: Reservation | None,
    step: int,
) -> str | None:
    amount = rules.quotes.quote(spender.agent_id, session_id, model, message)
    if amount is None:
        return None
    made, _ = try_charge(tx, rules, spender, amount, step, known)
    return None if made is None else write_reservation(made)


def try_charge(
    tx: Tx, rules: BudgetRules, spender: Spender, amount: Amount, step: int, known: Reservation | None
) -> tuple[Reservation | None, BudgetDecision]:
    """Charge a call if it fits. A run that was not counted yet counts too."""
    if known is None or not known.is_counted:
        amount = amount._replace(runs=1)
    counted = ledger.charge(tx, rules.windows(spender, tx.now), amount)
    decision = decide(counted, amount)
    ids = tuple(window.id for window, _ in counted)
    if decision.answer is BudgetAnswer.FITS:
        made = Reservation(
            step=step,
            usd=amount.usd,
            tokens=amount.tokens,
            windows=ids,
            sender=spender.sender,
            is_near=any(is_near(window.budget, row) for window, row in counted),
        )
        return made, decision
    ledger.correct(tx, ids, amount, Amount())
    return None, decision


# Who pays


def spender_of(tx: Tx, rules: BudgetRules, run: Run) -> Spender:
    """Name on whose account the calls of a run go."""
    session = sessions.required_session(tx, run.session_key)
    return _spender(rules, session, run.chain_id, sender_of_run(tx, rules, run, None))


def spender_beside(tx: Tx, rules: BudgetRules, key: str) -> Spender:
    """Name on whose account a call of a session goes that belongs to no run."""
    return _spender(rules, sessions.required_session(tx, key), "", None)


def sender_of_run(tx: Tx, rules: BudgetRules, run: Run, message: Message | None) -> str | None:
    if not rules.needs_sender:
        return None
    if (known := read_reservation(run.reserved)) is not None:
        return known.sender
    if run.chain_id != run.id:
        return _chain_sender(tx, run.chain_id)
    return _sender_of(message) if message is not None else _sender_in(tx, run.message_id)


def _spender(rules: BudgetRules, session: Session, chain_id: str, sender: str | None) -> Spender:
    channel = None
    if rules.needs_channel:
        address = session.address
        channel = session.channel or (None if address is None else address.channel)
    return Spender(session.agent_id, session.key, chain_id, channel, sender)


def _sender_of(message: Message) -> str | None:
    """Name the person who wrote a message on an outside channel."""
    channel = None if message.provenance is None else message.provenance.source_channel
    return None if message.sender is None or channel is None else f"{channel}:{message.sender.id}"


def _sender_asked(request: RunRequest | None) -> str | None:
    channel = None if request is None else request.provenance.source_channel
    return None if request is None or request.sender is None or channel is None else f"{channel}:{request.sender.id}"


def _chain_sender(tx: Tx, chain_id: str) -> str | None:
    """Name the person whose message began a chain: the chain has the id of that message's run."""
    row = tx.one("SELECT reserved, message, message_id FROM runs WHERE id = ?", chain_id)
    if row is None:
        return None
    reserved, waiting, message_id = row
    if (known := read_reservation(reserved)) is not None:
        return known.sender
    return _sender_in(tx, message_id) if waiting is None else _sender_of(decode_message(waiting))


def _sender_in(tx: Tx, message_id: str) -> str | None:
    row = tx.one("SELECT body FROM messages WHERE id = ?", message_id)
    return None if row is None else _sender_of(decode_message(row[0]))
