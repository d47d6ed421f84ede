"""Health of models: which are left alone after a failure.

A model is *up* until a run has given up on it. Then all runs of the process leave it alone: 10 seconds, twice as long
after each further failure, up to 10 minutes, or as long as its provider asks for. When that time is over, one run
probes it. The others still leave it alone. A provider has one probe at a time, whichever of its models it is for.

- A failure that may pass (rate limit, overload, connection, no answer) leaves the model alone.
- So does a failure for good that is the model's own (wrong key, unknown model). It only moves a run on to its next
  model: without one, the model is asked all the same, since a person may have mended it.
- A refused input is about one conversation, and leaves nothing alone.

Everything here is lost with the process. Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from backchannel.core.contracts import ModelFailed
from backchannel.core.models.model_row import provider_of
from backchannel.core.supervision import Backoff

LEFT_ALONE = Backoff(10.0, 600.0)
_LONGEST_S = 3600.0
"""The longest that a provider may ask for: then it is tried again."""


class Standing(Enum):
    """How a run may treat a model now."""

    UP = "up"
    PROBE = "probe"
    """One attempt, by this run alone."""
    LEFT_ALONE = "left alone"


class ModelDown(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is left alone, and why."""

    ref: str
    error: str
    may_pass: bool
    failures: int
    """In a row, each after a time alone."""
    since: float
    until: float


class ModelHealth:
    """The models of one process."""

    def __init__(self) -> None:
        self._down: dict[str, ModelDown] = {}
        self._probed: dict[str, str] = {}
        """The model that is probed, by provider."""

    def standing(self, ref: str, now: float, *, insists: bool = False) -> Standing:
        """Tell how a model may be treated. With `insists`, a person wants it tried before its time is over."""
        down = self._down.get(ref)
        if down is None:
            return Standing.UP
        is_free = provider_of(ref) not in self._probed
        return Standing.PROBE if (insists or now >= down.until) and is_free else Standing.LEFT_ALONE

    def begin_probe(self, ref: str) -> None:
        """Take the provider's one probe; `end_probe` must follow."""
        self._probed[provider_of(ref)] = ref

    def end_probe(self, ref: str) -> None:
        if self._probed.get(provider_of(ref)) == ref:
            del self._probed[provider_of(ref)]

    def failed(self, ref: str, failure: ModelFailed, now: float, *, is_probe: bool) -> ModelDown | None:
        """Note that a run gave up on a model; returns how it is left alone, None if it is not.

        Many runs may fail at the same moment: only the first one counts, and then each probe.
        """
        down = self._down.get(ref)
        if not failure.retryable and not failure.is_models_own:
            return down
        if down is not None and not is_probe:
            return self._longer(down, now, failure)
        failures = 1 if down is None else down.failures + 1
        down = ModelDown(
            ref=ref,
            error=failure.message,
            may_pass=failure.retryable,
            failures=failures,
            since=now if down is None else down.since,
            until=now + LEFT_ALONE.pause_s(failures),
        )
        self._down[ref] = down
        return self._longer(down, now, failure)

    def _longer(self, down: ModelDown, now: float, failure: ModelFailed) -> ModelDown:
        """Leave a model alone for as long as its provider asks."""
        asked_s = failure.retry_after_s
        if asked_s is not None and now + asked_s > down.until:  # NaN asks for nothing
            down = self._down[down.ref] = msgspec.structs.replace(down, until=now + min(asked_s, _LONGEST_S))
        return down

    def answered(self, ref: str) -> None:
        """Note that a model has answered: it is up."""
        self._down.pop(ref, None)

    def down(self, ref: str) -> ModelDown | None:
        """Give the state of a model that has failed; None if it is up."""
        return self._down.get(ref)

    def all_down(self) -> list[ModelDown]:
        """List the models that are left alone, or wait for their probe."""
        return sorted(self._down.values(), key=lambda down: down.ref)
