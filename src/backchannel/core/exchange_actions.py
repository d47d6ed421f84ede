"""The runs and notes that an exchange asks for: on which session, what they say, and who is said to have written it."""

from __future__ import annotations

from backchannel.core.control_words import is_silent
from backchannel.core.exchange_prompts import announce_text, failure_text, late_reply_text, primary_texts, turn_text
from backchannel.core.exchange_values import AddNote, Exchange, Party
from backchannel.core.flow import QueueRun
from backchannel.core.messages import Provenance, ProvenanceKind
from backchannel.core.runs import RunKind

SOURCE_TOOL = "sessions_send"


def turn_id(exchange: Exchange, turn: int) -> str:
    """Name the run of a turn; a unit that is run twice asks for the same run."""
    return f"{exchange.id}/turn/{turn}"


def announce_id(exchange: Exchange, count: int) -> str:
    """Name the n-th announce run."""
    return f"{exchange.id}/announce/{count}"


def primary_run(exchange: Exchange) -> QueueRun:
    """Make the run that works on the request."""
    return _run(exchange, RunKind.PRIMARY, primary_texts(exchange), _from(exchange, exchange.requester))


def turn_run(exchange: Exchange) -> QueueRun:
    """Make the run of the turn that the exchange is at: it hears the other side."""
    other = exchange.target if exchange.speaker is exchange.requester else exchange.requester
    return _run(exchange, RunKind.TURN, (turn_text(exchange),), _from(exchange, other))


def announce_run(exchange: Exchange) -> QueueRun:
    """Make the run that says what the target's chat is told; it is the gateway that asks."""
    asks = Provenance(kind=ProvenanceKind.INTERNAL_SYSTEM, source_tool=SOURCE_TOOL, exchange_id=exchange.id)
    return _run(exchange, RunKind.ANNOUNCE, (announce_text(exchange),), asks)


def late_reply_note(exchange: Exchange) -> tuple[AddNote, ...]:
    """Make the note with a reply that the requester has not had; none if there is nothing to tell, or nobody."""
    taker = exchange.note_taker
    if taker is None or exchange.has_reply or is_silent(exchange.reply):
        return ()
    return (_note(exchange, taker, late_reply_text(exchange)),)


def failure_note(exchange: Exchange, why: str) -> tuple[AddNote, ...]:
    """Make the note that no reply will come; none if that was told before, or there is nobody to tell."""
    taker = exchange.note_taker
    if taker is None or exchange.outcome is not None:
        return ()
    return (_note(exchange, taker, failure_text(exchange, why)),)


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


def _note(exchange: Exchange, taker: Party, text: str) -> AddNote:
    return AddNote(key=taker.key, text=text, provenance=_from(exchange, exchange.target))


def _from(exchange: Exchange, source: Party | None) -> Provenance:
    """Say who wrote a message: the other session, or a person who is none."""
    if source is None:
        return Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_tool=SOURCE_TOOL, exchange_id=exchange.id)
    return Provenance(
        kind=ProvenanceKind.INTER_SESSION,
        source_session_key=source.name,
        source_channel=source.channel,
        source_tool=SOURCE_TOOL,
        exchange_id=exchange.id,
    )
