"""Asking: one reply for a run, from its row of models.

A model is asked again soon after a failure that may pass, then the next model is. Nothing of a failed attempt is kept:
its streamed text is dropped, and only the reply that is returned is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import structlog

from backchannel.core.commands.control_words import held_back
from backchannel.core.contracts import (
    Clock,
    Model,
    ModelEvent,
    ModelFailed,
    ModelReply,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    Tool,
)
from backchannel.core.headers import MarkFilter
from backchannel.core.models.model_row import ModelRow
from backchannel.core.models.model_wait import read_wait
from backchannel.core.supervision import Backoff
from backchannel.core.text import storable_text
from backchannel.errors import Unavailable
from backchannel.runtime.active import ActiveRun, RunSetup
from backchannel.runtime.conversations import Conversations, PreparedRequest
from backchannel.runtime.events import Hub, ModelRetried, ReplyGrew, ThinkingGrew
from backchannel.runtime.model_calls import FailedModel, ModelCaller, ModelCalls, shown_error
from backchannel.runtime.spending import Spending
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

ATTEMPTS = 5
"""How often a model is asked before a retryable failure counts."""
_BACKOFF = Backoff(0.5, 30.0)
DELTA_INTERVAL_S = 0.05
QUICK_S = 30.0
"""A model that is slow to fail, or asks for a longer pause, is not asked again at once."""


class SetupsInRow(NamedTuple):
    """The models that a run may ask, and what it works with for each."""

    row: ModelRow
    retry_for_s: float
    """How long the run may wait for them in all."""
    tools: Mapping[str, Tool]
    make: Callable[[Model], RunSetup]


class AskedReply(NamedTuple):
    """A reply, with the model that gave it and the request that it answers."""

    setup: RunSetup
    prepared: PreparedRequest
    reply: ModelReply


class Asking:
    """Asks a run's model for its next reply."""

    def __init__(
        self, store: Store, conversations: Conversations, spending: Spending, calls: ModelCalls, hub: Hub, clock: Clock
    ) -> None:
        self._store = store
        self._conversations = conversations
        self._spending = spending
        self._calls = calls
        self._hub = hub
        self._clock = clock

    async def reply(self, active: ActiveRun, setups: SetupsInRow) -> AskedReply:
        """Ask the models of a run in their order, each a few times. Nothing of a failed attempt is kept.

        Raises:
            NoModelAnswered: none of them gave a reply.
        """

        wait = read_wait(active.run)

        async def ask(model: Model, is_probe: bool) -> AskedReply:
            return await self._quickly(active, setups.make(model), attempts=1 if is_probe else ATTEMPTS)

        return await self._calls.in_row(
            setups.row, ask, partial(self._moved_on, active), insists=wait is not None and wait.insists
        )

    async def _quickly(self, active: ActiveRun, setup: RunSetup, *, attempts: int) -> AskedReply:
        """Ask one model, and retry soon after a failure that may pass."""
        prepared = await self._conversations.request(active, setup)
        active.mark, began, hid_pictures = prepared.mark, self._clock.monotonic(), active.hides_pictures
        for attempt in range(1, ATTEMPTS + 1):
            asked_at = self._clock.monotonic()
            request = await self._spending.reserved(active, setup.model, prepared)
            try:
                reply = await self._stream(active, setup, request)
                self._spending.replied(active, setup.model, prepared, reply)
                return AskedReply(setup, prepared, reply)
            except ModelFailed as failed:
                active.text, active.is_sent = "", failed.is_billed
                if failed.is_too_long and attempt < ATTEMPTS:
                    prepared = await self._shorter(active, setup, prepared, failed)
                    continue
                if self._may_be_pictures(prepared, failed, attempt):
                    prepared = await self._without_pictures(active, setup, failed)
                    if not failed.retryable:
                        continue
                if not failed.retryable or attempt >= attempts or self._takes_long(failed, began):
                    active.forgive(asked_at)
                    active.hides_pictures = hid_pictures  # they were not the reason: another model may see them
                    raise
                await self._back_off(active, failed, attempt)
                active.forgive(asked_at)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _may_be_pictures(self, prepared: PreparedRequest, failed: ModelFailed, attempt: int) -> bool:
        if not prepared.pictures or failed.is_models_own or attempt == ATTEMPTS:
            return False
        return not failed.retryable or attempt == ATTEMPTS - 1

    def _takes_long(self, failed: ModelFailed, began: float) -> bool:
        """Tell whether the next try is not soon: a provider asks for a long pause, or failed slowly."""
        asked_s = failed.retry_after_s
        return (asked_s is not None and asked_s > QUICK_S) or self._clock.monotonic() - began > QUICK_S

    async def _moved_on(self, active: ActiveRun, failed: FailedModel, ref: str) -> None:
        """Tell that the next model is asked."""
        why = f"{failed.ref} failed, and {ref} is asked: {shown_error(failed.error.message)}"
        log.info("a model failed, asking the next", run_id=active.run.id, model=failed.ref, next=ref)
        await self._tell(active, why, 1, 0)

    async def _shorter(
        self, active: ActiveRun, setup: RunSetup, prepared: PreparedRequest, failed: ModelFailed
    ) -> PreparedRequest:
        """Build a shorter request, because the provider does not take one of this length.

        Raises:
            ModelFailed: nothing more can be left out.
        """
        log.info("the request is too long, asking with less", run_id=active.run.id, error=failed.message)
        shorter = await self._conversations.shorter(active, setup, prepared, failed.limit_tokens)
        if shorter.tokens >= prepared.tokens:
            why = f"the request is too long, and nothing more can be left out of it ({failed.message})"
            raise ModelFailed(why, retryable=False, is_too_long=True, limit_tokens=failed.limit_tokens)
        return shorter

    async def _without_pictures(self, active: ActiveRun, setup: RunSetup, failed: ModelFailed) -> PreparedRequest:
        """Build the request again without its pictures.

        One broken picture would make every later request of the session fail too. Some servers answer 500 if their
        model takes no pictures: then they are left out for this run only, since there may be another reason.
        """
        log.info("model failed, asking without pictures", run_id=active.run.id, error=failed.message)
        if failed.retryable:
            active.hides_pictures = True
        else:
            await self._conversations.hide_pictures(active)
        return await self._conversations.request(active, setup)

    async def _back_off(self, active: ActiveRun, failed: ModelFailed, attempt: int) -> None:
        wait_s = _BACKOFF.pause_s(attempt)
        asked_s = failed.retry_after_s
        if asked_s is not None and asked_s > wait_s:  # a time in the past, or NaN, asks for nothing
            wait_s = asked_s
        log.info(
            "model failed, asking again", run_id=active.run.id, error=failed.message, attempt=attempt, wait_s=wait_s
        )
        await self._tell(active, shown_error(failed.message), attempt, int(wait_s * 1000))
        await self._clock.sleep(wait_s)

    async def _tell(self, active: ActiveRun, why: str, attempt: int, wait_ms: int) -> None:
        self._hub.publish(ModelRetried(active.run, why, attempt, self._clock.now_ms() + wait_ms, ATTEMPTS))
        with suppress(Unavailable):  # only people read this: the run does not wait for disk space to store it
            active.run = await self._store.note_retry(active.fence, why, wait_ms, is_sent=active.is_sent)
            active.is_sent = False

    async def _stream(self, active: ActiveRun, setup: RunSetup, request: ModelRequest) -> ModelReply:
        shown = _ShownReply(active, self._hub, self._clock)
        caller = ModelCaller(setup.agent.id, active.run.session_key, active.run.id)
        active.is_sent = True
        try:
            reply = await self._calls.call(caller, setup.model, request, shown.take)
        finally:
            shown.flush()
        shown.show()
        return reply


class _ShownReply:
    """A reply as it is streamed: the run keeps its text, and listeners see it grow."""

    def __init__(self, active: ActiveRun, hub: Hub, clock: Clock) -> None:
        self._active = active
        self._hub = hub
        self._clock = clock
        self._said, self._thought = MarkFilter(active.mark), MarkFilter(active.mark)
        self._shown, self._shown_at = "", 0.0

    def take(self, event: ModelEvent) -> None:
        match event:
            case TextDelta(text):
                self._active.text += self._said.feed(text)
                now = self._clock.monotonic()
                if now - self._shown_at >= DELTA_INTERVAL_S:
                    self._shown_at = now
                    self.show()
            case ThinkingDelta(text):
                self._think(self._thought.feed(text))

    def flush(self) -> None:
        """Take what the filters still hold: the streamed text of a stopped run is kept."""
        self._active.text += self._said.flush()
        self._think(self._thought.flush())

    def show(self) -> None:
        """Publish the new text of the reply, unless the reply may still become a control word."""
        if self._active.text == self._shown:
            return
        text = held_back(self._active.text)
        if text != self._shown:
            delta = storable_text(text[len(self._shown) :])
            self._hub.publish(ReplyGrew(self._active.run, storable_text(text), delta))
        self._shown = text

    def _think(self, text: str) -> None:
        if text:
            self._hub.publish(ThinkingGrew(self._active.run, storable_text(text)))
