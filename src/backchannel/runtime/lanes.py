"""Lanes: runs of one session in order, runs of different sessions side by side.

Memory holds only wake-ups, slots and running tasks. The store decides which run of a session is next, and whether a
lane is free. A key in the queue *may* have a queued run. A wrong guess costs one query, never a run.
`core/policy/slots.py` decides which session is next.

A slot is taken before the store is asked to start a run, so that accepting and starting can be one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import structlog

from backchannel.core.contracts import Check
from backchannel.core.facts import LaneFree, RunChanged
from backchannel.core.keys import SessionKey
from backchannel.core.policy.inbound import Arrival, InboundTaken
from backchannel.core.policy.slots import SlotQueue
from backchannel.core.runs import Run, RunAccepted, RunRequest, RunStarted, RunState
from backchannel.errors import FenceLost, Unavailable
from backchannel.runtime.slots import RunSlots
from backchannel.runtime.supervisor import CLOSE_LIMIT_S, DatabaseWait
from backchannel.service import Reactions, Service
from backchannel.storage.store import Store
from backchannel.wire.rows import SlotCount, SlotUse

log = structlog.get_logger(__name__)
A = TypeVar("A", RunAccepted, InboundTaken)


class Stop(StrEnum):
    """The reason why a run's task is cancelled."""

    ABORT = "abort"
    SHUTDOWN = "shutdown"


StopReason = Callable[[], Stop | None]
Work = Callable[[RunStarted, StopReason], Coroutine[Any, Any, None]]
"""Works on a run; while its task is cancelled, the second argument tells why."""

MOST_EXPECTED = 4096
"""How many queued runs are remembered that may start here."""
RUN, SUBAGENT = "run", "subagent"
"""Kinds of slots."""


class Lanes(Service):
    """Starts runs as slots become free, and stops them when asked."""

    name = "lanes"

    def __init__(
        self, store: Store, work: Work, slots: RunSlots, is_awaited: Callable[[str], bool], wait: DatabaseWait
    ) -> None:
        """Make the lanes. `is_awaited` names agents whose function is missing here: their runs do not start."""
        self._store = store
        self._is_awaited = is_awaited
        self._work = work
        self._wait = wait
        self._slots = slots
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._busy: set[str] = set()
        """Keys whose lane this process works on, or will work on next."""
        self._queue: SlotQueue[SessionKey] = SlotQueue()
        """Keys that may have a queued run, and whose lane nobody works on."""
        self._queued: set[str] = set()
        self._again: set[str] = set()
        """Keys to look at again when the work on their lane ends."""
        self._to_resume: dict[str, str] = {}
        """Runs that an earlier process held, by the key whose lane they have."""
        self._helpers: set[asyncio.Task[None]] = set()
        self._stops: dict[str, Stop] = {}
        self._at_work: set[str] = set()
        self._runs: dict[str, Run] = {}
        """The runs of the tasks, as they were when they started."""
        self._next: dict[str, str] = {}
        """The last queued runs that were accepted here, each with its session; another gateway may start them."""
        slots.listen(self._pump)
        self._is_open = True

    async def submit(self, request: RunRequest, check: Check | None = None) -> RunAccepted:
        """Accept a message. It is durable when this returns. Its run starts when a slot and its lane are free."""
        return await self._with_slot(request.key, partial(self._store.accept_run, request, check=check))

    async def take(self, arrival: Arrival) -> InboundTaken:
        """Handle an inbound message. The outcome is durable when this returns. A run starts as in `submit`."""
        return await self._with_slot(arrival.routed.key, partial(self._store.take_inbound, arrival))

    async def _with_slot(self, session: SessionKey, accept: Callable[..., asyncio.Future[A]]) -> A:
        """Take a slot first, if one is free, then accept. So the run can start in the same commit."""
        key = str(session)
        is_idle = key not in self._busy and key not in self._queued  # else an earlier run may come first
        may_start = self._is_open and is_idle and not self._is_awaited(session.agent)
        takes_slot = may_start and self._slots.take(session)
        if takes_slot:
            self._busy.add(key)
        future = accept(start=takes_slot)
        # The caller may be cancelled meanwhile. The slot and the started run must not be lost then, and asyncio must
        # not log a refusal that nobody awaits.
        future.add_done_callback(partial(self._accepted, key) if takes_slot else _hear)
        return await asyncio.shield(future)

    def _accepted(self, key: str, done: asyncio.Future[A]) -> None:
        made = None if done.cancelled() or done.exception() is not None else done.result()
        accepted = made.accepted if isinstance(made, InboundTaken) else made
        if accepted is None or accepted.started is None:
            self._free(key)
        else:
            self._launch(accepted.started)

    def on_run(self, fact: RunChanged) -> None:
        """React to a commit: a queued run wakes its lane, an ended run frees it, an abort stops its task."""
        run = fact.run
        if run.state is RunState.QUEUED:
            self._next[run.id] = run.session_key
            if len(self._next) > MOST_EXPECTED:
                del self._next[next(iter(self._next))]
        else:
            self._next.pop(run.id, None)
        if run.is_finished and run.id in self._tasks:
            self._release(run.id, run.session_key)
        elif run.state is RunState.QUEUED:
            self.wake(run.session_key)
        elif run.state is RunState.RUNNING and run.abort_requested:
            if run.session_key in self._busy and run.fence == self._store.number:
                self.stop(run.id, Stop.ABORT)
            else:
                self.resume(run.session_key, run.id)  # no task works on it: to resume it is to end it

    def on_free(self, fact: LaneFree) -> None:
        """React to a commit: the next run of a session can start. Runs that waited for this session go first."""
        self._look_at(fact.key)
        asyncio.get_running_loop().call_soon(self._pump)

    def wake(self, key: str) -> None:
        """Say that this session may have a queued run."""
        self._look_at(key)
        self._pump()

    def _look_at(self, key: str) -> None:
        if key in self._busy:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            session = SessionKey.stored(key)
            self._queue.add(session.agent, key, session)

    def resume(self, key: str, run_id: str) -> None:
        """Continue a run of an earlier process as soon as there is a slot."""
        self._to_resume[key] = run_id
        self.wake(key)

    def stop(self, run_id: str, why: Stop) -> None:
        """Cancel a run's task. A task that has not begun is cancelled when it begins, where it can end its run."""
        if run_id in self._stops:
            return
        self._stops[run_id] = why
        if run_id in self._at_work:
            self._tasks[run_id].cancel()

    def works_on(self, run_id: str) -> bool:
        """True if this process works on a run."""
        return run_id in self._tasks

    def expects(self, run_id: str) -> bool:
        """True if a queued run was accepted here, and its session is worked on here or next."""
        key = self._next.get(run_id)
        if key is None or key in self._busy or key in self._queued:
            return key is not None
        del self._next[run_id]  # another gateway has the lane, and starts the run
        return False

    def has_room(self, key: str) -> bool:
        """True if a queued run of a session can start here: its agent is here, and a slot is free."""
        session = SessionKey.stored(key)
        return self._is_open and not self._is_awaited(session.agent) and self._slots.has_room(session)

    def has_any_room(self) -> bool:
        """True if a slot is free for some agent."""
        return self._is_open and self._slots.runs.used < self._slots.runs.limit

    def waits_for_slot(self, key: str) -> bool:
        """True if a run of a session may be queued, and no slot was free for it yet."""
        return self._is_open and key in self._queued

    def is_busy(self, key: str) -> bool:
        """True if this process works on a session, or will next."""
        return key in self._busy

    def reactions(self) -> Reactions:
        return {RunChanged: self.on_run, LaneFree: self.on_free}

    async def start(self) -> None:
        """Start again. Queued runs, and runs to resume, are read from the store."""
        self._queue.clear()
        self._queued.clear()
        self._again.clear()
        self._next.clear()
        self._to_resume.clear()
        self._is_open = True

    async def halt(self) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all tasks. Their runs stay as at their last commit."""
        self._is_open = False
        for run_id in list(self._tasks):
            self.stop(run_id, Stop.SHUTDOWN)
        for helper in self._helpers:
            helper.cancel()  # a run that it has just started is resumed at the next start, like any other
        left: set[asyncio.Task[None]] = {*self._tasks.values(), *self._helpers}
        if left:
            _, left = await asyncio.wait(left, timeout=CLOSE_LIMIT_S)
        for task in left:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=CLOSE_LIMIT_S)
        for task in left:
            log.error("a run does not stop: it is left behind", task=task.get_name())

    @property
    def running(self) -> int:
        return len(self._tasks)

    def slot_counts(self) -> Iterator[SlotCount]:
        waiting = [*self._queue, *self._slots.returning]
        for kind, shares in ((RUN, self._slots.runs), (SUBAGENT, self._slots.subagents)):
            count = sum(kind == RUN or session.is_subagent for session in waiting)
            yield SlotCount(kind=kind, limit=shares.limit, own=shares.own, used=shares.used, waiting=count)

    def slot_uses(self) -> Iterator[SlotUse]:
        for run in self._runs.values():
            if not self._slots.is_paused(run.id):
                key = run.session_key
                yield _use(SessionKey.stored(key), f"{run.kind} run", id=run.id, run_id=run.id, since=run.started_at)
        for session in self._queue:
            yield _use(session, "queued run", is_waiting=True)
        for session in self._slots.returning:
            yield _use(session, "run that goes on after a wait", is_waiting=True)

    async def end_use(self, id: str) -> bool:
        run = self._runs.get(id)
        return run is not None and bool(await self._store.request_abort(run.session_key, id))

    def _pump(self) -> None:
        """Start the runs that can start, in the order of `SlotQueue`. A sub-agent without a slot delays no other."""
        if not self._is_open:
            return
        while (session := self._queue.next(self._slots.runs, self._slots.may_start)) is not None:
            self._slots.count_subagent(session)
            key = str(session)
            self._queued.discard(key)
            self._busy.add(key)
            self._help(key)

    def _help(self, key: str) -> None:
        helper = asyncio.create_task(self._start_next(key))
        self._helpers.add(helper)
        helper.add_done_callback(lambda done: self._helped(key, done))

    def _helped(self, key: str, done: asyncio.Task[None]) -> None:
        self._helpers.discard(done)
        if done.cancelled():
            self._free(key)
        elif (error := done.exception()) is not None:
            if not isinstance(error, FenceLost):  # the store is closed
                log.error("a lane failed", session_key=key, exc_info=error)
            self._free(key)

    async def _start_next(self, key: str) -> None:
        self._again.discard(key)
        run_id = self._to_resume.get(key)
        try:
            if run_id is None and self._is_awaited(SessionKey.stored(key).agent):
                started = None  # registering the agent wakes the lane
            elif run_id is None:
                started = await self._store.start_next(key)
            else:
                started = await self._store.resume_run(run_id)
                del self._to_resume[key]
                if started is None:
                    self._stops.pop(run_id, None)  # the run ended in that commit and has no task
        except Unavailable as error:
            self._again.add(key)
            await self._wait.pause(error)
            started = None
        if started is not None or run_id:
            self._again.add(key)  # there may be more runs: look again after this one
        if started is None:
            self._free(key)
            return
        self._launch(started)

    def _launch(self, started: RunStarted) -> None:
        run = started.run
        if not self._is_open:
            self._free(run.session_key)  # accepted while the lanes were closing: the next start resumes it
            return
        task = asyncio.create_task(self._begin(started), name=f"run {run.id}")
        self._tasks[run.id] = task
        self._runs[run.id] = run
        task.add_done_callback(partial(self._ended, run.id, run.session_key))

    async def _begin(self, started: RunStarted) -> None:
        run_id = started.run.id
        self._at_work.add(run_id)
        if run_id in self._stops:
            self._tasks[run_id].cancel()  # takes effect at the first await inside, where the run can be ended
        await self._work(started, lambda: self._stops.get(run_id))

    def _ended(self, run_id: str, key: str, done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("a lane failed", session_key=key, run_id=run_id, exc_info=error)
        if self._tasks.get(run_id) is done:
            self._release(run_id, key)

    def _release(self, run_id: str, key: str) -> None:
        """Forget a run that has ended, or that this process stops working on."""
        del self._tasks[run_id], self._runs[run_id]
        self._stops.pop(run_id, None)
        self._at_work.discard(run_id)
        self._free(key)

    def _free(self, key: str) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._look_at(key)
        self._slots.give_back(SessionKey.stored(key))


def _use(session: SessionKey, what: str, **more: Any) -> SlotUse:
    kind = SUBAGENT if session.is_subagent else RUN
    return SlotUse(kind=kind, agent_id=session.agent, session_key=str(session), what=what, **more)


def _hear(done: asyncio.Future[Any]) -> None:
    """Read an outcome that the caller may not have awaited, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
