"""Rounds of tool calls: each call is carried out at most once, and its result committed.

A call is planned in the commit of the reply that asks for it. One with outside effects is marked before it begins;
found so after a crash it is not begun again, since whether it had its effect is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from backchannel.core.contracts import Clock, Effects, Tool, ToolContext, ToolOutput, ToolSet
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Block, Message, Role, text_content
from backchannel.core.runs import CallState, Run, ToolCall
from backchannel.errors import FenceLost, GatewayError, StopRequested
from backchannel.runtime.events import Hub, ToolEnded, ToolStarted
from backchannel.runtime.turn import Turn
from backchannel.runtime.wording import whole_content
from backchannel.storage.ids import new_id
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)
T = TypeVar("T")

TOOL_CALL_LIMIT_S = 600.0


class Recorded(msgspec.Struct):
    """The outcome of a function agent's call, as it is kept for the next time the function runs."""

    content: tuple[Block, ...]
    is_error: bool


class Durable(Protocol):
    """Commits, waiting while that is not possible."""

    def __call__(self, write: Callable[[], Awaitable[T]]) -> Awaitable[T]: ...


class Calls:
    """Carries out tool calls."""

    def __init__(self, store: Store, tools: ToolSet, hub: Hub, clock: Clock, durable: Durable) -> None:
        self._store = store
        self._tools = tools
        self._hub = hub
        self._clock = clock
        self._durable = durable

    async def round(self, turn: Turn, tools: Mapping[str, Tool], calls: Sequence[ToolCall]) -> None:
        """Carry out the calls of one reply at the same time, and commit each result as it comes."""
        if len(calls) == 1:
            await self._carry_out(turn, tools, calls[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._carry_out(turn, tools, call))
        except BaseExceptionGroup as failed:  # the first failure stands for the round, as it does for a single call
            raise failed.exceptions[0] from None

    async def _carry_out(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> None:
        result = self._result(turn, call, await self.output(turn, tools, call))
        await self._durable(lambda: self._store.commit_result(turn.fence, result, turn.ran_ms))

    async def recorded(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> Recorded:
        """Carry out a function agent's call, or give what it gave when the function ran before."""
        known = await self._durable(lambda: self._store.open_function_call(turn.fence, call))
        if known.result is not None:
            return msgspec.json.decode(known.result, type=Recorded)
        output = await self.output(turn, tools, known)
        recorded = Recorded(output.content, output.is_error)
        result, kept = self._result(turn, call, output), msgspec.json.encode(recorded).decode()
        await self._durable(lambda: self._store.commit_function_result(turn.fence, result, kept, turn.ran_ms))
        return recorded

    def _result(self, turn: Turn, call: ToolCall, output: ToolOutput) -> Message:
        return Message(
            id=new_id(),
            role=Role.TOOL_RESULT,
            content=output.content,
            timestamp=self._clock.now_ms(),
            run_id=turn.run.id,
            tool_call_id=call.id,
            tool_name=call.name,
            is_error=output.is_error,
        )

    async def output(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> ToolOutput:
        """Call the tool, unless it had begun before a crash and may not be begun again."""
        tool = tools.get(call.name)
        if tool is None:
            return _error(self._tools.refusal(turn.run.session_key, call.name, tools))
        if tool.effects is Effects.OUTSIDE:
            if call.state is not CallState.PLANNED:
                return _error(
                    "The gateway was interrupted while this call was in progress. Whether it had its effect is not "
                    "known: check before you repeat it."
                )
            await self._durable(lambda: self._store.start_call(turn.fence, call.id))
        arguments = call.block.arguments
        self._hub.publish(ToolStarted(turn.run, call.id, call.name, arguments))
        output = await _invoke(tool, _context(turn.run, call), arguments)
        self._hub.publish(ToolEnded(turn.run, call.id, call.name, output.is_error))
        return ToolOutput(whole_content(output.content), output.is_error)


def is_cancelled() -> bool:
    """Tell whether somebody wants this task to stop; without that, a CancelledError is only an error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _context(run: Run, call: ToolCall) -> ToolContext:
    agent_id = SessionKey.stored(run.session_key).agent
    return ToolContext(call_id=call.id, run_id=run.id, session_key=run.session_key, agent_id=agent_id)


async def _invoke(tool: Tool, context: ToolContext, arguments: Any) -> ToolOutput:
    if not isinstance(arguments, dict):
        return _error(f"the arguments are not a JSON object: {str(arguments)[:200]}")
    # A session tool waits for another session as long as it was told to, and does nothing else that takes time.
    limit = asyncio.timeout(None if tool.effects is Effects.SESSION else TOOL_CALL_LIMIT_S)
    try:
        async with limit:
            return await tool.call(context, arguments)
    except GatewayError as error:
        return _error(error.message)
    except (FenceLost, StopRequested):
        raise  # it is the run that is over, not the tool that failed
    except TimeoutError as error:
        if limit.expired():
            return _error(f"the call took longer than {TOOL_CALL_LIMIT_S:g} s and was stopped; its effect is unknown")
        return _error(f"TimeoutError: {error}")
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return _error("CancelledError: the tool's own work was cancelled")
    except Exception as error:  # the edge of a tool: whatever fails there is the call's result
        log.warning("a tool failed", tool=tool.name, run_id=context.run_id, exc_info=error)
        return _error(f"{type(error).__name__}: {error}")


def _error(text: str) -> ToolOutput:
    return ToolOutput(text_content(text), is_error=True)
