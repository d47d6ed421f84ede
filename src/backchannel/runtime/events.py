"""What happens, told to whoever listens: committed facts, and live progress that no row holds.

Facts come from the store after their commit; progress (text as it is streamed, tools as they start and end) from
the runner. A listener is a plain function called on the event loop; it must not block and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backchannel.core.facts import Fact
from backchannel.core.runs import Run


class ReplyGrew(msgspec.Struct, frozen=True):
    """A model streams; `text` is the whole reply so far, `delta` what is new."""

    run: Run
    text: str
    delta: str


class ThinkingGrew(msgspec.Struct, frozen=True):
    """A model thinks aloud; `delta` is what is new."""

    run: Run
    delta: str


class ToolStarted(msgspec.Struct, frozen=True):
    run: Run
    call_id: str
    name: str
    arguments: object


class ToolEnded(msgspec.Struct, frozen=True):
    run: Run
    call_id: str
    name: str
    is_error: bool


class WaitStarted(msgspec.Struct, frozen=True):
    """A run begins to wait for another session; it does nothing itself until that has answered."""

    run_id: str


Progress = ReplyGrew | ThinkingGrew | ToolStarted | ToolEnded | WaitStarted
Event = Fact | Progress
Listener = Callable[[Event], None]


class Hub:
    """Hands each event to every listener, in order."""

    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._next = 0

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; the function returned removes it again."""
        self._next += 1
        number = self._next
        self._listeners[number] = listener
        return lambda: self._listeners.pop(number, None) and None

    def publish(self, event: Event) -> None:
        for listener in list(self._listeners.values()):
            listener(event)
