"""Asking: one reply of a model, asked again after a failure that may pass.

Nothing of a failed attempt is kept: its streamed text is dropped, and only the reply that is returned is committed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from backchannel.agents.gates import Gate
from backchannel.core.commands.control_words import held_back
from backchannel.core.contracts import Clock, Model, ModelFailed, ModelReply, ModelRequest, TextDelta, ThinkingDelta
from backchannel.core.headers import MarkFilter
from backchannel.core.secrets.redaction import redact
from backchannel.core.supervision import Backoff
from backchannel.core.text import cut, storable_text
from backchannel.errors import Unavailable
from backchannel.runtime.active import ActiveRun, RunSetup
from backchannel.runtime.conversations import Conversations, PreparedRequest
from backchannel.runtime.events import Hub, ModelRetried, ReplyGrew, ThinkingGrew
from backchannel.runtime.spending import Spending
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

MODEL_CALL_LIMIT_S = 600.0
ATTEMPTS = 5
"""How often a model is asked before a retryable failure counts."""
_BACKOFF = Backoff(0.5, 30.0)
DELTA_INTERVAL_S = 0.05
RETRY_REASON = 1000
"""How much is kept of why a model was asked again."""


class Asking:
    """Asks a run's model for its next reply."""

    def __init__(
        self, store: Store, conversations: Conversations, spending: Spending, gate: Gate, hub: Hub, clock: Clock
    ) -> None:
        self._store = store
        self._conversations = conversations
        self._spending = spending
        self._gate = gate
        self._hub = hub
        self._clock = clock

    async def reply(self, active: ActiveRun, setup: RunSetup) -> tuple[PreparedRequest, ModelReply]:
        """Ask the model, and retry after a temporary failure. Nothing of a failed attempt is kept."""
        prepared = await self._conversations.request(active, setup)
        active.mark, agent_id = prepared.mark, setup.agent.id
        for attempt in range(1, ATTEMPTS + 1):
            request = await self._spending.reserved(active, setup.model, prepared)
            self._store.check_lease()
            limit = asyncio.timeout(MODEL_CALL_LIMIT_S)
            try:
                async with self._gate.slot(agent_id, active.run.session_key, setup.model.ref, active.run.id), limit:
                    reply = await self._stream(active, setup.model, request)
                    self._spending.replied(active, setup.model, prepared, reply)
                    return prepared, reply
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ModelFailed(f"no reply within {MODEL_CALL_LIMIT_S:g} s", retryable=False) from None
            except ModelFailed as failed:
                active.is_sent = failed.is_billed
                if failed.is_too_long and attempt < ATTEMPTS:
                    prepared = await self._shorter(active, setup, prepared, failed)
                    continue
                if prepared.pictures and (not failed.retryable or attempt == ATTEMPTS - 1):
                    prepared = await self._without_pictures(active, setup, failed)
                    if not failed.retryable:
                        continue
                if not failed.retryable or attempt == ATTEMPTS:
                    raise
                await self._back_off(active, failed, attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _shorter(
        self, active: ActiveRun, setup: RunSetup, prepared: PreparedRequest, failed: ModelFailed
    ) -> PreparedRequest:
        """Build a shorter request, because the provider does not take one of this length.

        Raises:
            ModelFailed: nothing more can be left out.
        """
        log.info("the request is too long, asking with less", run_id=active.run.id, error=failed.message)
        active.text = ""
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
        active.text = ""
        if failed.retryable:
            active.hides_pictures = True
        else:
            await self._conversations.hide_pictures(active)
        return await self._conversations.request(active, setup)

    async def _back_off(self, active: ActiveRun, failed: ModelFailed, attempt: int) -> None:
        active.text = ""
        wait_s = _BACKOFF.pause_s(attempt)
        asked_s = failed.retry_after_s
        if asked_s is not None and asked_s > wait_s:  # a time in the past, or NaN, asks for nothing
            wait_s = min(asked_s, _BACKOFF.longest_s * 2)
        log.info(
            "model failed, asking again", run_id=active.run.id, error=failed.message, attempt=attempt, wait_s=wait_s
        )
        why, wait_ms = cut(redact(storable_text(failed.message))[0], RETRY_REASON), int(wait_s * 1000)
        self._hub.publish(ModelRetried(active.run, why, attempt, self._clock.now_ms() + wait_ms, ATTEMPTS))
        with suppress(Unavailable):  # only people read this: the run does not wait for disk space to store it
            active.run = await self._store.note_retry(active.fence, why, wait_ms, is_sent=active.is_sent)
            active.is_sent = False
        await self._clock.sleep(wait_s)

    async def _stream(self, active: ActiveRun, model: Model, request: ModelRequest) -> ModelReply:
        shown, shown_at, reply = "", 0.0, None
        said, thought = MarkFilter(active.mark), MarkFilter(active.mark)
        active.is_sent = True
        try:
            async for event in model.stream(request):
                match event:
                    case TextDelta(text):
                        active.text += said.feed(text)
                        now = self._clock.monotonic()
                        if now - shown_at >= DELTA_INTERVAL_S:
                            shown, shown_at = self._show(active, shown), now
                    case ThinkingDelta(text):
                        self._think(active, thought.feed(text))
                    case ModelReply():
                        reply = event
        finally:
            active.text += said.flush()  # the streamed text of a stopped run is kept
            self._think(active, thought.flush())
        if reply is None:
            raise ModelFailed("the model ended its stream without a reply", retryable=True)
        if active.text != shown:
            self._show(active, shown)
        return reply

    def _think(self, active: ActiveRun, text: str) -> None:
        if text:
            self._hub.publish(ThinkingGrew(active.run, storable_text(text)))

    def _show(self, active: ActiveRun, shown: str) -> str:
        """Publish the new text of a reply, unless the reply may still become a control word."""
        text = held_back(active.text)
        if text != shown:
            self._hub.publish(ReplyGrew(active.run, storable_text(text), storable_text(text[len(shown) :])))
        return text
