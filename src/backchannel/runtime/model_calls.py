"""Calls of models: single attempts, and rows.

Runs (`runtime/asking.py`) and summaries (`runtime/summaries.py`) ask through this. So slots, time limits and what is
left alone hold for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec
import structlog

from backchannel.agents.gates import Gate
from backchannel.agents.models import Models
from backchannel.core.contracts import Clock, Model, ModelEvent, ModelFailed, ModelReply, ModelRequest
from backchannel.core.facts import RunChanged
from backchannel.core.models.model_health import ModelDown, ModelHealth, Standing
from backchannel.core.models.model_row import ModelRow, provider_of
from backchannel.core.secrets.redaction import redact
from backchannel.core.text import cut, storable_text
from backchannel.errors import FenceLost, Unavailable, UnknownModel
from backchannel.runtime.cluster.duties import Duties
from backchannel.runtime.supervisor import Tasks
from backchannel.service import Reactions, Service
from backchannel.storage.store import Store
from backchannel.wire.rows import ModelLeftAlone

log = structlog.get_logger(__name__)
T = TypeVar("T")

MOST_OF_ERROR = 1000
"""How much is kept of why a model failed."""
_LOOK_AGAIN_S = 30.0
"""How often is looked for runs of other gateways that wait."""


class ModelCaller(msgspec.Struct, frozen=True):
    """On whose behalf a model is asked."""

    agent_id: str
    session_key: str
    run_id: str | None = None


class FailedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a row that gave no reply."""

    ref: str
    error: ModelFailed | UnknownModel
    was_asked: bool
    left_alone_s: float = 0.0
    """How long it is left alone from now on."""

    @property
    def may_pass(self) -> bool:
        return isinstance(self.error, ModelFailed) and self.error.retryable


class NoModelAnswered(Exception):
    """No model of a row gave a reply; the failures are in the order of the row."""

    def __init__(self, failures: list[FailedModel]) -> None:
        super().__init__(self._words(failures))
        self.failures = failures
        self.message = str(self)

    @property
    def may_pass(self) -> bool:
        """Whether one of them may answer later."""
        return any(failure.may_pass for failure in self.failures)

    @property
    def awaited(self) -> FailedModel:
        """The model to wait for: the first that may answer later."""
        return next(failure for failure in self.failures if failure.may_pass)

    @property
    def pause_s(self) -> float:
        """How long none of those that may answer later can be tried."""
        return min(failure.left_alone_s for failure in self.failures if failure.may_pass)

    @property
    def was_asked(self) -> bool:
        return any(failure.was_asked for failure in self.failures)

    @staticmethod
    def _words(failures: list[FailedModel]) -> str:
        first, *others = failures
        return "; ".join([first.error.message, *(f"{other.ref}: {other.error.message}" for other in others)])


class ModelCalls:
    """Asks models, and remembers which are left alone."""

    def __init__(self, store: Store, models: Models, gate: Gate, clock: Clock, answered: Callable[[str], None]) -> None:
        """Make it; `answered` is told the model of each answer."""
        self._tell_answered = answered
        self._store = store
        self._models = models
        self._gate = gate
        self._clock = clock
        self.health = ModelHealth()

    async def call(
        self, caller: ModelCaller, model: Model, request: ModelRequest, take: Callable[[ModelEvent], None]
    ) -> ModelReply:
        """Ask a model once; `take` gets each piece of its answer.

        Raises:
            ModelFailed: it gave no whole answer, or not in time.
        """
        self._store.check_lease()
        limit_s, reply = self._models.timeouts(model.ref).total_s, None
        limit = asyncio.timeout(limit_s)
        try:
            async with self._gate.slot(caller.agent_id, caller.session_key, model.ref, caller.run_id), limit:
                async for event in model.stream(request):
                    if isinstance(event, ModelReply):
                        reply = event
                    else:
                        take(event)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ModelFailed(f"{model.ref} gave no whole answer within {limit_s:g} s", retryable=True) from None
        if reply is None:
            raise ModelFailed("the model ended its stream without a reply", retryable=True)
        self._answered(model.ref)
        return msgspec.structs.replace(reply, usage=reply.usage.sound)

    async def in_row(
        self,
        row: ModelRow,
        ask: Callable[[Model, bool], Awaitable[T]],
        moved_on: Callable[[FailedModel, str], Awaitable[None]] | None = None,
        *,
        leaves_alone: bool = True,
        insists: bool = False,
    ) -> T:
        """Ask the models of a row until one gives a reply. `ask` is told whether it may ask only once.

        `moved_on` is called before the next model is asked. Without `leaves_alone`, a failure counts for nobody else.
        With `insists`, models are tried that are left alone.

        Raises:
            NoModelAnswered: none did.
        """
        failures: list[FailedModel] = []
        for ref in self._in_turn(row, failures, insists=insists):
            if moved_on is not None and failures and failures[-1].was_asked:
                await moved_on(failures[-1], ref)
            is_probe = self._standing(ref, insists) is Standing.PROBE
            try:
                return await self._ask_one(ref, ask, is_probe=is_probe)
            except ModelFailed as failed:
                down = self._failed(ref, failed, is_probe=is_probe) if leaves_alone else self.health.down(ref)
                failures.append(self._gave_up(ref, failed, down))
            except UnknownModel as unusable:
                failures.append(FailedModel(ref=ref, error=unusable, was_asked=False))
        failures.sort(key=lambda failure: row.refs.index(failure.ref))
        raise NoModelAnswered(failures)

    def _standing(self, ref: str, insists: bool) -> Standing:
        return self.health.standing(ref, self._clock.monotonic(), insists=insists)

    def _in_turn(self, row: ModelRow, failures: list[FailedModel], *, insists: bool) -> Iterator[str]:
        """Give the models to ask. Those that are left alone are passed over.

        If nothing else may answer later, models whose own failure does not pass are asked all the same: a person may
        have mended them.
        """
        mended = []
        for ref in row.refs:
            down = self.health.down(ref)
            if down is None or self._standing(ref, insists) is not Standing.LEFT_ALONE:
                yield ref
            elif down.may_pass:
                failures.append(self._left_alone(down))
            else:
                mended.append(down)
        is_hopeless = not any(failure.may_pass for failure in failures)
        for down in mended:
            if is_hopeless:
                yield down.ref
            else:
                failures.append(self._left_alone(down))

    async def _ask_one(self, ref: str, ask: Callable[[Model, bool], Awaitable[T]], *, is_probe: bool) -> T:
        model = self._models.get(ref)
        if not is_probe:
            return await ask(model, False)
        self.health.begin_probe(ref)
        try:
            return await ask(model, True)
        finally:
            self.health.end_probe(ref)

    def _failed(self, ref: str, failed: ModelFailed, *, is_probe: bool) -> ModelDown | None:
        was_up = self.health.down(ref) is None
        down = self.health.failed(ref, failed, self._clock.monotonic(), is_probe=is_probe)
        if down is not None and was_up:
            log.warning("a model is left alone", model=ref, error=shown_error(failed.message))
        return down

    def _gave_up(self, ref: str, failed: ModelFailed, down: ModelDown | None) -> FailedModel:
        left_s = 0.0 if down is None else max(0.0, down.until - self._clock.monotonic())
        return FailedModel(ref=ref, error=failed, was_asked=True, left_alone_s=left_s)

    def _left_alone(self, down: ModelDown) -> FailedModel:
        error = ModelFailed(down.error, retryable=down.may_pass, is_models_own=not down.may_pass)
        left_s = max(0.0, down.until - self._clock.monotonic())
        return FailedModel(ref=down.ref, error=error, was_asked=False, left_alone_s=left_s)

    def all_down(self) -> list[ModelLeftAlone]:
        """List the models that are left alone, for people."""
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        return [
            ModelLeftAlone(
                model=down.ref,
                error=shown_error(down.error),
                since=now_ms - int((now - down.since) * 1000),
                until=now_ms + max(0, int((down.until - now) * 1000)),
            )
            for down in self.health.all_down()
        ]

    def _answered(self, ref: str) -> None:
        if self.health.down(ref) is not None:
            self.health.answered(ref)
            log.info("a model answers again", model=ref)
        self._tell_answered(ref)


def shown_error(message: str) -> str:
    """Write a provider's message as people may see it."""
    return cut(redact(storable_text(message))[0], MOST_OF_ERROR)


class Releases(Service):
    """Lets runs go on when the provider that they wait for answers.

    Each answer releases two. Those answers release more, so a fleet comes back by doubling. A new failure stops it:
    nothing is released without an answer. This process knows its own runs. On a shared database it looks for those of
    others now and then. A run that nobody releases goes on at its time.
    """

    name = "releases"

    def __init__(self, store: Store, clock: Clock, duties: Duties) -> None:
        self._store = store
        self._clock = clock
        self._duties = duties
        self._awaited: set[str] = set()
        """The providers that runs wait for, as far as is known here."""
        self._busy: set[str] = set()
        self._looked_at = 0.0
        self._tasks = Tasks()

    def reactions(self) -> Reactions:
        return {RunChanged: self._on_run}

    async def start(self) -> None:
        await self._look()

    async def halt(self) -> None:
        await self.close()

    async def close(self) -> None:
        await self._tasks.cancel()

    def answered(self, ref: str) -> None:
        """Take note of an answer of a model."""
        provider = provider_of(ref)
        is_old = self._duties.is_shared and self._clock.monotonic() - self._looked_at > _LOOK_AGAIN_S
        if (provider in self._awaited or is_old) and provider not in self._busy:
            self._busy.add(provider)
            self._tasks.spawn(self._release(provider, looks=is_old))

    def _on_run(self, fact: RunChanged) -> None:
        if fact.run.waits_on is not None:
            self._awaited.add(fact.run.waits_on)

    async def _look(self) -> None:
        self._looked_at = self._clock.monotonic()
        self._awaited |= set(await self._store.awaited_providers())

    async def _release(self, provider: str, *, looks: bool) -> None:
        try:
            if looks:
                await self._look()
            if provider in self._awaited:
                self._awaited.discard(provider)  # before the look: a run that begins to wait meanwhile is not missed
                if await self._store.release_waiting(provider):
                    self._awaited.add(provider)
        except (Unavailable, FenceLost) as error:
            self._awaited.add(provider)
            log.debug("no waiting run was released", provider=provider, error=str(error))
        finally:
            self._busy.discard(provider)
