"""The runner: one run as a loop of model calls and rounds of tool calls.

Each reply and each tool result is committed before the next step begins. So a run continues after a crash by entering
the same loop again: open tool calls first, then the model. Every way out of the loop ends the run with exactly one
commit. A process that stops leaves the run for the next start.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import partial

import structlog

from backchannel.agents.registry import AgentFunction, Agents
from backchannel.core.contracts import (
    Clock,
    Model,
    ModelFailed,
    ModelReply,
    Tool,
    ToolSet,
)
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Usage, text_content
from backchannel.core.models.model_row import provider_of
from backchannel.core.models.model_wait import WaitAsked
from backchannel.core.runs import (
    Outcome,
    Run,
    RunKind,
    RunStarted,
    RunState,
    Step,
    ToolCall,
    function_model,
    read_fallbacks,
)
from backchannel.errors import FenceLost, GatewayError, StopRequested
from backchannel.runtime.active import ActiveRun, RunContext, RunSetup, ToolCalls, is_cancelled
from backchannel.runtime.approvals import Approvals
from backchannel.runtime.asking import AskedReply, Asking, SetupsInRow
from backchannel.runtime.cluster.media import Media
from backchannel.runtime.conversations import Conversations
from backchannel.runtime.events import Hub
from backchannel.runtime.lanes import Stop, StopReason
from backchannel.runtime.model_calls import ModelCalls, NoModelAnswered, shown_error
from backchannel.runtime.spending import Spending
from backchannel.runtime.supervisor import DatabaseWait
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)


class Runner:
    """Works on runs that a lane has started."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        tools: ToolSet,
        approvals: Approvals,
        hub: Hub,
        clock: Clock,
        conversations: Conversations,
        spending: Spending,
        asking: ModelCalls,
        wait: DatabaseWait,
        media: Media,
    ) -> None:
        self._store = store
        self._conversations = conversations
        self._asking = Asking(store, conversations, spending, asking, hub, clock)
        self._spending = spending
        self._agents = agents
        self._tools = tools
        self._hub = hub
        self._clock = clock
        self._durably = wait.durably
        self._calls = ToolCalls(store, tools, approvals, hub, clock, wait, media)

    async def work(self, started: RunStarted, stop_reason: StopReason) -> None:
        """Carry out a run to its end. Raises only at a shutdown."""
        active = ActiveRun(started, self._clock, stop_reason)
        try:
            outcome = await self._carry_out(active)
        except FenceLost:
            return
        except asyncio.CancelledError as cancelled:
            outcome = self._stopped(active, cancelled)
        except Exception as error:  # noqa: BLE001 - the edge of a lane: whatever fails is the run's outcome
            outcome = self._failed(active, error)
        if outcome is not None:
            await self._end(active, outcome)

    async def _end(self, active: ActiveRun, outcome: Outcome) -> None:
        try:
            await self._finish(active, outcome)
        except asyncio.CancelledError:
            # An abort cancels only once. It may come now, while the outcome waits for disk space. The run must still
            # end.
            if outcome.state is RunState.ABORTED or active.stop_reason() is not Stop.ABORT:
                raise
            await self._finish(active, _aborted())

    def _stopped(self, active: ActiveRun, cancelled: asyncio.CancelledError) -> Outcome:
        """Decide the outcome of a cancelled run. Raises again if the run is left for the next start."""
        if active.stop_reason() is Stop.ABORT:
            return _aborted()
        if is_cancelled():
            raise cancelled
        # Nobody stopped the run: a task that the model or the function awaited was cancelled.
        return Outcome(
            state=RunState.ERROR, error_code="internal", error="CancelledError: the work broke off by itself"
        )

    async def _carry_out(self, active: ActiveRun) -> Outcome | None:
        """Do the work; returns None if the last step has ended the run."""
        agent = self._agents.get(SessionKey.stored(active.run.session_key).agent)
        limit_s = agent.timeout_s if active.run.timeout_s is None else active.run.timeout_s
        remaining_s = active.run.remaining_s(limit_s)
        if remaining_s == 0:
            return _timed_out(limit_s)  # used up before a crash
        deadline = active.deadline = asyncio.timeout(remaining_s)
        try:
            async with deadline:
                _stop_if_cancelled()
                function = self._agents.function(agent.id)
                await self._tools.ready(agent.id, active.run.session_key)
                if function is not None:
                    await self._run_function(active, function)
                else:
                    await self._run_model(active, self._setups(active))
        except StopRequested:
            return _aborted()
        except TimeoutError:
            if not deadline.expired():
                raise
            return _timed_out(limit_s)
        return None

    def _setups(self, active: ActiveRun) -> SetupsInRow:
        run, session = active.run, active.session
        agent = self._agents.get(session.agent_id)
        usual = agent.subagent_row if SessionKey.stored(run.session_key).is_subagent else agent.row
        row = usual.led_by(run.model or session.model or agent.model, read_fallbacks(run))
        thinking = run.thinking or session.thinking_level or agent.thinking
        shown = self._tools.of(agent.id, run.session_key)
        tools = _usable(run, shown)

        def make(model: Model) -> RunSetup:
            return RunSetup(session, agent, model, tools, shown, thinking)

        return SetupsInRow(row, agent.retry_for_s, tools, make)

    async def _run_model(self, active: ActiveRun, setups: SetupsInRow) -> None:
        read_calls = partial(self._store.open_calls, active.run.id)
        open_calls = await self._durably(read_calls) if active.run.step else []
        while True:
            if open_calls:
                await self._calls.round(active, setups.tools, open_calls)
                _stop_if_cancelled()
            try:
                asked = await self._asking.reply(active, setups)
            except NoModelAnswered as failed:
                if await self._waits(active, setups, failed):
                    return
                raise
            open_calls = await self._commit(active, asked)
            if not open_calls:
                return

    async def _waits(self, active: ActiveRun, setups: SetupsInRow, failed: NoModelAnswered) -> bool:
        """Set the run aside if a model may answer later; returns whether it is."""
        if not failed.may_pass:
            return False
        model = failed.awaited
        wait = WaitAsked(
            model=model.ref,
            provider=provider_of(model.ref),
            error=shown_error(model.error.message),
            was_asked=failed.was_asked,
            pause_s=failed.pause_s,
            lasts_ms=int(setups.retry_for_s * 1000),
            is_billed=active.is_sent,
            chance=random.random(),
        )
        aside = await self._durably(partial(self._store.wait_for_model, active.fence, wait, active.ran_ms))
        if aside is not None:
            self._spending.settled()
            log.info("a run waits for a model", run_id=aside.id, model=model.ref, until_ms=aside.resume_at)
        return aside is not None

    async def _commit(self, active: ActiveRun, asked: AskedReply) -> list[ToolCall]:
        setup, prepared, reply = asked
        step = Step(
            reply=active.reply_message(reply, prepared.moved),
            ran_ms=active.ran_ms,
            usage=reply.usage,
            context_tokens=setup.model.context_window,
            shape=prepared.shape,
        )
        committed = await self._durably(partial(self._store.commit_reply, active.fence, step))
        self._conversations.committed(active, prepared)
        active.run, active.text, active.is_sent = committed.run, "", False
        self._spending.settled()
        if not committed.calls:
            self._conversations.run_ended(active, setup, prepared, step.reply)
        return committed.calls

    async def _run_function(self, active: ActiveRun, function: AgentFunction) -> None:
        agent_id = SessionKey.stored(active.run.session_key).agent
        tools = _usable(active.run, self._tools.of(agent_id, active.run.session_key))
        context = await self._durably(partial(RunContext.of, active, self._store, self._calls, tools))
        await self._spending.counted(active)
        self._store.check_lease()
        text = await function(context)
        if text is not None and not isinstance(text, str):
            raise TypeError(f"the agent {agent_id!r} returned {type(text).__name__}: return a text, or None")
        await self._commit_text(active, text or "", function_model(agent_id))

    async def _commit_text(self, active: ActiveRun, text: str, model: str) -> None:
        reply = ModelReply(content=text_content(text), usage=Usage(), model=model)
        step = Step(reply=active.reply_message(reply), ran_ms=active.ran_ms, usage=reply.usage, leaves_calls=True)
        await self._durably(partial(self._store.commit_reply, active.fence, step))

    def _failed(self, active: ActiveRun, error: Exception) -> Outcome:
        if isinstance(error, NoModelAnswered):
            first = error.failures[0].error
            code = first.code if isinstance(first, GatewayError) else "model_failed"
            return Outcome(state=RunState.ERROR, error_code=code, error=error.message)
        if isinstance(error, ModelFailed):
            return Outcome(state=RunState.ERROR, error_code="model_failed", error=error.message)
        if isinstance(error, GatewayError):
            return Outcome(state=RunState.ERROR, error_code=error.code, error=error.message)
        log.error("a run failed", run_id=active.run.id, session_key=active.run.session_key, exc_info=error)
        return Outcome(state=RunState.ERROR, error_code="internal", error=f"{type(error).__name__}: {error}")

    async def _finish(self, active: ActiveRun, outcome: Outcome) -> None:
        # The streamed text of a failed attempt is dropped. The streamed text before an abort is kept.
        reply = None if outcome.state is RunState.ERROR else active.partial_reply(str(outcome.state))
        try:
            await self._durably(
                lambda: self._store.finish_run(
                    active.fence,
                    outcome,
                    reply=reply,
                    at_step=active.run.step,
                    ran_ms=active.ran_ms,
                    is_billed=active.is_sent,
                )
            )
            self._spending.settled()
        except FenceLost:
            log.debug("the run had ended", run_id=active.run.id)


def _usable(run: Run, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
    """Return the tools that a run may call. An announce has none."""
    return {} if run.kind is RunKind.ANNOUNCE else tools


def _aborted() -> Outcome:
    return Outcome(state=RunState.ABORTED, error_code="aborted", error="aborted")


def _timed_out(limit_s: float) -> Outcome:
    return Outcome(state=RunState.TIMEOUT, error_code="run_timeout", error=f"the run's limit of {limit_s:g} s was over")


def _stop_if_cancelled() -> None:
    """Raise a pending cancellation: from before the first await, or swallowed by a tool."""
    if is_cancelled():
        raise asyncio.CancelledError
