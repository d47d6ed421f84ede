"""What a function agent sees of its run: see `agents/functions.py` for the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from backchannel.agents.functions import ToolFailed
from backchannel.core.contracts import Tool
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, text_of
from backchannel.core.runs import CallState, ToolCall, function_call_id
from backchannel.runtime.calls import Calls, Recorded
from backchannel.runtime.turn import Turn
from backchannel.storage.store import Store
from backchannel.storage.transactions.steps import FUNCTION_STEP


class RunContext:
    """The run that a function agent answers."""

    def __init__(self, turn: Turn, store: Store, calls: Calls, tools: Mapping[str, Tool], message: Message) -> None:
        self.message = message
        self._turn = turn
        self._store = store
        self._calls = calls
        self._tools = tools
        self._count = 0

    @classmethod
    async def of(cls, turn: Turn, store: Store, calls: Calls, tools: Mapping[str, Tool]) -> Self:
        message = await store.message(turn.run.message_id)
        if message is None:
            raise LookupError(f"the message of run {turn.run.id!r} is gone")
        return cls(turn, store, calls, tools, message)

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def instructions(self) -> str | None:
        return self._turn.run.instructions

    @property
    def session_key(self) -> str:
        return self._turn.run.session_key

    @property
    def agent_id(self) -> str:
        return SessionKey.stored(self.session_key).agent

    @property
    def run_id(self) -> str:
        return self._turn.run.id

    async def history(self, limit: int = 50) -> list[Message]:
        """Read what was said before and in the message; not the run's own calls, which a run after a crash has too."""
        messages: list[Message] = []
        before: str | None = None
        while len(messages) < limit:
            page = await self._store.history(self._turn.session_id, limit=limit, before=before)
            messages[:0] = [m for m in page.messages if m.run_id != self.run_id or m.role is Role.USER]
            if not page.has_more:
                break
            before = page.messages[0].id
        return messages[-limit:]

    async def call(self, tool: str, **arguments: Any) -> Any:
        self._count += 1
        call = ToolCall(
            id=function_call_id(self.run_id, self._count),
            run_id=self.run_id,
            step=FUNCTION_STEP,
            position=self._count,
            name=tool,
            arguments=msgspec.json.encode(arguments).decode(),
            state=CallState.PLANNED,
        )
        return _value(await self._calls.recorded(self._turn, self._tools, call))


def _value(recorded: Recorded) -> Any:
    text = text_of(recorded.content)
    if recorded.is_error:
        raise ToolFailed(text)
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
