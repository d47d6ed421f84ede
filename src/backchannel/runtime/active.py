"""An active run: its state between two commits, its tool calls, and its function context.

A tool call is carried out at most once, and its result committed. The call is planned in the commit of the reply that
asks for it. A call with outside effects is marked before it begins. After a crash a marked call is not begun again,
since nobody knows whether it had its effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import msgspec
import structlog

from backchannel.agents.registry import ToolFailed
from backchannel.config.agents import AgentSettings
from backchannel.core.contracts import (
    Clock,
    Effects,
    Model,
    ModelReply,
    Tool,
    ToolContext,
    ToolOutput,
    ToolSet,
    check_calls,
)
from backchannel.core.delivery.attached import content_type, describe
from backchannel.core.headers import strip_mark_from
from backchannel.core.keys import SessionKey
from backchannel.core.messages import (
    Block,
    Message,
    Role,
    ThinkingBlock,
    ToolCallBlock,
    result_content,
    storable_content,
    text_content,
    text_of,
)
from backchannel.core.policy.approvals import Approval, ApprovalState, refusal
from backchannel.core.runs import (
    FUNCTION_STEP,
    CallState,
    Run,
    RunStarted,
    ToolCall,
    TranscriptHead,
    function_call_id,
    tool_call_id,
)
from backchannel.core.sessions import Session
from backchannel.core.stored import StoredForm
from backchannel.core.text import storable_text
from backchannel.errors import FenceLost, GatewayError, StopRequested
from backchannel.runtime.approvals import Approvals
from backchannel.runtime.cluster.media import Media
from backchannel.runtime.events import Hub, ToolEnded, ToolStarted
from backchannel.runtime.lanes import StopReason
from backchannel.runtime.supervisor import DatabaseWait
from backchannel.storage.ids import new_id
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)
T = TypeVar("T")

TOOL_CALL_LIMIT_S = 600.0
_INTERRUPTED = (
    "The gateway was interrupted while this call was in progress. Whether it had its effect is not known: check before "
    "you repeat it."
)


class ActiveRun:
    """One run that this process works on. Only `run` and what was streamed since its last commit change."""

    def __init__(self, started: RunStarted, clock: Clock, stop_reason: StopReason) -> None:
        self.run: Run = started.run
        self.stop_reason = stop_reason
        """Tells why the run's task is cancelled."""
        self.fence = started.fence
        self.session = started.session
        """As it was when the run started, or was resumed."""
        self._head = started.head
        self._goes_on = started.head is None
        self.has_carried = False
        """Whether it has tried to begin its transcript with a summary of the one before."""
        self.hides_pictures = False
        """Whether its requests show no pictures, because the model failed with them."""
        self.has_compacted = False
        """Whether it has waited for a summary; it does so once."""
        self.is_sent = False
        """Whether a call was sent that has no reply yet, so that it may be billed."""
        self.text = ""
        """What the model has streamed of the step in progress."""
        self.mark = ""
        """The mark of its session's headers, once a model was told it."""
        self.deadline: asyncio.Timeout | None = None
        """When its time is over, while it is carried out."""
        self._clock = clock
        self._since = clock.monotonic()
        self._ran_before_ms = started.run.ran_ms
        self._pauses = 0
        self._paused_at = 0.0
        self._left_s: float | None = None

    @property
    def ran_ms(self) -> int:
        """How long the run has run, in this process and before."""
        until = self._paused_at if self._pauses else self._clock.monotonic()
        return self._ran_before_ms + int((until - self._since) * 1000)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no time pass for the run: it waits for a person. Several calls of it may at once."""
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at, self._left_s = self._clock.monotonic(), self._stop_deadline()
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._since += self._clock.monotonic() - self._paused_at
                self._restart_deadline(self._left_s)

    def forgive(self, since: float) -> None:
        """Let the time since then not count for the run: its model failed."""
        passed_s = self._clock.monotonic() - since
        self._since += passed_s
        if (left_s := self._stop_deadline()) is not None:
            self._restart_deadline(left_s + passed_s)

    def _stop_deadline(self) -> float | None:
        deadline = self.deadline
        if deadline is None or (when := deadline.when()) is None or deadline.expired():
            return None
        deadline.reschedule(None)
        return when - asyncio.get_running_loop().time()

    def _restart_deadline(self, left_s: float | None) -> None:
        if left_s is not None and self.deadline is not None:
            self.deadline.reschedule(asyncio.get_running_loop().time() + left_s)

    def take_return(self) -> bool:
        """Tell, once, whether it had started before: others may have written to its transcript since."""
        goes_on, self._goes_on = self._goes_on, False
        return goes_on

    def take_head(self) -> TranscriptHead | None:
        """Return the row of its transcript as it was when the run started, once."""
        head, self._head = self._head, None
        return head

    @property
    def session_id(self) -> str:
        if self.run.session_id is None:
            raise LookupError(f"run {self.run.id!r} has not started")
        return self.run.session_id

    def reply_message(self, reply: ModelReply, moved: str | None = None) -> Message:
        """Make the transcript message of a reply; its tool calls get our own ids here.

        `moved` is why its request did not just extend the one before.

        Raises:
            ModelFailed: it asks for more calls than a reply may.
        """
        check_calls(reply.model, sum(isinstance(block, ToolCallBlock) for block in reply.content))
        return Message(
            id=new_id(),
            role=Role.ASSISTANT,
            content=self._unmarked(storable_content(self._numbered(reply.content))),
            timestamp=self._clock.now_ms(),
            run_id=self.run.id,
            model=reply.model,
            usage=reply.usage,
            stop_reason=reply.stop_reason,
            moved=moved,
        )

    def _unmarked(self, content: tuple[Block, ...]) -> tuple[Block, ...]:
        return tuple(strip_mark_from(block, self.mark) for block in content)

    def _numbered(self, content: tuple[Block, ...]) -> tuple[Block, ...]:
        numbered: list[Block] = []
        count = 0
        for block in content:
            if isinstance(block, ToolCallBlock):
                numbered.append(msgspec.structs.replace(block, id=tool_call_id(self.run.id, self.run.step, count)))
                count += 1
            elif not (isinstance(block, ThinkingBlock) and not block.thinking and not block.signature):
                numbered.append(block)
        return tuple(numbered)

    def partial_reply(self, stop_reason: str) -> Message | None:
        """Make a message of what was streamed before the run was stopped."""
        if not self.text:
            return None
        return Message(
            id=new_id(),
            role=Role.ASSISTANT,
            content=text_content(storable_text(self.text)),
            timestamp=self._clock.now_ms(),
            run_id=self.run.id,
            stop_reason=stop_reason,
        )


class RunSetup(msgspec.Struct, frozen=True):
    """What a run works with: looked up once, when it starts or resumes."""

    session: Session
    agent: AgentSettings
    model: Model
    tools: Mapping[str, Tool]
    """The tools that it may call."""
    shown_tools: Mapping[str, Tool]
    """The tools that the model is told of: those of the session, so that the provider's cache stays valid."""
    thinking: str | None

    @property
    def uses_tools(self) -> bool:
        return self.tools is self.shown_tools


class CallRecorded(msgspec.Struct):
    """The outcome of a function agent's call, as it is kept for the next time the function runs."""

    content: tuple[Block, ...]
    is_error: bool


_STORED: StoredForm[CallRecorded] = StoredForm(CallRecorded)


class ToolCalls:
    """Carries out tool calls."""

    def __init__(
        self,
        store: Store,
        tools: ToolSet,
        approvals: Approvals,
        hub: Hub,
        clock: Clock,
        wait: DatabaseWait,
        media: Media,
    ) -> None:
        self._media = media
        self._store = store
        self._approvals = approvals
        self._tools = tools
        self._hub = hub
        self._clock = clock
        self._durably = wait.durably

    async def round(self, active: ActiveRun, tools: Mapping[str, Tool], calls: Sequence[ToolCall]) -> None:
        """Carry out the calls of one reply at the same time, and commit each result as it comes."""
        if len(calls) == 1:
            await self._carry_out(active, tools, calls[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._carry_out(active, tools, call))
        except BaseExceptionGroup as failed:  # the first failure stands for the round, as it does for a single call
            raise failed.exceptions[0] from None

    async def _carry_out(self, active: ActiveRun, tools: Mapping[str, Tool], call: ToolCall) -> None:
        result = await self._result(active, call, await self.output(active, tools, call))
        active.run = await self._durably(lambda: self._store.commit_result(active.fence, result, active.ran_ms))

    async def recorded(self, active: ActiveRun, tools: Mapping[str, Tool], call: ToolCall) -> CallRecorded:
        """Carry out a function agent's call, or give what it gave when the function ran before."""
        known = await self._durably(lambda: self._store.open_function_call(active.fence, call))
        if known.result is not None:
            return _STORED.read(known.result)
        output = await self.output(active, tools, known)
        recorded = CallRecorded(output.content, output.is_error)
        result, kept = await self._result(active, call, output), _STORED.write(recorded)
        await self._durably(lambda: self._store.commit_function_result(active.fence, result, kept, active.ran_ms))
        return recorded

    async def _result(self, active: ActiveRun, call: ToolCall, output: ToolOutput) -> Message:
        """Make the message of a result. A file that it sends is kept before."""
        copy = None
        if (taken := output.attached) is not None:
            mime_type = await asyncio.to_thread(content_type, taken.content)
            name = await self._durably(lambda: self._media.store(taken.content, mime_type))
            copy = describe(taken, name, mime_type)
        return Message(
            id=new_id(),
            role=Role.TOOL_RESULT,
            content=output.content,
            timestamp=self._clock.now_ms(),
            run_id=active.run.id,
            tool_call_id=call.id,
            tool_name=call.name,
            is_error=output.is_error,
            attached=copy,
        )

    async def output(self, active: ActiveRun, tools: Mapping[str, Tool], call: ToolCall) -> ToolOutput:
        """Call the tool, unless it had begun before a crash and may not be begun again, or nobody allows it.

        A question that was asked before a crash stands, whatever the rules and the tools are now.
        """
        tool = tools.get(call.name)
        if call.state is not CallState.PLANNED and (tool is None or tool.effects is Effects.OUTSIDE):
            return _error(_INTERRUPTED)  # also if its tool is not there any more, or not yet again
        if call.is_asked or (tool is not None and self._approvals.are_needed_for(call)):
            approval = await self._approved(active, call)
            if approval.state is not ApprovalState.APPROVED:
                return _error(refusal(approval))
            tool = tool or await self._back_again(active, call)
        if tool is None:
            return _error(self._tools.refusal(active.run.session_key, call.name, tools))
        if tool.effects is Effects.OUTSIDE:
            await self._durably(lambda: self._store.start_call(active.fence, call.id))
        self._store.check_lease()
        arguments = call.block.arguments
        self._hub.publish(ToolStarted(active.run, call.id, call.name, arguments))
        output = await _invoke(tool, _context(active.run, call), arguments)
        content = result_content(output.content)
        self._hub.publish(ToolEnded(active.run, call.id, call.name, output.is_error, content))
        return ToolOutput(content, output.is_error, output.attached)

    async def _back_again(self, active: ActiveRun, call: ToolCall) -> Tool | None:
        """Look once more for a tool that was there when its call was asked for: its server may be up by now."""
        key = active.run.session_key
        agent_id = SessionKey.stored(key).agent
        await self._tools.ready(agent_id, key)
        return self._tools.of(agent_id, key).get(call.name)

    async def _approved(self, active: ActiveRun, call: ToolCall) -> Approval:
        """Ask a person for a call, and wait for the answer; no time passes for the run meanwhile."""
        approval = await self._durably(lambda: self._approvals.ask(active.fence, call))
        if not approval.is_pending:
            return approval
        with active.paused():
            return await self._approvals.answered(approval)


def is_cancelled() -> bool:
    """Whether this task is asked to stop; without that, a CancelledError is an error like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _context(run: Run, call: ToolCall) -> ToolContext:
    agent_id = SessionKey.stored(run.session_key).agent
    return ToolContext(call_id=call.id, run_id=run.id, session_key=run.session_key, agent_id=agent_id)


async def _invoke(tool: Tool, context: ToolContext, arguments: Any) -> ToolOutput:
    if not isinstance(arguments, dict):
        return _error(f"the arguments are not a JSON object: {str(arguments)[:200]}")
    # A session tool waits for another session as long as its arguments say, and does nothing else that takes time.
    limits_itself = tool.effects is Effects.SESSION or tool.keeps_time
    limit = asyncio.timeout(None if limits_itself else TOOL_CALL_LIMIT_S)
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


class RunContext:
    """The run that a function agent answers: see `agents/registry.py` for the contract."""

    def __init__(
        self, active: ActiveRun, store: Store, calls: ToolCalls, tools: Mapping[str, Tool], message: Message
    ) -> None:
        self.message = message
        self._active = active
        self._store = store
        self._calls = calls
        self._tools = tools
        self._count = 0

    @classmethod
    async def of(cls, active: ActiveRun, store: Store, calls: ToolCalls, tools: Mapping[str, Tool]) -> Self:
        message = await store.message(active.run.message_id)
        if message is None:
            raise LookupError(f"the message of run {active.run.id!r} is gone")
        return cls(active, store, calls, tools, message)

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def instructions(self) -> str | None:
        return self._active.run.instructions

    @property
    def session_key(self) -> str:
        return self._active.run.session_key

    @property
    def agent_id(self) -> str:
        return SessionKey.stored(self.session_key).agent

    @property
    def run_id(self) -> str:
        return self._active.run.id

    async def history(self, limit: int = 50) -> list[Message]:
        """Read what was said before and in the message; not the run's own calls, which a run after a crash has too."""
        messages: list[Message] = []
        before: str | None = None
        while len(messages) < limit:
            page = await self._store.history(self._active.session_id, limit=limit, before=before)
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
        return _value(await self._calls.recorded(self._active, self._tools, call))


def _value(recorded: CallRecorded) -> Any:
    text = text_of(recorded.content)
    if recorded.is_error:
        raise ToolFailed(text)
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
