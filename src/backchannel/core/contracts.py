"""Contracts between the layers: `Clock`, `Model` and `Tool`.

`Clock` is where time comes from. `Model` turns a request into a streamed reply. `Tool` is a named function that an
agent may call. The store is one class over a driver: see `storage/store.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import msgspec

from backchannel.core.delivery.delivery import DeliveryLane
from backchannel.core.delivery.outgoing import TakenFile
from backchannel.core.messages import Block, Message, Usage
from backchannel.core.policy.send_policy import SendDecision
from backchannel.core.sessions import Session

ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh"]
"""How much a model thinks."""
THINKING_LEVELS: tuple[str, ...] = get_args(ThinkingLevel)


class Clock(Protocol):
    """Where time comes from."""

    def now_ms(self) -> int:
        """Tell the time of day, in milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Tell seconds that never run backwards."""
        ...

    async def sleep(self, seconds: float) -> None: ...


@runtime_checkable
class FollowingClock(Clock, Protocol):
    """A clock that shows the time of a database that several gateways share; one that is turned by hand does not."""

    def follow(self, shown_ms: int, asked: float, answered: float) -> None:
        """Take note of what the database's clock showed, between two readings of the monotonic one; any thread may."""
        ...

    @property
    def ahead_ms(self) -> int | None:
        """How far this machine's clock is ahead of the database's; None where there is no other."""
        ...


class Effects(StrEnum):
    """What a second call with the same arguments could spoil."""

    NONE = "none"
    """Nothing: it may be run again."""
    OUTSIDE = "outside"
    """Unknown: after a crash it is not run again, and the result tells the model so."""
    SESSION = "session"
    """Nothing: the call's id makes it idempotent."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """On whose behalf a tool is called."""

    call_id: str
    run_id: str
    session_key: str
    agent_id: str


class ToolOutput(msgspec.Struct, frozen=True):
    """What a tool gives back to the model."""

    content: tuple[Block, ...]
    is_error: bool = False
    attached: TakenFile | None = None
    """A file that is sent with the reply of the run."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A named function that agents may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments."""
    effects: Effects
    call: Callable[[ToolContext, dict[str, Any]], Awaitable[ToolOutput]]
    group: str | None = None
    """What it is named by together with others, as `group:<group>`; the session tools are told by their effects."""
    is_opt_in: bool = False
    """Whether only an agent whose `tools.allow` names it has it."""
    keeps_to_sandbox: bool = False
    """Whether it does what it does inside the sandbox of a session that has one, so that such a session may have it."""
    needs_network: bool = False
    """Whether it reaches other machines: a session in a sandbox without a network does not have it."""
    keeps_time: bool = False
    """Whether it ends in bounded time by itself, once it has a slot: its time does not pass while it waits for one."""


class ToolSource(Protocol):
    """Where tools come from that are not known before somebody asks for them."""

    async def ready(self, allowed: Sequence[str], session_key: str) -> None:
        """Get the tools that these words of `tools.allow` may name; returns in bounded time, whatever fails there."""
        ...

    def tools(self, session_key: str | None = None) -> Mapping[str, Tool]:
        """Name the tools that are known now: those of a session, or of any."""
        ...

    def why_unknown(self, name: str, allowed: Sequence[str], session_key: str) -> str | None:
        """Say why a tool is not known that these words of `tools.allow` may name; None if it is not from here."""
        ...


class ToolSet(Protocol):
    """The tools of the process, and who has which."""

    async def ready(self, agent_id: str, session_key: str) -> None:
        """Find out which tools there are that this agent may have in this session."""
        ...

    def of(self, agent_id: str, session_key: str) -> Mapping[str, Tool]:
        """Name the tools that this agent has in this session."""
        ...

    def refusal(self, session_key: str, name: str, has: Iterable[str]) -> str:
        """Say why a run that has other tools does not have this one, as the result of a call of it."""
        ...


class Price(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Dollars per million tokens.

    Without a price of their own, tokens read from a cache cost a tenth of the input, and tokens written to it 1.25
    times the input.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def of(self, usage: Usage) -> float:
        read = self.input / 10 if self.cache_read is None else self.cache_read
        write = self.input * 1.25 if self.cache_write is None else self.cache_write
        cached = usage.cache_read * read + usage.cache_write * write
        return (usage.input * self.input + usage.output * self.output + cached) / 1_000_000


class ModelTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a model may take, in seconds."""

    first_byte_s: float = 120.0
    """Until its answer begins."""
    idle_s: float = 120.0
    """Between two pieces of its answer."""
    total_s: float = 600.0


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is described to a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class MessageEncoder(Protocol):
    """Writes the messages of a conversation as one wire wants them. The same messages always give the same bytes."""

    @property
    def name(self) -> str:
        """Name all that the bytes depend on besides the messages: the wire, the provider, pictures, cache marks."""
        ...

    def encode(self, step: Sequence[Message], *, is_last: bool = False) -> bytes:
        """Write a step as elements of the request's array, joined by commas, without brackets; `b""` for nothing.

        A step begins with an assistant message and ends before the next: `[assistant?, toolResult*, user*]`. The bytes
        of all steps, joined by commas, are the whole array. The last step of a request may carry cache marks. A step
        with pictures takes long, so it belongs into a thread.

        Raises:
            ModelFailed: a tool result answers no call of the step.
        """
        ...


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is asked. `messages` is a good sequence: see `core/requests.py`."""

    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    thinking: str | None = None
    uses_tools: bool = True
    """Whether the tools may be called. If not, they are still sent, so that the prefix stays the same."""
    cache_key: str | None = None
    """Names the session for a provider's cache; stable."""
    max_tokens: int | None = None
    """The longest reply, thinking included; None leaves it to the model."""
    encoded: tuple[bytes, ...] | None = None
    """The steps as the model's encoder wrote them. With it, `messages` is not looked at."""


class TextDelta(msgspec.Struct, frozen=True):
    """More text of the reply."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    """More of what the model thinks aloud."""

    text: str


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """The whole reply, last of a stream. Tool calls in `content` have no ids of ours yet (the id is empty)."""

    content: tuple[Block, ...]
    usage: Usage
    model: str
    """The model that really answered, as `provider/model`."""
    stop_reason: str = "stop"


ModelEvent = TextDelta | ThinkingDelta | ModelReply


class ModelFailed(Exception):
    """A provider did not answer as it should; the message is its own words, without secrets.

    `retryable`: it may pass by itself. `is_models_own`: it does not, and other requests fail too (a wrong key, an
    unknown model). `is_too_long`: the request exceeds the context window. `limit_tokens` is the window, if the provider
    named it.
    `is_billed` is false if the provider refused the request before it did any work, or never had it.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        retry_after_s: float | None = None,
        is_too_long: bool = False,
        limit_tokens: int | None = None,
        is_billed: bool = True,
        is_models_own: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.is_too_long = is_too_long
        self.limit_tokens = limit_tokens
        self.is_billed = is_billed
        self.is_models_own = is_models_own


MOST_CALLS = 128
"""How many tool calls one reply may ask for: they are carried out at the same time."""


def check_calls(model: str, count: int) -> None:
    """Refuse a reply that asks for more tool calls than one may.

    Raises:
        ModelFailed: it does.
    """
    if count > MOST_CALLS:
        too_many = f"{model} asked for more than {MOST_CALLS} tool calls in one reply"
        raise ModelFailed(f"{too_many}: none of them was carried out", retryable=False)


def sees_images(model: Model) -> bool:
    """Whether a model is shown pictures; one that does not say so is."""
    return bool(getattr(model, "sees_images", True))


class Model(Protocol):
    """One model of one provider.

    One that has an attribute `sees_images`, and it is false, is given a line in the place of each picture of a chat.
    One may have a method `async encoder()`, which gives the `MessageEncoder` whose bytes it takes as
    `ModelRequest.encoded`, or None.
    """

    @property
    def ref(self) -> str:
        """Name it, as `provider/model`."""
        ...

    @property
    def context_window(self) -> int: ...

    @property
    def price(self) -> Price | None: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Ask it. The last event is a `ModelReply`.

        Raises:
            ModelFailed: the provider refused, broke off or answered nonsense.
        """
        ...


Check = Callable[[Session], SendDecision | None]
"""Raises when a message may not be accepted for this session, as it is in the accepting unit; else says why it may."""


class Timer(msgspec.Struct, frozen=True):
    """Something that is due: what it is, and what it is about."""

    kind: str
    ref: str
    due_at: int


class DueTimers(msgspec.Struct, frozen=True):
    """What has to be done by now: timers, and chats whose first delivery is to be tried again."""

    timers: list[Timer]
    lanes: list[DeliveryLane]
    next_at: int | None
    """When the next comes."""
