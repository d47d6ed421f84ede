"""Summaries: the covered part is read, and a model asked chunk by chunk."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from backchannel.config.agents import AgentSettings
from backchannel.core.budget import MIN_BUDGET, context_budget, estimate_tokens, text_tokens
from backchannel.core.compaction.entry import entry_text, files_in, summary_in
from backchannel.core.compaction.prompting import (
    SummaryFailed,
    SummaryRoom,
    chunk_tokens,
    read_summary,
    summary_request,
)
from backchannel.core.compaction.telling import CoveredPart
from backchannel.core.compaction.values import MadeSummary
from backchannel.core.contracts import Clock, Model, ModelFailed, ModelReply, ModelRequest
from backchannel.core.cut import NO_CUT, ContextMarks, Cut, beginning, read_cut
from backchannel.core.messages import CompactionEntry, Message, Role, Usage, text_content, text_of
from backchannel.core.requests import Conversation, Line, TranscriptPart, View, ViewStart
from backchannel.core.run_order import in_order, settled_places
from backchannel.core.text import storable_text
from backchannel.runtime.holding import Holding
from backchannel.runtime.model_calls import ModelCaller, ModelCalls
from backchannel.runtime.supervisor import DatabaseWait
from backchannel.storage.ids import new_id
from backchannel.storage.store import Store

SUMMARY_LIMIT_S = 300.0
"""How long a model may take for one chunk."""
_BYTES_PER_TOKEN = 4
_READ_AT_ONCE = 256
_LEAST_MESSAGES = 4
_WORTH_MESSAGES = 16
"""So many messages are worth a summary, however short they are. Else it would be made anew after each run."""
_ASKED_REST = 4
"""A person who asks for a summary wants a short view: a fourth of it stays."""


class NothingToCompact(Exception):
    """There is no older part that a summary could stand for."""


class CompactionJob(msgspec.Struct, frozen=True, kw_only=True):
    """A summary to be made."""

    key: str
    session_id: str
    agent: AgentSettings
    model: Model
    """The model of the conversation, whose window counts."""
    is_shared: bool
    prompt_tokens: int | None
    """What a request has besides messages, if that is known."""
    used_tokens: int = 0
    """What the last request had in all, by its provider's count."""
    run_id: str | None = None
    wish: str | None = None
    """What the summary should keep above all."""
    is_asked: bool = False
    """Whether a person asked for it."""
    carried_from: str | None = None
    """The transcript before this one, all of which is covered; else the older part of this one is."""

    @property
    def source(self) -> str:
        """The transcript that is summarised."""
        return self.carried_from or self.session_id


class _Plan(msgspec.Struct, frozen=True):
    """What is covered, and how much room there is."""

    cut: Cut
    mark: str
    place: ViewStart
    earlier: Message | None
    room: SummaryRoom
    tokens: int
    """Of all messages of a request, before."""
    prompt_tokens: int
    """What a request has besides messages."""


class Summaries:
    """Makes summaries; nothing is written here."""

    def __init__(self, store: Store, calls: ModelCalls, holding: Holding, clock: Clock, wait: DatabaseWait) -> None:
        self._store = store
        self._calls = calls
        self._holding = holding
        self._clock = clock
        self._durably = wait.durably

    async def make(self, job: CompactionJob) -> MadeSummary:
        """Make a summary of the older part of a conversation.

        Raises:
            NothingToCompact, SummaryFailed
            NoModelAnswered: no model that may write summaries can be used.
        """
        read = partial(self._store.context, job.source, max_bytes=job.model.context_window * _BYTES_PER_TOKEN)
        part = await self._durably(read)
        row = job.agent.summary_row or job.agent.row.led_by(job.model.ref)
        return await self._calls.in_row(row, lambda writer, _: self._written_by(writer, job, part), leaves_alone=False)

    async def _written_by(self, writer: Model, job: CompactionJob, part: TranscriptPart) -> MadeSummary:
        plan = await asyncio.to_thread(_plan, job, part, writer.context_window)
        covered = await self._covered(job, plan, writer)
        before = "" if plan.earlier is None else plan.earlier.text
        summary, usage, model = await self._summary(job, plan, writer, covered, summary_in(before))
        work = await self._durably(partial(self._store.open_work, job.key, job.source, plan.place.seq))
        text = entry_text(
            summary,
            work,
            files_in(before) | covered.files,
            plan.mark,
            words_room=plan.room.words,
            open_room=plan.room.open,
        )
        return self._made(job, plan, covered, text, usage, model)

    async def _covered(self, job: CompactionJob, plan: _Plan, writer: Model) -> CoveredPart:
        """Read the messages from after the last summary up to the new beginning."""
        covered = CoveredPart(plan.mark, chunk_tokens(writer.context_window, plan.room))
        low = plan.cut.covered
        while low < plan.place.seq:
            high = min(low + _READ_AT_ONCE, plan.place.seq)
            lines = await self._durably(partial(self._store.lines_between, job.source, low, high))
            await asyncio.to_thread(_add_all, covered, lines)
            low = high
        if covered.last_id is None or not covered.messages:
            raise NothingToCompact("there is nothing to summarise")
        return covered

    async def _summary(
        self, job: CompactionJob, plan: _Plan, writer: Model, covered: CoveredPart, earlier: str
    ) -> tuple[str, Usage, str]:
        """Ask the model for each chunk, each time with the summary so far."""
        summary, used, model = earlier, Usage(), writer.ref
        bound = covered.tokens + text_tokens(earlier)
        for chunk in covered.chunks:
            request = summary_request(summary, chunk, plan.room, job.wish, self._clock.now_ms())
            reply = await self._ask(job, writer, request)
            text = storable_text(text_of(reply.content))
            summary, used, model = read_summary(text, plan.mark, plan.room, bound), _sum(used, reply.usage), reply.model
        return summary, used, model

    async def _ask(self, job: CompactionJob, writer: Model, request: ModelRequest) -> ModelReply:
        """Ask for one chunk, as a call that budgets count."""
        held = await self._holding.hold(job.key, job.agent.id, job.run_id, writer, request)
        if held is None:
            return await self._answer(job, writer, request)
        used, is_billed = None, True
        try:
            reply = await self._answer(job, writer, msgspec.structs.replace(request, max_tokens=held.max_tokens))
            used = reply.usage
        except ModelFailed as failed:
            is_billed = failed.is_billed
            raise
        finally:
            await held.settle(used, is_billed=is_billed)
        return reply

    async def _answer(self, job: CompactionJob, writer: Model, request: ModelRequest) -> ModelReply:
        limit = asyncio.timeout(SUMMARY_LIMIT_S)
        try:
            async with limit:
                caller = ModelCaller(job.agent.id, job.key, job.run_id)
                return await self._calls.call(caller, writer, request, lambda event: None)
        except TimeoutError:
            if not limit.expired():
                raise
            raise SummaryFailed(f"the model wrote no summary within {SUMMARY_LIMIT_S:g} s") from None

    def _made(
        self, job: CompactionJob, plan: _Plan, covered: CoveredPart, text: str, usage: Usage, model: str
    ) -> MadeSummary:
        earlier = None if plan.earlier is None else plan.earlier.compaction
        after = plan.prompt_tokens + plan.tokens - plan.place.tokens_before + text_tokens(text)
        entry = CompactionEntry(
            through_message_id=covered.last_id or "",
            messages=covered.messages + (0 if earlier is None else earlier.messages),
            tokens_before=plan.prompt_tokens + plan.tokens,
            tokens_after=after,
            model=model,
        )
        if entry.tokens_after >= entry.tokens_before and not plan.cut.has_gap and job.carried_from is None:
            raise SummaryFailed("the summary is not shorter than what it covers")
        message = Message(
            id=new_id(),
            role=Role.SYSTEM,
            content=text_content(text),
            timestamp=self._clock.now_ms(),
            model=model,
            usage=usage,
            compaction=entry,
        )
        return MadeSummary(
            key=job.key,
            session_id=job.session_id,
            expected=plan.cut if job.carried_from is None else NO_CUT,
            place=plan.place if job.carried_from is None else ViewStart(0, 0, None),
            is_short=covered.is_short or (plan.cut.is_short and not plan.cut.has_gap),
            message=message,
            usage=usage,
        )


def _plan(job: CompactionJob, part: TranscriptPart, writer_window: int) -> _Plan:
    """Decide which part of a conversation is covered."""
    cut = read_cut(part.head.cut)
    window = cut.window_for(job.model.ref, job.model.context_window)
    marks = ContextMarks.of(window, job.agent.context.at, job.agent.context.hard)
    budget = context_budget(window, job.prompt_tokens or 0, 0)
    view = cut.view(part.head.mark, budget, is_shared=job.is_shared, shows_pictures=False)
    conversation = _fold(part, view)
    if (job.is_asked or job.carried_from) and len(part.lines) < _LEAST_MESSAGES and part.summary is None:
        raise NothingToCompact("the conversation is short: there is nothing to summarise")
    total = conversation.tokens()
    prompt_tokens = max(0, job.used_tokens - total) if job.prompt_tokens is None else job.prompt_tokens
    room = SummaryRoom.of(max(marks.rest - prompt_tokens, MIN_BUDGET), writer_window)
    if job.carried_from is not None:
        end = ViewStart(part.head.next_seq, total, None)
        return _Plan(cut, part.head.mark, end, part.summary, room, total, prompt_tokens)
    stays = min(room.messages, total // _ASKED_REST) if job.is_asked else room.messages
    place = beginning(conversation, stays)
    if place is None and cut.has_gap:
        place = ViewStart(cut.from_seq, 0, cut.question_seq)
    if place is None or place.seq <= cut.covered:
        raise NothingToCompact("all of the conversation is shown to the model, and fits")
    earlier = part.summary
    new = place.tokens_before - (0 if earlier is None else estimate_tokens(earlier))
    is_little = new < max(window // 10, room.messages) and place.seq - cut.covered < _WORTH_MESSAGES
    if is_little and not job.is_asked:
        raise NothingToCompact("too little would be summarised")
    return _Plan(cut, part.head.mark, place, earlier, room, total, prompt_tokens)


def _fold(part: TranscriptPart, view: View) -> Conversation:
    ordered = in_order(part.lines, None)
    conversation = Conversation(view, part.summary, settled_places(ordered))
    for seq, message in ordered:
        conversation.add(seq, message)
    return conversation


def _add_all(covered: CoveredPart, lines: list[Line]) -> None:
    for _, message in lines:
        covered.add(message)


def _sum(first: Usage, second: Usage) -> Usage:
    costs = [usage.cost for usage in (first, second) if usage.cost is not None]
    return Usage(
        input=first.input + second.input,
        output=first.output + second.output,
        cache_read=first.cache_read + second.cache_read,
        cache_write=first.cache_write + second.cache_write,
        cost=sum(costs) if costs else None,
    )
