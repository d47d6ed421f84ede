"""A scripted model for tests: it says what it is told to say.

    model = ScriptedModel(replies=[[call("sessions_list")], "There are two."])

It takes part in runs like any other, records what it was asked, and refuses a request that a provider would
refuse: `check_sequence` is the rule. Nothing in it waits for time; a reply can be held by an event.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from backchannel.core.contracts import (
    ModelEvent,
    ModelFailed,
    ModelReply,
    ModelRequest,
    Price,
    TextDelta,
    ThinkingDelta,
)
from backchannel.core.messages import Block, Message, Role, TextBlock, ThinkingBlock, ToolCallBlock, Usage


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One reply in full; what is not given is left out of it."""

    thinking: str = ""
    text: str | tuple[str, ...] = ""
    """What it says; several texts are streamed one by one."""
    calls: tuple[ToolCallBlock, ...] = ()
    error: Exception | None = None
    """Raised in place of the end, after the text was streamed."""
    usage: Usage = Usage()
    stop_reason: str | None = None
    model: str | None = None
    """The model that answers, when it is another than was asked."""
    gate: asyncio.Event | None = None
    """Holds the reply until it is set, before the text that `held_at` counts, or before the end."""
    held_at: int = 0
    reached: asyncio.Event | None = None
    """Set when the reply gets to its gate."""

    @property
    def texts(self) -> tuple[str, ...]:
        texts = (self.text,) if isinstance(self.text, str) else self.text
        return tuple(text for text in texts if text)


Scripted: TypeAlias = str | Reply | Sequence[ToolCallBlock] | Exception
"""A reply: its text, its tool calls, an error, or all of it in a `Reply`."""
Script: TypeAlias = Iterable[Scripted] | Callable[[ModelRequest], Scripted | Awaitable[Scripted]]


def call(name: str, arguments: Any = None, /, **named: Any) -> ToolCallBlock:
    """Make a tool call: `call("sessions_send", sessionKey="main", message="hi")`."""
    return ToolCallBlock(id="", name=name, arguments=named if arguments is None else arguments)


class ScriptedModel:
    """A model whose replies are given: a list, taken one by one, or a function of the request."""

    def __init__(
        self,
        ref: str = "scripted/test",
        *,
        replies: Script = (),
        context_window: int = 100_000,
        price: Price | None = None,
        sees_images: bool = True,
    ) -> None:
        self.ref = ref
        self.context_window = context_window
        self.price = price
        self.sees_images = sees_images
        self._decide = replies if callable(replies) else None
        self._replies = [] if callable(replies) else list(replies)
        self._asked = asyncio.Event()
        self.requests: list[ModelRequest] = []
        """What it was asked, in order."""
        self.refused: list[str] = []
        """What was wrong with requests, in order; a test can assert that it is empty."""

    def add(self, *replies: Scripted) -> None:
        """Put replies at the end of the list."""
        self._replies.extend(replies)

    async def asked(self, count: int = 1) -> None:
        """Wait until it was asked so many times in all."""
        while len(self.requests) < count:
            await self._asked.wait()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer with the next reply.

        Raises:
            ModelFailed: the request is not one that a provider takes, or no reply is left.
        """
        self.requests.append(request)
        self._asked.set()
        self._asked = asyncio.Event()
        if (problem := check_sequence(request.messages)) is not None:
            self.refused.append(problem)
            raise ModelFailed(f"bad sequence of messages: {problem}", retryable=False)
        reply = _in_full(await self._next(request))
        if reply.thinking:
            yield ThinkingDelta(reply.thinking)
        for index, text in enumerate(reply.texts):
            await _pass_gate(reply, index)
            yield TextDelta(text)
        await _pass_gate(reply, len(reply.texts))
        if reply.error is not None:
            raise reply.error
        yield self._end(reply)

    async def _next(self, request: ModelRequest) -> Scripted:
        if self._replies:
            return self._replies.pop(0)
        if self._decide is None:
            asked = len(self.requests)
            raise ModelFailed(f"{self.ref} has no reply left (request {asked})", retryable=False)
        decided = self._decide(request)
        return await decided if inspect.isawaitable(decided) else decided

    def _end(self, reply: Reply) -> ModelReply:
        content: list[Block] = []
        if reply.thinking:
            content.append(ThinkingBlock(thinking=reply.thinking))
        if text := "".join(reply.texts):
            content.append(TextBlock(text=text))
        usage = reply.usage
        if usage.cost is None and self.price is not None:
            usage = msgspec.structs.replace(usage, cost=self.price.of(usage))
        return ModelReply(
            content=(*content, *reply.calls),
            usage=usage,
            model=reply.model or self.ref,
            stop_reason=reply.stop_reason or ("toolUse" if reply.calls else "stop"),
        )


def _in_full(reply: Scripted) -> Reply:
    match reply:
        case Reply():
            return reply
        case str():
            return Reply(text=reply)
        case Exception():
            return Reply(error=reply)
    return Reply(calls=tuple(reply))


async def _pass_gate(reply: Reply, index: int) -> None:
    # A gate placed past the last text holds the end.
    if reply.gate is not None and index == min(reply.held_at, len(reply.texts)):
        if reply.reached is not None:
            reply.reached.set()
        await reply.gate.wait()


def check_sequence(messages: Sequence[Message]) -> str | None:
    """Say what a provider would not take about these messages, or None.

    A good sequence starts with a user message, and user and assistant take turns. The results of tool calls follow
    their message at once, each exactly once. The last is a user message or a result. Nothing is empty.
    """
    if not messages:
        return "there are no messages"
    calls: set[str] = set()
    open_calls: list[str] = []
    last: Role | None = None
    for index, message in enumerate(messages):
        problem = _check_turn(message, last, open_calls) or _check_content(message, calls)
        if problem is not None:
            return f"message {index} ({message.role}): {problem}"
        if message.role is Role.TOOL_RESULT:
            open_calls.remove(message.tool_call_id or "")
        open_calls.extend(block.id for block in message.tool_calls)
        last = message.role
    if open_calls:
        return f"no result for the calls {', '.join(open_calls)}"
    return "the last message is the assistant's" if last is Role.ASSISTANT else None


def _check_turn(message: Message, last: Role | None, open_calls: Sequence[str]) -> str | None:
    match message.role:
        case Role.TOOL_RESULT:
            if message.tool_call_id not in open_calls:
                return f"a result for {message.tool_call_id!r}, which no call just before it waits for"
        case _ if open_calls:
            return f"it stands before the results of {', '.join(open_calls)}"
        case Role.USER if last is Role.USER:
            return "it follows another user message"
        case Role.ASSISTANT if last is None:
            return "the first message must be the user's"
        case Role.ASSISTANT if last is Role.ASSISTANT:
            return "it follows another assistant message"
        case Role.SYSTEM:
            return "a system message is not part of a conversation"
    return None


def _check_content(message: Message, calls: set[str]) -> str | None:
    if not message.content:
        return "it is empty"
    for block in message.content:
        match block:
            case TextBlock() if not block.text.strip():
                return "it has an empty text"
            case ToolCallBlock() if message.role is not Role.ASSISTANT:
                return "only the assistant calls tools"
            case ToolCallBlock() if not block.id or block.id in calls:
                return f"the id {block.id!r} of a call is missing or was used before"
            case ToolCallBlock():
                calls.add(block.id)
    return None
