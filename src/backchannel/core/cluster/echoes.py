"""Echoes: short notices of a commit for other gateways.

An echo names a row by its kind and id, never its contents. The gateway that gets an echo reads the row, so a late or
repeated echo does no harm. Each echo lists the topics that it is about. It goes to gateways that asked for one of
those topics (`core/cluster/interests.py`), and to gateways that have something to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from backchannel.core.facts import (
    AccountHeld,
    ApprovalChanged,
    CheckDue,
    DeliveryChanged,
    Fact,
    GrowthWanted,
    GrowthWritten,
    LaneFree,
    MessageAppended,
    RunChanged,
    SessionChanged,
    TimerSet,
    TokenEnded,
    TranscriptClosed,
)
from backchannel.core.stored import StoredForm

EchoId = tuple[str, str]
"""A kind of row, and its id."""
Topic = tuple[str, str]
"""What somebody may want to hear of: a session by its key, a run by its id, or everything."""
SESSION = "session-"
"""Words about sessions have the reason in their kind."""
END = "end"
EVERYTHING: Topic = ("all", "")


class EchoText(msgspec.Struct, frozen=True, array_like=True):
    """Words as they are sent to everybody: the number of the gateway that says them, and which rows it changed."""

    sender: int
    words: list[EchoId]


class DirectedEcho(EchoText, frozen=True, array_like=True):
    """Words for the gateways of some numbers; a text without any is for everybody."""

    to: list[int] = []


_FOR_ALL: StoredForm[EchoText] = StoredForm(EchoText)
_DIRECTED: StoredForm[DirectedEcho] = StoredForm(DirectedEcho)
read_echo = _DIRECTED.read


def write_echo(sender: int, words: list[EchoId], to: list[int]) -> str:
    """Write a text, for everybody as gateways of the first version read it."""
    return _DIRECTED.write(DirectedEcho(sender, words, to)) if to else _FOR_ALL.write(EchoText(sender, words))


class Echo(NamedTuple):
    """A word, and what it is about."""

    word: EchoId
    about: tuple[Topic, ...] = ()


def token_word(id: str, *, is_device: bool) -> EchoId:
    """Name a token, or the token of a device."""
    return "device" if is_device else "token", id


def lane_word(key: str) -> EchoId:
    """Say that a run waits in a session whose lane may be free."""
    return "lane", key


def end_word(run_id: str) -> EchoId:
    """Ask how a run has ended, of which no word came; a gateway says this to itself alone."""
    return END, run_id


def session_topic(key: str) -> Topic:
    return "session", key


def run_topic(run_id: str) -> Topic:
    return "run", run_id


def echoes_of(facts: Iterable[Fact]) -> Iterator[tuple[Fact, Echo]]:
    """Name the rows that facts are about, as far as others may need to hear of them."""
    for fact in facts:
        echo = _echo_of(fact)
        if echo is not None:
            yield fact, echo


def _echo_of(fact: Fact) -> Echo | None:
    match fact:
        case RunChanged(run):
            return Echo(("run", run.id), (run_topic(run.id), session_topic(run.session_key)))
        case MessageAppended(key, message=message):
            return Echo(("message", message.id), (session_topic(key), run_topic(message.run_id or "")))
        case SessionChanged(key, reason):
            return Echo((SESSION + reason, key))
        case DeliveryChanged(delivery):
            about = session_topic(delivery.session_key), run_topic(delivery.run_id or "")
            return Echo(("delivery", delivery.id), about)
        case GrowthWritten(run_id):
            return Echo(("grew", run_id))
        case GrowthWanted(run_id):
            return Echo(("wanted", run_id))
        case LaneFree(key):
            return Echo(lane_word(key))
        case CheckDue(job_id):
            return Echo(("check", job_id))
        case TimerSet(due_at):
            return Echo(("timer", str(due_at)))
        case ApprovalChanged() | TokenEnded() | AccountHeld() | TranscriptClosed():
            return Echo(_rare_word(fact))
    # A pairing and a shadowed policy are only logged, which the process does that wrote it; a draft is removed by the
    # process that had it removed, or by whoever finds its row when that has ended.
    return None


def _rare_word(fact: ApprovalChanged | TokenEnded | AccountHeld | TranscriptClosed) -> EchoId:
    match fact:
        case ApprovalChanged(approval):
            return "approval", approval.id
        case TokenEnded(id, is_device):
            return token_word(id, is_device=is_device)
        case AccountHeld():
            return "hold", ""
        case TranscriptClosed():
            return "closed", fact.session_id
