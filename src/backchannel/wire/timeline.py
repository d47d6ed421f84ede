"""A run's timeline: its model calls, tool calls, waits and interruptions in order.

It is computed from existing rows, so that a run costs no more for it. Model calls and tool results are the run's
messages. A model call begins when the step before it ended (the start of the run, the last result, a restart, the pause
after a failure) and ends with its reply. Tool calls have stored times. Only what leaves no other trace, such as a
process that died in a step, is stored as an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import inf
from typing import Any

import msgspec

from backchannel.core.messages import Message, Role, ThinkingBlock, ToolCallBlock, decode_message
from backchannel.core.policy.approvals import Approval
from backchannel.core.runs import CallState, Run, RunState, ToolCall
from backchannel.core.sessions import EndedTranscript
from backchannel.core.text import cut
from backchannel.wire.shapes import Answer

_MOST_ENTRIES = 1000
TEXT_SHOWN = 2000
"""The longest text of an entry; the transcript has all of it."""


class RunEventKind(StrEnum):
    """Events of a run besides its steps."""

    INTERRUPTED = "interrupted"
    """The process that held it died or was stopped."""
    RESUMED = "resumed"
    """A process went on with it."""
    SET_ASIDE = "setAside"
    """Its process died in a step too often: the run waits outside its lane."""
    WAITS = "waits"
    """No model of its row answers: the run waits in its lane."""
    RETRIED = "retried"
    """A person asked for a retry."""
    RETRY = "retry"
    """A model call failed for a passing reason and is repeated."""


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One event of a run; the field names are the columns of its row."""

    run_id: str
    at: int
    kind: RunEventKind
    step: int
    process: int | None = None
    until_at: int | None = None
    body: str | None = None


class CallFlow(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a tool call in another session, and the end of its wait."""

    exchange_id: str | None = None
    session_key: str | None = None
    """The session that it sent to or spawned."""
    is_child: bool = False
    delivery_id: str | None = None
    waits_until: int | None = None


class RunStory(msgspec.Struct, frozen=True, kw_only=True):
    """The stored rows of a run that its timeline needs."""

    run: Run
    messages: Sequence[Message]
    """The run's own, in order."""
    calls: Sequence[ToolCall]
    events: Sequence[RunEvent]
    flows: dict[str, CallFlow]
    """By the id of the call."""
    approvals: Sequence[Approval] = ()
    delivery_id: str | None = None
    follows: EndedTranscript | None = None
    """The transcript that the run's message ended by itself, to begin a new one."""
    is_cut: bool = False
    """Whether there is more than was read."""


class TimelineEntry(Answer, frozen=True, kw_only=True):
    """A step or an event of a run. Without `endedAt` it goes on, or took no time."""

    at: int
    kind: str
    """`queued`, `model`, `tool`, `retry`, `interrupted` (`process` died or was stopped), `resumed`, `setAside`,
    `waits` (for a model), `retried`, `waiting`, `reset` (its message began a new transcript) or `ended`."""
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
    tokens_cached: int | None = None
    """How many of `tokensIn` were read from the provider's cache."""
    tokens_out: int | None = None
    cost: float | None = None
    model: str | None = None
    status: str | None = None
    """The end of the run, the answer to an approval, or the reason of a reset: `daily` or `idle`."""
    moved: str | None = None
    """Of a model call: why its request did not just extend the one before."""
    stop_reason: str | None = None
    error: str | None = None
    process: int | None = None
    session_key: str | None = None
    """The session that a call sent to, spawned or waits for."""
    child_key: str | None = None
    """The same, of a sub-agent."""
    exchange_id: str | None = None
    delivery_id: str | None = None
    approval_id: str | None = None
    """The approval that it waits for."""


class Timeline(msgspec.Struct, frozen=True):
    """The entries, oldest first, and whether some are left out."""

    entries: list[TimelineEntry]
    is_cut: bool


_DONE = ("model", "tool")


def build_timeline(story: RunStory) -> Timeline:
    """Sort all entries by their begin; of more than `_MOST_ENTRIES` the newest are kept."""
    # What happened in the same millisecond stays in this order: a restart comes before the step that goes on with it.
    entries = [*(_event(event) for event in story.events), *_steps(story), *_approvals(story)]
    entries.sort(key=lambda entry: entry.at)
    _put_deaths_last(entries)
    entries = [*_reset(story), _queued(story), *entries, *_ended(story)]
    return Timeline(entries[-_MOST_ENTRIES:], story.is_cut or len(entries) > _MOST_ENTRIES)


def _put_deaths_last(entries: list[TimelineEntry]) -> None:
    """Put the death of a process after its steps; its last sign of life may be older."""
    for died in [entry for entry in entries if entry.kind == RunEventKind.INTERRUPTED.value]:
        done = [entry.kind in _DONE and (entry.step or inf) < (died.step or 0) for entry in entries]
        last = max((n for n, is_done in enumerate(done) if is_done), default=-1)
        here = entries.index(died)
        if here < last:
            entries.insert(last, entries.pop(here))


def _queued(story: RunStory) -> TimelineEntry:
    run = story.run
    asked = next((message for message in story.messages if message.role is Role.USER), None)
    if asked is None and run.message is not None:
        asked = decode_message(run.message)
    text = None if asked is None else cut(asked.text, TEXT_SHOWN)
    return TimelineEntry(at=run.accepted_at, ended_at=run.started_at, kind="queued", text=text)


def _reset(story: RunStory) -> Iterator[TimelineEntry]:
    if story.follows is not None:
        yield TimelineEntry(at=story.follows.ended_at, kind="reset", status=story.follows.reason)


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
    is_failure = event.kind in (RunEventKind.RETRY, RunEventKind.WAITS)
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
    """Show the waits for an approval; a call with an earlier allow-always never waited."""
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
    """Whether no process has resumed the run since its last one ended."""
    return bool(story.events) and story.events[-1].kind is RunEventKind.INTERRUPTED


def _is_trace(message: Message) -> bool:
    """Whether a message only records a function agent's own call, without a model call."""
    return any("/f/" in call.id for call in message.tool_calls)


def _begun(story: RunStory, since: int, until: int | None) -> int:
    """Find the begin of a model call: the end of the step before it, or a later resume or retry."""
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
        tokens_in=None if usage is None else usage.sent,
        tokens_cached=None if usage is None or usage.cached_share is None else usage.cache_read,
        tokens_out=None if usage is None else usage.output,
        cost=None if usage is None else usage.cost,
        stop_reason=reply.stop_reason,
        moved=reply.moved,
    )


def _result(result: Message) -> TimelineEntry:
    """Show a result whose call has no row."""
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
    """Give the arguments; if they are long, the beginning of their JSON text."""
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
