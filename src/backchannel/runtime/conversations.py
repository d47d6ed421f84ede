"""Conversations: requests to models, each of which extends the one before.

What a request holds is folded from the transcript (`core/requests.py`) and kept between two requests (`kept.py`). So a
request costs what is new since the last one. The cut moves here too, in a commit before the request that needs it
(`core/cut.py`). A request that does not extend the last one gets a reason, which is stored with its reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from backchannel.core.budget import MIN_BUDGET, context_budget, estimate_tokens
from backchannel.core.contracts import Clock, MessageEncoder, Model, ModelRequest, sees_images
from backchannel.core.cut import (
    ContextMarks,
    Cut,
    clear,
    hide_pictures,
    leave_out,
    narrowed,
    narrower,
    read_cut,
    widened,
)
from backchannel.core.facts import MessageAppended, TranscriptClosed
from backchannel.core.messages import ImageBlock, Message
from backchannel.core.requests import Conversation, Line, View
from backchannel.core.runs import TranscriptHead
from backchannel.core.shape import RequestShape, difference, digest, write_shape
from backchannel.runtime.active import ActiveRun, RunSetup
from backchannel.runtime.compaction import Compaction, job_of
from backchannel.runtime.kept import ConversationCache, KeptConversation
from backchannel.runtime.pictures import Pictures, has_pictures
from backchannel.runtime.prompting import Prompts, RunPrompt
from backchannel.runtime.supervisor import DatabaseWait
from backchannel.service import Reactions, Service
from backchannel.storage.store import Store

T = TypeVar("T")

_BYTES_PER_TOKEN = 4
"""How much of a transcript is read for each token of the window: more than it can hold, so nothing is missed."""
_FOLDED_AT_ONCE = 64
"""How many messages are read on the event loop; more are read in a thread."""
_MOST_MOVES = 7
"""How often the cut moves for one request: a wider window, pictures, results, a summary, the oldest messages."""


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request, and what is stored with its reply."""

    request: ModelRequest
    mark: str
    """The mark of the session's headers."""
    tokens: int
    """About how many it has."""
    pictures: int
    """How many pictures it shows."""
    shape: str | None
    """The shape to store; None if it is stored already."""
    moved: str | None
    """Why it does not just extend the last request; None if it does."""
    cut: Cut
    prompt_tokens: int
    """How many of its tokens are no messages."""


class _View(msgspec.Struct, frozen=True):
    """A conversation at one moment, as its model would be shown it."""

    kept: KeptConversation
    conversation: Conversation
    cut: Cut
    prompt: RunPrompt
    last_step: list[Message]
    pictures: list[tuple[int, int]]
    """The places and sizes of the pictures."""
    tokens: int


class Conversations(Service):
    """Builds the requests of runs."""

    def __init__(
        self, store: Store, pictures: Pictures, compaction: Compaction, clock: Clock, wait: DatabaseWait
    ) -> None:
        self._store = store
        self._clock = clock
        self._compaction = compaction
        self._pictures = pictures
        self._durably = wait.durably
        self._prompts = Prompts(store.scheme)
        self._cache = ConversationCache()

    def reactions(self) -> Reactions:
        return {MessageAppended: self._appended, TranscriptClosed: self._ended}

    async def halt(self) -> None:
        self._cache.clear()

    def _appended(self, fact: MessageAppended) -> None:
        if fact.message.compaction is not None:  # the cut has moved with it
            self._cache.drop(fact.session_id)
        else:
            self._cache.appended(fact)

    def _ended(self, fact: TranscriptClosed) -> None:
        self._cache.drop(fact.session_id)

    async def request(self, active: ActiveRun, setup: RunSetup) -> PreparedRequest:
        """Build the next request of a run. The cut may move for it."""
        encoder = await _encoder_of(setup.model)
        try:
            view = await self._fitting(active, setup, encoder)
        except BaseException:  # what is kept may be half folded
            self._cache.drop(active.session_id)
            raise
        self._cache.put(active.session_id, view.kept)
        ending = b"" if encoder is None else await _ending(encoder, view)
        prepared = self._prepared(active, setup, view, None if encoder is None else ending)
        if prepared.shape is not None and view.kept.asked_by is not None:
            # If this run fails, the next request differs from this one, and its reply must say why.
            await self._durably(partial(self._store.keep_shape, active.fence, active.session_id, prepared.shape))
            self.committed(active, prepared)
        return prepared

    def committed(self, active: ActiveRun, prepared: PreparedRequest) -> None:
        """Take note that the reply to a request is stored, and the request's shape with it."""
        kept = self._cache.get(active.session_id)
        if kept is not None and kept.head is not None and prepared.shape is not None:
            kept.head = replace(kept.head, shape=prepared.shape)

    async def hide_pictures(self, active: ActiveRun) -> None:
        """Hide all pictures that are there now: the model refused one of them."""
        kept = self._cache.get(active.session_id)
        if kept is None or kept.head is None:
            return
        cut = read_cut(kept.head.cut)
        reason = "the model did not take a picture"
        await self._move(active, kept.head, replace(cut, pictures_before=kept.gap[0], reason=reason))

    def run_ended(self, active: ActiveRun, setup: RunSetup, prepared: PreparedRequest, reply: Message) -> None:
        """Begin a summary beside the lane, if the conversation has grown above the mark."""
        cut = prepared.cut
        marks = _marks(setup, cut)
        tokens = prepared.tokens + estimate_tokens(reply)
        if tokens > (marks.hard if cut.is_undone else marks.at) or (cut.has_gap and not cut.is_undone):
            self._compaction.beside(job_of(active, setup, prepared.prompt_tokens))

    async def shorter(
        self, active: ActiveRun, setup: RunSetup, prepared: PreparedRequest, limit: int | None
    ) -> PreparedRequest:
        """Build a request again that the provider found too long; `limit` is the number of tokens that it named.

        If what the provider said cannot be true, the request stays as it is.
        """
        window = narrower(prepared.tokens, limit)
        if window is None:
            return prepared
        kept = self._cache.get(active.session_id) or await self._load(active, setup.model)
        head = _head_of(kept)
        cut = narrowed(read_cut(head.cut), window, setup.model.ref, self._clock.now_ms())
        await self._move(active, head, cut)
        return await self.request(active, setup)

    # --- The cut ---

    async def _fitting(self, active: ActiveRun, setup: RunSetup, encoder: MessageEncoder | None) -> _View:
        """Move the cut until the request fits."""
        await self._compaction.take(active)
        for _ in range(_MOST_MOVES):
            view = await self._view(active, setup, encoder)
            if await self._carried(active, setup, view):
                continue
            cut = _next_cut(setup, view, self._clock.now_ms())
            if cut is None:
                break
            if cut.from_seq > view.cut.from_seq and view.kept.is_whole:
                why = await self._compaction.in_the_way(active, setup, view.prompt.tokens)
                if why is None:
                    continue
                cut = replace(cut, reason=f"{cut.reason}, and there is no summary: {why}")
            await self._move(active, _head_of(view.kept), cut)
        return view

    async def _carried(self, active: ActiveRun, setup: RunSetup, view: _View) -> bool:
        """Begin a new transcript with a summary of the one before, if asked for; returns whether it was written."""
        head = _head_of(view.kept)
        if head.carries_from is None or head.next_seq > 1 or view.cut.summary_id is not None:
            return False
        return await self._compaction.carry(active, setup, view.prompt.tokens, head.carries_from)

    async def _move(self, active: ActiveRun, head: TranscriptHead, cut: Cut) -> None:
        await self._durably(partial(self._store.move_cut, active.fence, active.session_id, head.cut, cut))
        self._cache.drop(active.session_id)

    # --- The conversation as it is now ---

    async def _view(self, active: ActiveRun, setup: RunSetup, encoder: MessageEncoder | None) -> _View:
        kept = await self._current(active, setup.model)
        head = _head_of(kept)
        cut, prompt = read_cut(head.cut), self._prompts.prompt(active, setup, head.mark)
        wanted = cut.view(
            head.mark,
            context_budget(cut.window_for(setup.model.ref, setup.model.context_window), prompt.tokens, 0),
            is_shared=setup.session.is_shared,
            shows_pictures=sees_images(setup.model) and not active.hides_pictures,
        )
        if not kept.is_for(wanted, _name_of(encoder), active.run.id):
            kept = await self._load(active, setup.model)
        kept, conversation = await self._folded(active, setup.model, kept, wanted, encoder)
        last_step, sizes = await self._pictures.loaded(conversation.last_step())
        return _View(
            kept=kept,
            conversation=conversation,
            cut=cut,
            prompt=prompt,
            last_step=last_step,
            pictures=list(zip(conversation.pictures, [*kept.picture_sizes, *sizes], strict=False)),
            tokens=prompt.tokens + conversation.tokens(last_step),
        )

    async def _current(self, active: ActiveRun, model: Model) -> KeptConversation:
        """Bring what is kept up to date, or read the transcript."""
        if active.take_return():
            return await self._load(active, model)
        kept, head = self._cache.get(active.session_id), active.take_head()
        if kept is None or (kept.head is None and head is None) or (head is not None and not kept.started(head)):
            return await self._load(active, model)
        low, high = kept.gap
        if low < high:
            kept.fill(await self._durably(partial(self._store.lines_between, active.session_id, low, high)))
        return kept

    async def _load(self, active: ActiveRun, model: Model) -> KeptConversation:
        read = partial(self._store.context, active.session_id, max_bytes=model.context_window * _BYTES_PER_TOKEN)
        part = await self._durably(read)
        make = partial(KeptConversation, part.lines, part.head, part.summary)
        return await _beside(len(part.lines), partial(make, begins=part.begins, is_whole=part.is_whole))

    async def _folded(
        self, active: ActiveRun, model: Model, kept: KeptConversation, view: View, encoder: MessageEncoder | None
    ) -> tuple[KeptConversation, Conversation]:
        """Fold what is new, and keep the steps that it closes."""
        name, run = _name_of(encoder), active.run
        if not await _beside(kept.waiting, partial(kept.fold, view, name, run.id, run.message_id)):
            kept = await self._load(active, model)
            own = await self._own_lines(active, kept)
            await _beside(kept.waiting, partial(kept.fold_in_order, view, name, run.id, own))
        conversation = _conversation_of(kept)
        steps = conversation.take_closed()
        is_long = len(steps)
        if await _beside(is_long, lambda: any(map(has_pictures, steps))):
            for i, step in enumerate(steps):
                steps[i], sizes = await self._pictures.loaded(step)
                kept.picture_sizes += sizes
            is_long = _FOLDED_AT_ONCE + 1
        await _beside(is_long, partial(_keep, kept, steps, encoder))
        return kept, conversation

    async def _own_lines(self, active: ActiveRun, kept: KeptConversation) -> list[Line]:
        """Read what the run said and did before the messages that are kept."""
        run, first = active.run, kept.begins
        return await self._durably(partial(self._store.own_lines, active.session_id, run.id, run.message_id, first))

    # --- The request ---

    def _prepared(self, active: ActiveRun, setup: RunSetup, view: _View, ending: bytes | None) -> PreparedRequest:
        """Put a request together; `ending` is its last step as bytes, if the model takes bytes."""
        kept, head = view.kept, _head_of(view.kept)
        messages: Sequence[Message] = ()
        encoded: tuple[bytes, ...] | None = None
        if ending is None:
            messages = (*kept.messages, *view.last_step)
        else:
            encoded = tuple(part for part in (bytes(kept.body), ending) if part)
        request = ModelRequest(
            system=view.prompt.system,
            messages=messages,
            tools=view.prompt.tools.specs,
            thinking=setup.thinking,
            uses_tools=setup.uses_tools,
            cache_key=active.session_id,
            encoded=encoded,
        )
        shape = RequestShape(
            model=setup.model.ref,
            system=view.prompt.system_digest,
            tools=view.prompt.tools.digest,
            thinking=setup.thinking,
            cut=None if head.cut is None else digest(head.cut),
            is_shared=setup.session.is_shared,
            hides_pictures=active.hides_pictures,
            asked_by=kept.asked_by,
        )
        stored = write_shape(shape)
        return PreparedRequest(
            request=request,
            mark=head.mark,
            tokens=view.tokens,
            pictures=len(view.pictures),
            shape=None if stored == head.shape else stored,
            moved=difference(head.shape, shape, view.cut),
            cut=view.cut,
            prompt_tokens=view.prompt.tokens,
        )


def _next_cut(setup: RunSetup, view: _View, now: int) -> Cut | None:
    """Decide where the cut goes before this request; None if it stays."""
    if (wide := widened(view.cut, setup.model.ref, now)) is not None:
        return wide
    window, marks = view.cut.window_for(setup.model.ref, setup.model.context_window), _marks(setup, view.cut)
    if (hidden := hide_pictures(view.cut, view.pictures)) is not None:
        return hidden
    if view.tokens > marks.at and (cleared := clear(view.conversation, view.cut, window)) is not None:
        return cleared
    if view.tokens > marks.hard or not view.kept.is_whole:
        return leave_out(view.conversation, view.cut, max(marks.rest - view.prompt.tokens, MIN_BUDGET))
    return None


def _keep(kept: KeptConversation, steps: list[list[Message]], encoder: MessageEncoder | None) -> None:
    kept.keep(steps, encoder)
    steps.clear()  # here, in the thread of a long conversation: to free its messages takes milliseconds


async def _beside(count: int, work: Callable[[], T]) -> T:
    """Do the work here, or in a thread if it is about many messages."""
    return await asyncio.to_thread(work) if count > _FOLDED_AT_ONCE else work()


async def _encoder_of(model: Model) -> MessageEncoder | None:
    """Ask a model for its encoder; one that has none takes messages."""
    make = getattr(model, "encoder", None)
    return None if make is None else await make()


async def _ending(encoder: MessageEncoder, view: _View) -> bytes:
    """Encode the last step of a request; pictures take long, so they are written in a thread."""
    if not view.last_step:
        return b""
    has_images = any(isinstance(block, ImageBlock) for message in view.last_step for block in message.content)
    encode = partial(encoder.encode, view.last_step, is_last=True)
    return await _beside(_FOLDED_AT_ONCE + 1 if has_images else 0, encode)


def _name_of(encoder: MessageEncoder | None) -> str | None:
    return None if encoder is None else encoder.name


def _marks(setup: RunSetup, cut: Cut) -> ContextMarks:
    context = setup.agent.context
    return ContextMarks.of(cut.window_for(setup.model.ref, setup.model.context_window), context.at, context.hard)


def _head_of(kept: KeptConversation) -> TranscriptHead:
    if kept.head is None:
        raise LookupError("the transcript's row was not read")
    return kept.head


def _conversation_of(kept: KeptConversation) -> Conversation:
    if kept.conversation is None:
        raise LookupError("the conversation was not folded")
    return kept.conversation
