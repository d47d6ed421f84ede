"""The runner: carries out one run, a loop of model calls and rounds of tool calls.

Each reply and each tool result is committed before the next step begins, so going on after a crash is the same
loop entered again: open tool calls first, then the model. However the loop is left, the run ends by exactly one
commit here, unless the process is stopping, when it is left for the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import structlog

from backchannel.agents.functions import AgentFunction
from backchannel.agents.models import Models
from backchannel.agents.prompts import system_prompt, with_instructions
from backchannel.agents.registry import Agents
from backchannel.core.budget import context_budget, text_tokens
from backchannel.core.caller_keys import CallerKeys
from backchannel.core.contracts import (
    Clock,
    Model,
    ModelFailed,
    ModelReply,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    Tool,
    ToolSet,
    ToolSpec,
)
from backchannel.core.control_words import held_back
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, Usage, text_content
from backchannel.core.requests import build_messages
from backchannel.core.runs import Outcome, RunKind, RunState, Started, Step, ToolCall, function_model
from backchannel.errors import FenceLost, GatewayError, StopRequested, Unavailable
from backchannel.runtime.calls import Calls, is_cancelled
from backchannel.runtime.context import RunContext
from backchannel.runtime.events import Hub, ReplyGrew, ThinkingGrew
from backchannel.runtime.lanes import Stop
from backchannel.runtime.turn import Cast, Turn
from backchannel.runtime.wording import whole_text
from backchannel.storage.store import Store
from backchannel.storage.transactions.messages import HistoryPage

log = structlog.get_logger(__name__)
T = TypeVar("T")

MODEL_CALL_LIMIT_S = 600.0
ATTEMPTS = 5
"""How often a model is asked before a retryable failure counts."""
FIRST_BACK_OFF_S = 0.5
LONGEST_BACK_OFF_S = 30.0
BYTES_PER_TOKEN = 4
"""How much of a transcript is read for each token of the window: more than it can hold, so nothing is missed."""
DELTA_INTERVAL_S = 0.05


class Runner:
    """Works on runs that a lane has started."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        models: Models,
        tools: ToolSet,
        hub: Hub,
        clock: Clock,
    ) -> None:
        self._store = store
        self._agents = agents
        self._models = models
        self._tools = tools
        self._hub = hub
        self._clock = clock
        self._sizes: dict[str, int] = {}
        """What telling a model of each tool costs of its window."""
        self._calls = Calls(store, tools, hub, clock, self._durable)
        self.why_stopped: Callable[[str], Stop | None] = lambda run_id: None

    async def work(self, started: Started) -> None:
        """Carry out a run to its end. Never raises but for a shutdown."""
        turn = Turn(started, self._clock)
        try:
            outcome = await self._carry_out(turn)
        except FenceLost:
            return
        except asyncio.CancelledError as cancelled:
            outcome = self._stopped(turn, cancelled)
        except Exception as error:  # noqa: BLE001 - the edge of a lane: whatever fails is the run's outcome
            outcome = self._failed(turn, error)
        if outcome is not None:
            await self._end(turn, outcome)

    async def _end(self, turn: Turn, outcome: Outcome) -> None:
        try:
            await self._finish(turn, outcome)
        except asyncio.CancelledError:
            # An abort cancels once. If that is now, while the outcome waits for space, the run has to end all the same.
            if outcome.state is RunState.ABORTED or self.why_stopped(turn.run.id) is not Stop.ABORT:
                raise
            await self._finish(turn, _aborted())

    def _stopped(self, turn: Turn, cancelled: asyncio.CancelledError) -> Outcome:
        """Tell what a cancelled run comes to; one that is left for the next start has no outcome here."""
        if self.why_stopped(turn.run.id) is Stop.ABORT:
            return _aborted()
        if is_cancelled():
            raise cancelled
        # Nobody stopped it: something that the model or the function waited for was cancelled.
        return Outcome(
            state=RunState.ERROR, error_code="internal", error="CancelledError: the work broke off by itself"
        )

    async def _carry_out(self, turn: Turn) -> Outcome | None:
        """Do the work; None means that its last step has ended the run."""
        agent = self._agents.get(SessionKey.stored(turn.run.session_key).agent)
        limit_s = agent.timeout_s if turn.run.timeout_s is None else turn.run.timeout_s
        remaining_s = turn.run.remaining_s(limit_s)
        if remaining_s == 0:
            return _timed_out(limit_s)  # before a crash: it does not get more
        deadline = asyncio.timeout(remaining_s)
        try:
            async with deadline:
                _stop_if_cancelled()
                function = self._agents.function(agent.id)
                if function is not None:
                    await self._run_function(turn, function)
                else:
                    await self._run_model(turn, self._cast(turn))
        except StopRequested:
            return _aborted()
        except TimeoutError:
            if not deadline.expired():
                raise
            return _timed_out(limit_s)
        return None

    def _cast(self, turn: Turn) -> Cast:
        session = turn.session
        agent = self._agents.get(session.agent_id)
        model = self._models.get(turn.run.model or session.model or agent.model)
        thinking = turn.run.thinking or session.thinking_level or agent.thinking
        tools = self._tools_of(turn, agent.id)
        return Cast(session, agent, model, tools, thinking)

    def _tools_of(self, turn: Turn, agent_id: str) -> Mapping[str, Tool]:
        """Give the tools that a run has; an announce only says something."""
        return {} if turn.run.kind is RunKind.ANNOUNCE else self._tools.of(agent_id, turn.run.session_key)

    async def _run_model(self, turn: Turn, cast: Cast) -> None:
        open_calls = await self._store.open_calls(turn.run.id) if turn.run.step else []
        while True:
            if open_calls:
                await self._calls.round(turn, cast.tools, open_calls)
                _stop_if_cancelled()
            reply = await self._ask(turn, cast)
            open_calls = await self._commit(turn, cast.model, reply)
            if not open_calls:
                return

    async def _commit(self, turn: Turn, model: Model, reply: ModelReply) -> list[ToolCall]:
        step = Step(
            reply=turn.reply_message(reply),
            ran_ms=turn.ran_ms,
            usage=reply.usage,
            context_tokens=model.context_window,
        )
        committed = await self._durable(lambda: self._store.commit_reply(turn.fence, step))
        turn.run, turn.text = committed.run, ""
        return committed.calls

    async def _ask(self, turn: Turn, cast: Cast) -> ModelReply:
        """Ask the model, again after a failure that may pass; nothing of a failed attempt is kept."""
        request = await self._request(turn, cast)
        for attempt in range(1, ATTEMPTS + 1):
            limit = asyncio.timeout(MODEL_CALL_LIMIT_S)
            try:
                async with limit:
                    return await self._stream(turn, cast.model, request)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ModelFailed(f"no reply within {MODEL_CALL_LIMIT_S:g} s", retryable=False) from None
            except ModelFailed as failed:
                if not failed.retryable or attempt == ATTEMPTS:
                    raise
                await self._back_off(turn, failed, attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _back_off(self, turn: Turn, failed: ModelFailed, attempt: int) -> None:
        turn.text = ""
        wait_s = min(FIRST_BACK_OFF_S * 2 ** (attempt - 1), LONGEST_BACK_OFF_S)
        asked_s = failed.retry_after_s
        if asked_s is not None and asked_s > wait_s:  # a time that has passed, or is no number, asks for nothing
            wait_s = min(asked_s, LONGEST_BACK_OFF_S * 2)
        log.info("model failed, asking again", run_id=turn.run.id, error=failed.message, attempt=attempt, wait_s=wait_s)
        await self._clock.sleep(wait_s)

    async def _stream(self, turn: Turn, model: Model, request: ModelRequest) -> ModelReply:
        shown, shown_at, reply = "", 0.0, None
        async for event in model.stream(request):
            match event:
                case TextDelta(text):
                    turn.text += text
                    now = self._clock.monotonic()
                    if now - shown_at >= DELTA_INTERVAL_S:
                        shown, shown_at = self._show(turn, shown), now
                case ThinkingDelta(text):
                    self._hub.publish(ThinkingGrew(turn.run, whole_text(text)))
                case ModelReply():
                    reply = event
        if reply is None:
            raise ModelFailed("the model ended its stream without a reply", retryable=True)
        if turn.text != shown:
            self._show(turn, shown)
        return reply

    def _show(self, turn: Turn, shown: str) -> str:
        """Tell what is new of a reply, unless it could still become a word that is meant for the gateway alone."""
        text = held_back(turn.text)
        if text != shown:
            self._hub.publish(ReplyGrew(turn.run, whole_text(text), whole_text(text[len(shown) :])))
        return text

    async def _request(self, turn: Turn, cast: Cast) -> ModelRequest:
        window = cast.model.context_window
        entry, page = await self._store.context(turn.session_id, max_bytes=window * BYTES_PER_TOKEN)
        tools = tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in cast.tools.values())
        key = SessionKey.stored(turn.run.session_key)
        system = system_prompt(
            agent_id=cast.agent.id,
            session_key_shown=CallerKeys(self._store.scheme, key).show(key),
            kind=cast.session.kind,
            mark=entry.mark,
            agent_name=cast.agent.name,
            instructions=cast.agent.instructions,
            channel=cast.session.channel,
            tools=tuple(cast.tools),
            is_subagent=key.is_subagent,
        )
        system = with_instructions(system, turn.run.instructions, entry.mark)
        budget = context_budget(window, text_tokens(system), sum(map(self._tool_tokens, tools)))
        transcript = await self._with_question(turn, page) if page.has_more else page.messages
        messages = build_messages(
            transcript,
            mark=entry.mark,
            budget_tokens=budget,
            is_cut=page.has_more,
            is_shared=cast.session.is_shared,
        )
        return ModelRequest(system=system, messages=messages, tools=tools, thinking=cast.thinking)

    async def _with_question(self, turn: Turn, page: HistoryPage) -> list[Message]:
        """Keep what the run is to answer in sight, however much it has done since."""
        if any(message.run_id == turn.run.id and message.role is Role.USER for message in page.messages):
            return page.messages
        question = await self._store.message(turn.run.message_id)
        return page.messages if question is None else [question, *page.messages]

    def _tool_tokens(self, tool: ToolSpec) -> int:
        known = self._sizes.get(tool.name)
        if known is None:
            known = self._sizes[tool.name] = text_tokens(f"{tool.description}{tool.parameters}")
        return known

    async def _run_function(self, turn: Turn, function: AgentFunction) -> None:
        agent_id = SessionKey.stored(turn.run.session_key).agent
        tools = self._tools_of(turn, agent_id)
        context = await RunContext.of(turn, self._store, self._calls, tools)
        text = await function(context)
        if text is not None and not isinstance(text, str):
            raise TypeError(f"the agent {agent_id!r} returned {type(text).__name__}: return a text, or None")
        await self._commit_text(turn, text or "", function_model(agent_id))

    async def _commit_text(self, turn: Turn, text: str, model: str) -> None:
        reply = ModelReply(content=text_content(text), usage=Usage(), model=model)
        step = Step(reply=turn.reply_message(reply), ran_ms=turn.ran_ms, usage=reply.usage, leaves_calls=True)
        await self._durable(lambda: self._store.commit_reply(turn.fence, step))

    async def _durable(self, write: Callable[[], Awaitable[T]]) -> T:
        """Commit, waiting while the disk is full or the file held: a step that was done is not thrown away."""
        while True:
            try:
                return await write()
            except Unavailable as refused:
                if self._store.is_closed:
                    raise FenceLost("the store is closed") from refused  # what it did is for the next start to find
                log.warning("waiting to commit", error=refused.message)
                await self._clock.sleep(1)

    def _failed(self, turn: Turn, error: Exception) -> Outcome:
        if isinstance(error, ModelFailed):
            return Outcome(state=RunState.ERROR, error_code="model_failed", error=error.message)
        if isinstance(error, GatewayError):
            return Outcome(state=RunState.ERROR, error_code=error.code, error=error.message)
        log.error("a run failed", run_id=turn.run.id, session_key=turn.run.session_key, exc_info=error)
        return Outcome(state=RunState.ERROR, error_code="internal", error=f"{type(error).__name__}: {error}")

    async def _finish(self, turn: Turn, outcome: Outcome) -> None:
        # Nothing stays of an attempt that failed; what was written before somebody stopped it does.
        reply = None if outcome.state is RunState.ERROR else turn.partial_reply(str(outcome.state))
        try:
            await self._durable(
                lambda: self._store.finish_run(
                    turn.fence, outcome, reply=reply, at_step=turn.run.step, ran_ms=turn.ran_ms
                )
            )
        except FenceLost:
            log.debug("the run had ended", run_id=turn.run.id)


def _aborted() -> Outcome:
    return Outcome(state=RunState.ABORTED, error_code="aborted", error="aborted")


def _timed_out(limit_s: float) -> Outcome:
    return Outcome(state=RunState.TIMEOUT, error_code="run_timeout", error=f"the run's limit of {limit_s:g} s was over")


def _stop_if_cancelled() -> None:
    """Stop here when somebody wants it: before the first wait, or after a tool that kept it to itself."""
    if is_cancelled():
        raise asyncio.CancelledError
