"""Units about runs: accepted, started, step by step, ended, taken up again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial

from backchannel.core.messages import Message
from backchannel.core.runs import Accepted, Fence, Outcome, Run, RunRequest, RunState, Started, Step, ToolCall
from backchannel.storage.transactions import calls, functions, recovery, requesters, runs, steps
from backchannel.storage.transactions.recovery import Interrupted
from backchannel.storage.transactions.steps import Committed
from backchannel.storage.tx import Check
from backchannel.storage.units.base import Units


class RunUnits(Units):
    """Runs and their steps."""

    def accept_run(self, request: RunRequest, *, start: bool, check: Check | None = None) -> asyncio.Future[Accepted]:
        """Accept a message with its run; with `start`, start it in the same commit when its lane is free.

        `check` sees the session in the same unit, and raises what refuses the message.
        """
        number = self.number if start else None
        return self._driver.write(
            partial(runs.accept, request=request, scheme=self.scheme, number=number, now=self._now, check=check)
        )

    async def start_next(self, key: str) -> Started | None:
        """Start the session's first queued run, if its lane is free."""
        return await self._driver.write(partial(runs.start_next, key=key, number=self.number, now=self._now))

    async def commit_reply(self, fence: Fence, step: Step) -> Committed:
        """Write a model's reply; the last one ends the run."""
        return await self._driver.write(partial(steps.commit_reply, fence=fence, step=step, now=self._now))

    async def start_call(self, fence: Fence, call_id: str) -> None:
        await self._driver.write(partial(steps.start_call, fence=fence, call_id=call_id))

    async def commit_result(self, fence: Fence, result: Message, ran_ms: int) -> None:
        await self._driver.write(partial(steps.commit_result, fence=fence, result=result, ran_ms=ran_ms, now=self._now))

    async def open_calls(self, run_id: str) -> list[ToolCall]:
        """List a run's tool calls that have no result yet."""
        return self._driver.look(partial(calls.open_calls, run_id=run_id))

    async def open_function_call(self, fence: Fence, call: ToolCall) -> ToolCall:
        """Record a function agent's call, or return what is recorded of it already."""
        return await self._driver.write(partial(steps.open_function_call, fence=fence, call=call))

    async def commit_function_result(self, fence: Fence, result: Message, recorded: str, ran_ms: int) -> None:
        unit = partial(
            steps.commit_function_result,
            fence=fence,
            result=result,
            recorded=recorded,
            ran_ms=ran_ms,
            now=self._now,
        )
        await self._driver.write(unit)

    async def finish_run(
        self, fence: Fence, outcome: Outcome, *, reply: Message | None, at_step: int, ran_ms: int
    ) -> Run:
        """End a run otherwise than by its last reply."""
        return await self._driver.write(
            partial(
                runs.finish,
                fence=fence,
                outcome=outcome,
                reply=reply,
                at_step=at_step,
                ran_ms=ran_ms,
                now=self._now,
                tells_failure=self.tells_failures,
            )
        )

    async def request_abort(self, key: str, run_id: str | None) -> list[Run]:
        return await self._driver.write(partial(runs.request_abort, key=key, run_id=run_id, now=self._now))

    async def run(self, run_id: str) -> Run | None:
        return self._driver.look(partial(runs.find, run_id=run_id))

    async def is_own_run(self, run_id: str, key: str) -> bool:
        """Whether a session asked for a run: its own, or one that its send or spawn started."""
        return self._driver.look(partial(requesters.is_own, run_id=run_id, key=key))

    async def runs(
        self,
        *,
        session_key: str | None = None,
        states: Sequence[RunState] = (),
        limit: int,
        before: int | None = None,
    ) -> list[Run]:
        """List runs, newest first; `before` is the position of the last one seen."""
        return await self._read(partial(runs.page, session_key=session_key, states=states, limit=limit, before=before))

    async def sessions_with_queue(self) -> list[str]:
        return await self._read(runs.sessions_with_queue)

    def remember_function(self, agent_id: str) -> asyncio.Future[None]:
        """Write down that an agent is a function of this program; what is accepted after this call comes after it."""
        return self._driver.write(partial(functions.remember, agent_id=agent_id, now=self._now))

    async def forget_function(self, agent_id: str) -> bool:
        """Let an agent be what the configuration says; tells whether it was known as a function."""
        return await self._driver.write(partial(functions.forget, agent_id=agent_id))

    async def function_agents(self) -> list[str]:
        """Name the agents that a program has ever brought as functions."""
        return await self._read(functions.known)

    async def runs_waiting_for_functions(self, here: Collection[str]) -> dict[str, int]:
        """Count the runs that wait for a program that brings their function, by agent; `here` are those at hand."""
        return await self._read(partial(functions.waiting_runs, here=here))

    async def next_resume(self, key: str) -> int | None:
        """Tell when the first of a session's runs that are set aside is tried again."""
        return self._driver.look(partial(runs.next_resume, key=key))

    async def run_counts(self) -> dict[str, int]:
        return await self._read(runs.counts)

    async def interrupted_runs(self) -> list[Interrupted]:
        return await self._read(recovery.interrupted)

    async def resume_run(self, run_id: str) -> Started | None:
        """Take over an interrupted run, or end it if it may not go on."""
        unit = partial(
            recovery.resume, run_id=run_id, number=self.number, now=self._now, tells_failure=self.tells_failures
        )
        return await self._driver.write(unit)

    async def retry_run(self, run_id: str) -> Run:
        return await self._driver.write(partial(recovery.retry, run_id=run_id, now=self._now))
