"""Pairing: the way of a stranger to become a person whom a channel answers.

With `channels.<name>.pairing` a stranger's direct message is answered with a code, and is otherwise not read. The row
is *pending* until an owner answers. *Approved* authorises the person on this account of the channel. *Denied* makes the
channel ignore the person. A code expires after an hour, and the next message gets another. So a stranger gets at most
one code an hour, and at most `MOST_PENDING` wait at once on a channel.

A person is known by channel, account and sender id. Removing the row makes the person a stranger again.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from backchannel.core.delivery.channels import DEFAULT_ACCOUNT
from backchannel.core.delivery.outgoing import Button
from backchannel.core.policy.decisions import Decision
from backchannel.core.text import clean_name, cut, made_visible

ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
"""What codes are made of: nothing that is taken for something else when it is read aloud or typed."""
CODE_LENGTH = 8
PAIRING_LIFE_MS = 3_600_000
"""How long a code can be confirmed."""
MOST_PENDING = 50
"""How many strangers may wait on one channel: others are ignored until one of these is answered, or void."""

_LISTED = 20
_ID_SHOWN = 64
_LONGEST_WRITTEN = 64


class PairingState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"


class PairingRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a person whom the settings do not name; the fields are the columns of the row."""

    number: int
    channel: str
    account_id: str
    sender_id: str
    sender_name: str | None
    code: str
    state: PairingState
    session_key: str
    """Where their messages belong, on whose behalf they are told."""
    address: str
    """Where they wrote, as it is stored."""
    created_at: int
    answered_at: int | None = None
    answered_by: str | None = None

    def has_code(self, written: str, now: int) -> bool:
        """Whether this is its code, as a person typed it, and still counts; takes the same time whatever was typed."""
        is_same = hmac.compare_digest(self.code.encode(), read_code(written).encode("utf-8", "surrogatepass"))
        return is_same and is_fresh(self.created_at, now)

    def is_waiting(self, now: int) -> bool:
        """Whether an owner can still confirm it."""
        return self.state is PairingState.PENDING and is_fresh(self.created_at, now)

    @property
    def expires_at(self) -> int:
        return self.created_at + PAIRING_LIFE_MS


@dataclass(frozen=True, slots=True)
class SenderKnown:
    """What is known in the unit of a sender whom the settings do not name."""

    pairing: PairingRecord | None
    pending: int
    """How many wait on the channel."""
    now: int

    @property
    def is_approved(self) -> bool:
        return self.pairing is not None and self.pairing.state is PairingState.APPROVED


def is_fresh(created_at: int, now: int) -> bool:
    """Whether a code of this time still counts; one that a clock has written that was far ahead does not."""
    return abs(now - created_at) < PAIRING_LIFE_MS


def read_code(written: str) -> str:
    """Bring a code to the form in which it was made: case, spaces and hyphens do not matter."""
    return "".join(written[:_LONGEST_WRITTEN].upper().replace("-", " ").split())


def may_begin(known: SenderKnown, setting: str) -> Decision:
    """Decide whether a stranger who writes in a direct chat is sent a code."""
    rule = f"{setting}.pairing"
    if known.pairing is not None and known.pairing.state is PairingState.DENIED:
        return Decision(False, "an owner denied this sender (`backchannel pairing remove` forgets that)", rule)
    if known.pairing is not None and known.pairing.is_waiting(known.now):
        return Decision(False, "the sender has a code, and waits for an owner to confirm it", rule)
    if known.pending >= MOST_PENDING:
        reason = f"{known.pending} strangers wait on this channel already (answer them with `backchannel pairing`)"
        return Decision(False, reason, rule)
    return Decision(True, "the sender is a stranger, and was sent a code", rule)


# What is said


def code_text(code: str) -> str:
    """Word what a stranger reads: nothing of who answers here, or where."""
    return f"This bot does not know you yet. Ask its owner to run: backchannel pairing approve {code}"


def request_text(pairing: PairingRecord) -> str:
    """Word what an owner is asked."""
    how = f"/pairing approve {pairing.code} lets them, /pairing deny {pairing.code} ignores them."
    return f"{name_of(pairing)} wants to speak here.\n{how}"


def request_buttons(pairing: PairingRecord) -> tuple[Button, ...]:
    """Make the buttons under the request."""
    code = pairing.code
    return (Button("Let in", f"/pairing approve {code}"), Button("Ignore", f"/pairing deny {code}"))


def request_name(number: int) -> str:
    """Name the request of a stranger, for the deliveries that ask it."""
    return f"pairing:{number}"


EXPIRED_TEXT = "Nobody answered within an hour. The next message of this person gets another code."
APPROVED_TEXT = "You may speak here now. Write again: what you wrote before was not read."


def paired_text(pairing: PairingRecord) -> str:
    """Word what is said to whoever answered."""
    if pairing.state is PairingState.APPROVED:
        return f"{name_of(pairing)} may speak now, and is told so."
    return f"{name_of(pairing)} is ignored from now on."


def waiting_text(pairings: Sequence[PairingRecord], now: int) -> str:
    """Word what `/pairing list` answers."""
    if not pairings:
        return "Nobody waits to be let in."
    lines = [f"{each.code}: {name_of(each)}, {max(0, now - each.created_at) // 60_000} min ago" for each in pairings]
    more = [f"… and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    how = "/pairing approve <code> lets somebody speak, /pairing deny <code> ignores them."
    return "\n".join([*lines[:_LISTED], *more, how])


def name_of(pairing: PairingRecord) -> str:
    """Name a person for people: by the name that they gave, and the id that cannot be chosen."""
    shown_id = cut(made_visible(pairing.sender_id), _ID_SHOWN)
    account = "" if pairing.account_id == DEFAULT_ACCOUNT else f" {cut(made_visible(pairing.account_id), _ID_SHOWN)}"
    name = clean_name(pairing.sender_name or "")
    return f"{name} ({pairing.channel}{account} {shown_id})" if name else f"{pairing.channel}{account} {shown_id}"
