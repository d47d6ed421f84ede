"""Function agents: a plain `async def` that answers a session's messages.

After a crash the function runs again from its beginning. Its n-th tool call has the same id as before and returns
what it returned then, so that going through it twice does nothing twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from backchannel.core.messages import Message


class FunctionContext(Protocol):
    """What a function agent gets."""

    @property
    def text(self) -> str:
        """The message to answer."""
        ...

    @property
    def message(self) -> Message: ...

    @property
    def instructions(self) -> str | None:
        """What the caller wants observed for this message only, where its door takes such: OpenAI's `system`."""
        ...

    @property
    def session_key(self) -> str: ...

    @property
    def agent_id(self) -> str: ...

    @property
    def run_id(self) -> str: ...

    async def history(self, limit: int = 50) -> list[Message]:
        """Read the newest messages of the session, oldest first, this one included."""
        ...

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call one of the agent's tools; done once, however often the function is run again.

        Raises:
            ToolFailed: the tool answered with an error.
        """
        ...


class ToolFailed(Exception):
    """A tool that a function agent called answered with an error; the text is the tool's."""


AgentFunction = Callable[[FunctionContext], Awaitable[str | None]]
