"""A turn: what the runner knows of the run it works on, between two commits."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backchannel.config.agents import AgentSettings
from backchannel.core.contracts import Clock, Model, ModelReply, Tool, check_calls
from backchannel.core.messages import Block, Message, Role, ThinkingBlock, ToolCallBlock, text_content
from backchannel.core.runs import Run, Started, tool_call_id
from backchannel.core.sessions import Session
from backchannel.runtime.wording import whole_content, whole_text
from backchannel.storage.ids import new_id


class Turn:
    """One run at work. Only `run` and what was streamed since its last commit change."""

    def __init__(self, started: Started, clock: Clock) -> None:
        self.run: Run = started.run
        self.fence = started.fence
        self.session = started.session
        """As it was when the run started, or was resumed."""
        self.text = ""
        """What the model has streamed of the step in progress."""
        self._clock = clock
        self._since = clock.monotonic()
        self._ran_before_ms = started.run.ran_ms

    @property
    def ran_ms(self) -> int:
        """How long the run has run, in this process and before."""
        return self._ran_before_ms + int((self._clock.monotonic() - self._since) * 1000)

    @property
    def session_id(self) -> str:
        if self.run.session_id is None:
            raise LookupError(f"run {self.run.id!r} has not started")
        return self.run.session_id

    def reply_message(self, reply: ModelReply) -> Message:
        """Make the transcript message of a reply; its tool calls get our own ids here.

        Raises:
            ModelFailed: it asks for more calls than a reply may.
        """
        check_calls(reply.model, sum(isinstance(block, ToolCallBlock) for block in reply.content))
        return Message(
            id=new_id(),
            role=Role.ASSISTANT,
            content=whole_content(self._numbered(reply.content)),
            timestamp=self._clock.now_ms(),
            run_id=self.run.id,
            model=reply.model,
            usage=reply.usage,
            stop_reason=reply.stop_reason,
        )

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
            content=text_content(whole_text(self.text)),
            timestamp=self._clock.now_ms(),
            run_id=self.run.id,
            stop_reason=stop_reason,
        )


class Cast(msgspec.Struct, frozen=True):
    """Who works on a run: looked up once, when it starts or resumes."""

    session: Session
    agent: AgentSettings
    model: Model
    tools: Mapping[str, Tool]
    thinking: str | None
