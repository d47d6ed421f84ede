"""A run's timeline: what it did, step by step, and what came in between, made of rows that are there anyway.

The steps are the run's messages. A model call lasted from what came before it (the run's start, the last result, a
restart, the end of a pause after a failure) to its reply; a tool call has its own two times. What rarely happens, such
as the end of the process in the middle of a step, is an event of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from backchannel.core.approvals import Approval
from backchannel.core.messages import Message, Role, ThinkingBlock, ToolCallBlock, decode_message
from backchannel.core.runs import CallState, Run, RunState, ToolCall
from backchannel.core.shapes import Answer
from backchannel.core.text import cut

MOST_ENTRIES = 1000
TEXT_SHOWN = 2000
"""How much of a text an entry has: the transcript has all of it."""


class RunEventKind(StrEnum):
    """What rarely happens to a run."""

    INTERRUPTED = "interrupted"
    """The process that held it died or was stopped."""
    RESUMED = "resumed"
    """A process went on with it."""
    SET_ASIDE = "setAside"
    """Its process died in one of its steps too often: it waits, out of its lane."""
    RETRIED = "retried"
    """A person asked for it once more."""
    RETRY = "retry"
    """The model failed in a way that may pass, and is asked again."""


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Such an event as its row says; the field names are the columns."""

    run_id: str
    at: int
    kind: RunEventKind
    step: int
    process: int | None = None
    until_at: int | None = None
    body: str | None = None


class CallFlow(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool call has set going, and what it waits for."""

    exchange_id: str | None = None
    session_key: str | None = None
    """The session that it sent to or started."""
    is_child: bool = False
    delivery_id: str | None = None
    waits_until: int | None = None


class RunStory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a run."""

    run: Run
    messages: Sequence[Message]
    """The run's own, in order."""
    calls: Sequence[ToolCall]
    events: Sequence[RunEvent]
    flows: dict[str, CallFlow]
    """By the id of the call."""
    approvals: Sequence[Approval] = ()
    delivery_id: str | None = None
    is_cut: bool = False
    """Whether there is more than was read."""


class TimelineEntry(Answer, frozen=True, kw_only=True):
    """One thing that a run did or that happened to it; without `ended_at` it goes on, or took no time."""

    at: int
    kind: str
    ended_at: int | None = None
    step: int | None = None
    """Counted from 1."""
    name: str | None = None
    call_id: str | None = None
    arguments: Any = None
    result: str | None = None
    is_error: bool | None = None
    text: str | None = None
    thinking: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: float | None = None
    model: str | None = None
    status: str | None = None
    """How the run ended, or what was answered to the question whether a call may go ahead."""
    stop_reason: str | None = None
    error: str | None = None
    process: int | None = None
    session_key: str | None = None
    """The session that a call sent to, started or waits for."""
    child_key: str | None = None
    """The same, of a sub-agent."""
    exchange_id: str | None = None
    delivery_id: str | None = None
    approval_id: str | None = None
    """What is waited for, if it is a person's word."""


class Timeline(msgspec.Struct, frozen=True):
    """The entries, oldest first, and whether some are left out."""

    entries: list[TimelineEntry]
    is_cut: bool


def build_timeline(story: RunStory) -> Timeline:
    """Put in order what a run did and what happened to it; of a very long one the newest part."""
    # What happened in the same millisecond stays in this order: a restart comes before the step that goes on with it.
    entries = [*(_event(event) for event in story.events), *_steps(story), *_approvals(story)]
    entries.sort(key=lambda entry: entry.at)
    entries = [_queued(story), *entries, *_ended(story)]
    return Timeline(entries[-MOST_ENTRIES:], story.is_cut or len(entries) > MOST_ENTRIES)


def _queued(story: RunStory) -> TimelineEntry:
    run = story.run
    asked = next((message for message in story.messages if message.role is Role.USER), None)
    if asked is None and run.message is not None:
        asked = decode_message(run.message)
    text = None if asked is None else cut(asked.text, TEXT_SHOWN)
    return TimelineEntry(at=run.accepted_at, ended_at=run.started_at, kind="queued", text=text)


def _ended(story: RunStory) -> Iterator[TimelineEntry]:
    run = story.run
    if run.is_finished:
        yield TimelineEntry(
            at=run.ended_at or run.accepted_at,
            kind="ended",
            status=run.state.value,
            error=run.error,
            delivery_id=story.delivery_id,
        )


def _event(event: RunEvent) -> TimelineEntry:
    is_failure = event.kind is RunEventKind.RETRY
    return TimelineEntry(
        at=event.at,
        ended_at=event.until_at,
        kind=event.kind.value,
        step=event.step + 1,
        process=event.process,
        text=None if is_failure else event.body,
        error=event.body if is_failure else None,
    )


def _approvals(story: RunStory) -> Iterator[TimelineEntry]:
    """Show what had to be allowed; what was allowed for good waited for nobody."""
    for approval in story.approvals:
        if approval.answered_at != approval.created_at:
            yield TimelineEntry(
                at=approval.created_at,
                ended_at=approval.answered_at,
                kind="waiting",
                call_id=approval.call_id,
                name=approval.tool,
                approval_id=approval.id,
                status=approval.state.value,
            )


def _steps(story: RunStory) -> Iterator[TimelineEntry]:
    run = story.run
    unseen = {call.id: call for call in story.calls}
    since, step = run.started_at or run.accepted_at, 0
    for message in story.messages:
        if message.role is Role.ASSISTANT and not _is_trace(message):
            step += 1
            yield _model(story, message, step, since)
            since = message.timestamp
        elif message.role is Role.TOOL_RESULT:
            call = unseen.pop(message.tool_call_id or "", None)
            entry = _result(message) if call is None else _tool(story, call, message)
            since = max(since, entry.ended_at or 0)
            yield entry
    for call in unseen.values():  # they go on, or their result is in a transcript that a reset has ended
        yield _tool(story, call, None)
        yield from _wait(story, call)
    is_calling = any(call.state is not CallState.DONE for call in unseen.values())
    if run.state is RunState.RUNNING and not is_calling and not _is_left(story):
        yield TimelineEntry(at=_begun(story, since, None), kind="model", step=step + 1, model=run.model)


def _is_left(story: RunStory) -> bool:
    """Whether no process has gone on with a run since the one that held it ended."""
    return bool(story.events) and story.events[-1].kind is RunEventKind.INTERRUPTED


def _is_trace(message: Message) -> bool:
    """Whether a message only tells of a call of a function agent, which no model has asked for."""
    return any("/f/" in call.id for call in message.tool_calls)


def _begun(story: RunStory, since: int, until: int | None) -> int:
    """Tell when a model call began, after the last thing that came before it."""
    for event in story.events:
        if event.kind in (RunEventKind.RESUMED, RunEventKind.RETRY):
            at = event.until_at or event.at
            if at > since and (until is None or at <= until):
                since = at
    return since if until is None else min(since, until)


def _model(story: RunStory, reply: Message, step: int, since: int) -> TimelineEntry:
    usage = reply.usage
    thinking = "\n".join(block.thinking for block in reply.content if isinstance(block, ThinkingBlock))
    return TimelineEntry(
        at=_begun(story, since, reply.timestamp),
        ended_at=reply.timestamp,
        kind="model",
        step=step,
        model=reply.model,
        text=cut(reply.text, TEXT_SHOWN) or None,
        thinking=cut(thinking, TEXT_SHOWN) or None,
        tokens_in=None if usage is None else usage.input,
        tokens_out=None if usage is None else usage.output,
        cost=None if usage is None else usage.cost,
        stop_reason=reply.stop_reason,
    )


def _result(result: Message) -> TimelineEntry:
    """Show a result whose call is not known."""
    return TimelineEntry(
        at=result.timestamp,
        ended_at=result.timestamp,
        kind="tool",
        name=result.tool_name,
        call_id=result.tool_call_id,
        result=cut(result.text, TEXT_SHOWN),
        is_error=bool(result.is_error),
    )


def _tool(story: RunStory, call: ToolCall, result: Message | None) -> TimelineEntry:
    flow = story.flows.get(call.id, CallFlow())
    ended_at = call.ended_at if result is None else call.ended_at or result.timestamp
    return TimelineEntry(
        at=call.started_at or ended_at or story.run.accepted_at,
        ended_at=ended_at,
        kind="tool",
        step=call.step + 1 if call.step >= 0 else None,
        name=call.name,
        call_id=call.id,
        arguments=_arguments(call.block),
        result=None if result is None else cut(result.text, TEXT_SHOWN),
        is_error=None if result is None else bool(result.is_error),
        session_key=flow.session_key,
        child_key=flow.session_key if flow.is_child else None,
        exchange_id=flow.exchange_id,
        delivery_id=flow.delivery_id,
    )


def _arguments(call: ToolCallBlock) -> Any:
    """Show arguments as they are or, if they are long, as a text that is cut."""
    written = msgspec.json.encode(call.arguments)
    return call.arguments if len(written) <= TEXT_SHOWN else cut(written.decode(), TEXT_SHOWN)


def _wait(story: RunStory, call: ToolCall) -> Iterator[TimelineEntry]:
    flow = story.flows.get(call.id, CallFlow())
    if flow.waits_until is not None:
        yield TimelineEntry(
            at=call.started_at or story.run.accepted_at,
            kind="waiting",
            call_id=call.id,
            name=call.name,
            session_key=flow.session_key,
            exchange_id=flow.exchange_id,
        )
