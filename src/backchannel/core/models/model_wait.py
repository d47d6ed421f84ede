"""Waits for a model: how long, and what is kept.

A run that no model of its row answers, where one may answer later, waits: `queued` with `resume_at`, and in its lane.
It is tried again after 1, 5 and 15 minutes, then every 30. A pause that the provider asks for counts, and so does the
time for which the model is left alone (`model_health.py`): a try before that would ask nobody.
"""

from __future__ import annotations

import msgspec

from backchannel.core.runs import Run
from backchannel.core.stored import StoredForm

WAIT_MINUTES = (1, 5, 15, 30)
"""After each try; the last one repeats."""
_SPREAD = 0.1
"""The largest part that chance adds to a wait, so that not all runs come back at the same moment."""
RELEASED_AT_ONCE = 2
"""How many waiting runs each answer of a provider lets go on: so a fleet comes back by doubling."""


class ModelWait(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The model that a run waits for. It is kept until a reply is committed."""

    model: str
    error: str
    """Why it gave no reply, redacted and cut."""
    since: int
    """When the run first began to wait in this step."""
    tries: int = 0
    """How often a model was asked in vain since then."""
    insists: bool = False
    """Whether a person let it go on: then a model is tried that is left alone."""


_STORED: StoredForm[ModelWait] = StoredForm(ModelWait)


def write_wait(wait: ModelWait) -> str:
    return _STORED.write(wait)


def read_wait(run: Run) -> ModelWait | None:
    """Read what a run waits for, or has waited for in this step."""
    return None if run.waits_for is None else _STORED.read(run.waits_for)


def required_wait(run: Run) -> ModelWait:
    """Read what a waiting run waits for."""
    wait = read_wait(run)
    if wait is None:
        raise LookupError(f"run {run.id!r} waits for nothing: the database was changed by another program")
    return wait


class WaitAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks for that no model answered."""

    model: str
    provider: str
    error: str
    was_asked: bool
    """Whether any model was asked; else all are left alone."""
    pause_s: float
    """The shortest wait that makes sense: the provider's own, or until the model may be tried again."""
    lasts_ms: int
    """How long a run may wait in all."""
    is_billed: bool = False
    """Whether the last call may have been billed."""
    chance: float
    """From 0 to 1."""


def next_wait(asked: WaitAsked, before: ModelWait | None, now: int) -> tuple[ModelWait, int] | None:
    """Decide how a run waits, and until when; None if it has waited long enough."""
    since = now if before is None else before.since
    tries = (0 if before is None else before.tries) + int(asked.was_asked)
    if now - since >= asked.lasts_ms:
        return None
    minutes = WAIT_MINUTES[min(max(0, tries - 1), len(WAIT_MINUTES) - 1)] if asked.was_asked else WAIT_MINUTES[0]
    wait_s = max(minutes * 60.0, min(asked.pause_s, asked.lasts_ms / 1000))
    until = now + int(wait_s * (1 + _SPREAD * asked.chance) * 1000)
    wait = ModelWait(model=asked.model, error=asked.error, since=since, tries=tries)
    return wait, min(until, since + asked.lasts_ms)
