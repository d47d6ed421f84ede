"""Values that exchanges and spawns share: the end of a run, and common actions.

Both are state machines. Their step is a pure function from an event to the next state and these actions. Each has more
values in `exchange_values.py` and `spawn_values.py`. They stand apart from the steps because the texts use them too.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Provenance
from backchannel.core.policy.decisions import Decision
from backchannel.core.runs import Chain, RunKind, RunState
from backchannel.core.sessions import Address


class RunEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a flow ended, in whatever way: done, failed, timed out, aborted."""

    run_id: str
    state: RunState
    reply: str | None = None
    error: str | None = None
    has_started: bool = True
    """Whether its message entered the transcript."""


class QueueRun(msgspec.Struct, frozen=True, kw_only=True):
    """Accept this run."""

    id: str
    kind: RunKind
    key: SessionKey
    texts: tuple[str, ...]
    """The blocks of its message."""
    provenance: Provenance
    chain: Chain
    timeout_s: float | None = None
    reply_to: Address | None = None
    """Where what it starts answers to; None is the session's return address."""


class AbortRun(msgspec.Struct, frozen=True):
    """Abort a run that is queued and, if `even_running`, one that is at work."""

    run_id: str
    even_running: bool = True


class Settle(msgspec.Struct, frozen=True, kw_only=True):
    """Settle the receipt: nothing is sent."""

    outcome: StrEnum
    reason: str


class FlowRefused(msgspec.Struct, frozen=True):
    """A send or a spawn that was not accepted: nothing happened."""

    decision: Decision
