"""The shared parts of the stub provider's wires: the scripted answers, and their assembly.

Each wire is written after the provider's own documentation and its error messages, independently of what builds
the requests. `check` says what the provider would refuse; `frames` are the events of a streamed answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Body = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call; arguments that are a text go out as they are."""

    name: str
    arguments: Mapping[str, Any] | str

    @property
    def json(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Answer:
    """What the model says."""

    text: str | tuple[str, ...] = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    input_tokens: int = 10
    cached_tokens: int = 0
    """Of the input."""
    output_tokens: int = 5
    model: str | None = None
    stop: Literal["length", "refusal"] | None = None
    ends: Literal["whole", "cut", "broken"] = "whole"
    """`cut`: the stream ends in order but too early; `broken`: the connection goes in the middle."""
    breaks_at: int | None = None
    """How many bytes of the body come before the connection goes."""
    gate: asyncio.Event | None = None
    """Holds the answer until it is set, before the text that `held_at` counts (or the end, when it is past them)."""
    held_at: int = 0
    reached: asyncio.Event | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if isinstance(self.text, str) and self.text else tuple(self.text)


@dataclass(frozen=True)
class Frame:
    """One event; `place` counts the texts, and the end after them."""

    data: str
    place: int | None = None
    is_end: bool = False


class Wire(Protocol):
    """One API of a provider."""

    def key(self, headers: Mapping[str, str]) -> str: ...
    def wrong_key(self, key: str) -> str: ...
    def check(self, body: Body) -> str | None: ...
    def error(self, status: int, message: str) -> str: ...
    def frames(self, body: Body, answer: Answer) -> Iterator[Frame]: ...


def sse(data: Body | str, event: str | None = None) -> str:
    """Write a server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n"


def first(problems: Iterable[str | None]) -> str | None:
    """Give the first problem, if there is one."""
    return next((problem for problem in problems if problem is not None), None)
