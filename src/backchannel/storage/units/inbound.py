"""Inbound messages: identified by their id, handled exactly once, with all consequences in one commit."""

from __future__ import annotations

from backchannel.core.commands.commands import Asker, CommandChat, CommandReply, Rank
from backchannel.core.delivery.channels import InboundEvent, InboundId
from backchannel.core.delivery.delivery import Post
from backchannel.core.facts import PolicyShadowed, QueueFilled
from backchannel.core.keys import ChatType
from backchannel.core.messages import Chat, Message, Provenance, ProvenanceKind, Role, Sender
from backchannel.core.money.texts import refused_text
from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.inbound import (
    Admission,
    Arrival,
    InboundOutcome,
    InboundTaken,
    Verdict,
    admit,
    ignore_own,
    is_pairing_asked,
    once_for_all,
)
from backchannel.core.policy.queues import full_text, is_relieved
from backchannel.core.runs import RunAccepted, RunRequest
from backchannel.core.sessions import Session, write_address
from backchannel.core.stored import StoredForm
from backchannel.errors import BudgetExceeded, ChatMovedMeanwhile, QueueFull
from backchannel.storage.ids import new_id
from backchannel.storage.tables import INBOUND_IDS
from backchannel.storage.tx import Tx
from backchannel.storage.units import chats, commands, deliveries, inbox, own_posts, pairing, resets, runs, sessions
from backchannel.storage.units.contact import questions
from backchannel.storage.units.money import reserving

_STORED: StoredForm[InboundOutcome] = StoredForm(InboundOutcome)


def take(tx: Tx, arrival: Arrival, *, start: bool) -> InboundTaken:
    """Handle a message once: ignore it, record it, answer it with a run or a code, or carry out its command.

    With `start`, its run is started at once when the lane is free.

    Raises:
        ChatMovedMeanwhile: its chat got another id since it was routed; nothing was done.
        OwnPostUnderway: it may be a post of ours that is being sent right now; nothing was done.
    """
    known = _known(tx, arrival.event.identity)
    if known is not None:
        return InboundTaken(known, is_repeat=True)
    event = arrival.event
    if chats.home(tx, event.channel, event.account_id, event.chat_id) != arrival.home:
        raise ChatMovedMeanwhile(event.chat_id)
    found = sessions.find(tx, str(arrival.routed.key))
    admission = _admit(tx, arrival, found)
    if admission.shadowed is not None:
        tx.tell(PolicyShadowed(str(arrival.routed.key), admission.shadowed))
    if admission.verdict is Verdict.ANSWER and tx.rules.budgets is not None:
        admission = _with_money(tx, arrival, found, admission)
    if admission.verdict is Verdict.ANSWER and found is not None:
        admission = _with_room(tx, arrival, found, admission, start=start)
    if admission.standing is Rank.OWNER and event.chat_type is ChatType.DIRECT:
        questions.note_chat(tx, event)
    accepted: RunAccepted | None = None
    reply: str | None = None
    match admission.verdict:
        case Verdict.RECORD:
            inbox.add_to(tx, _arrive(tx, arrival, found), _note(arrival, tx.now))
        case Verdict.ANSWER:
            accepted = runs.accept_into(tx, _arrive(tx, arrival, found), _request(arrival), start=start)
        case Verdict.COMMAND:
            reply = _command(tx, arrival, admission)
        case Verdict.PAIR:
            pairing.begin(tx, arrival)
    outcome = InboundOutcome(
        verdict=admission.verdict,
        reason=admission.reason,
        session_key=str(arrival.routed.key),
        run_id=accepted.run.id if accepted else None,
        command=admission.command.name.value if admission.command else None,
        reply=reply,
    )
    _remember(tx, arrival.event.identity, outcome)
    return InboundTaken(outcome, accepted)


def _with_room(tx: Tx, arrival: Arrival, session: Session, admission: Admission, *, start: bool) -> Admission:
    """Ignore a message for a full queue. Its chat is told once, and again only after the queue was half done."""
    try:
        runs.check_room(tx, session, start=start)
    except QueueFull as full:
        _tell_full(tx, arrival, session)
        return Admission(Verdict.IGNORE, full.message, admission.standing)
    if is_relieved(session, tx.rules.max_queued):
        tx.run("UPDATE sessions SET full_told = 0 WHERE key = ? AND full_told = 1", session.key)
    return admission


def _with_money(tx: Tx, arrival: Arrival, found: Session | None, admission: Admission) -> Admission:
    """Ignore a message for which no money is left. Its chat is told once, and again after one was taken."""
    try:
        reserving.check_message(tx, found, _request(arrival))
    except BudgetExceeded as exceeded:
        session = found or sessions.ensure(tx, arrival.routed.key)
        told = tx.one("UPDATE sessions SET full_told = 1 WHERE key = ? AND full_told = 0 RETURNING key", session.key)
        if told is not None and tx.rules.tells_failures:
            _notice(tx, arrival, session.key, refused_text(exceeded))
        return Admission(Verdict.IGNORE, exceeded.message, admission.standing)
    return admission


def _notice(tx: Tx, arrival: Arrival, key: str, text: str) -> None:
    notice = Post(session_key=key, address=arrival.routed.address, text=text, quotes=arrival.routed.quotes)
    deliveries.post(tx, notice, at_once=True)


def _tell_full(tx: Tx, arrival: Arrival, session: Session) -> None:
    told = tx.one("UPDATE sessions SET full_told = 1 WHERE key = ? AND full_told = 0 RETURNING key", session.key)
    if told is None:
        return
    tx.tell(QueueFilled(session.key, session.queued + session.set_aside))
    if tx.rules.tells_failures:
        _notice(tx, arrival, session.key, full_text(tx.rules.max_queued))


def judge(tx: Tx, arrival: Arrival) -> Admission | None:
    """Tell what would be done with a message now; None if it has come before. Nothing is written."""
    if _known(tx, arrival.event.identity) is not None:
        return None
    return _admit(tx, arrival, sessions.find(tx, str(arrival.routed.key)))


def _admit(tx: Tx, arrival: Arrival, session: Session | None) -> Admission:
    if arrival.may_be_own and own_posts.is_own(tx, arrival.event.identity, arrival.twins):
        return ignore_own(arrival.event)
    event, rules = arrival.event, arrival.rules
    known = pairing.look_up(tx, event) if is_pairing_asked(event.sender_id, rules.settings) else None
    brought = (_known(tx, twin) for twin in arrival.twins)
    return once_for_all(admit(event, rules, session, known), arrival, brought)


def _known(tx: Tx, id: InboundId) -> InboundOutcome | None:
    row = tx.one(
        "SELECT outcome FROM inbound_ids WHERE channel = ? AND account_id = ? AND chat_id = ? AND message_id = ?", *id
    )
    return None if row is None else _STORED.read(row[0])


def _remember(tx: Tx, id: InboundId, outcome: InboundOutcome) -> None:
    tx.insert(INBOUND_IDS, **id._asdict(), outcome=_STORED.write(outcome), at=tx.now)


def _arrive(tx: Tx, arrival: Arrival, found: Session | None) -> Session:
    """Begin anew if it is time, and record the message's place.

    That is where the session was last spoken to from, what its chat is called, and whether people share it.
    """
    routed = arrival.routed
    session = resets.reset_if_due(tx, sessions.ensure_found(tx, routed.key, found))
    return sessions.update(
        tx,
        session.key,
        "delivery_context = ?, display_name = coalesce(?, display_name), channel = coalesce(?, channel), "
        "is_shared = CASE WHEN first_person <> ? THEN 1 ELSE is_shared END, first_person = coalesce(first_person, ?), "
        "used_at = ?",
        write_address(routed.address),
        routed.display_name,
        None if arrival.event.chat_type is ChatType.DIRECT else arrival.event.channel,
        routed.person,
        routed.person,
        tx.now,
    )


def _request(arrival: Arrival) -> RunRequest:
    event = arrival.event
    return RunRequest(
        key=arrival.routed.key,
        content=arrival.content,
        provenance=_provenance(event),
        sender=_sender(event),
        chat=_chat(event),
        deliver=True,
        reply_to=arrival.routed.address,  # the place it came from, whoever speaks to the session meanwhile
        quotes=arrival.routed.quotes,
    )


def _note(arrival: Arrival, now: int) -> Message:
    event = arrival.event
    return Message(
        id=new_id(),
        role=Role.USER,
        content=arrival.content,
        timestamp=now,
        provenance=_provenance(event),
        sender=_sender(event),
        chat=_chat(event),
    )


def _sender(event: InboundEvent) -> Sender:
    return Sender(id=event.sender_id, name=event.sender_name)


def _chat(event: InboundEvent) -> Chat:
    return Chat(type=event.chat_type.value, id=event.chat_id, name=event.chat_name)


def _provenance(event: InboundEvent) -> Provenance:
    return Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel=event.channel)


def _command(tx: Tx, arrival: Arrival, admission: Admission) -> str | None:
    """Carry out a command, and post its answer. The answer to a press of a button is returned, and posted nowhere."""
    command, routed = admission.command, arrival.routed
    if command is None:
        raise ValueError("a message that is admitted as a command names it")
    if isinstance(command, CommandReply):
        text = command.text
    else:
        asker = Asker(
            standing=admission.standing,
            agent_model=arrival.agent_model,
            policy=arrival.rules.policy,
            destination=arrival.rules.destination,
            by=Answerer(f"{arrival.event.channel} {arrival.event.sender_id}", arrival.event.channel),
            chat=CommandChat(routed.address, routed.quotes),
        )
        text = commands.carry_out(tx, command, routed.key, asker)
    if arrival.event.button is not None:
        return text
    reply = Post(session_key=str(routed.key), address=routed.address, text=text, quotes=routed.quotes, always=True)
    deliveries.post(tx, reply, at_once=True)
    return None
