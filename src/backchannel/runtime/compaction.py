"""Compaction: summaries of long conversations, beside the lanes or in a run's way.

Beside: after a run that ended above the mark `at`, or when a person asks. The summary is made in the background. It is
written when no run of the session is active, or by the session's next run between two of its steps.

In the way: a run whose request is above the mark `hard` waits for the summary, once. Its time limit counts.

Only a finished summary is written, in one commit (`storage/units/compactions.py`). Everything here is lost with the
process, and no row depends on it: the next run above the mark starts again.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import structlog

from backchannel.agents.models import Models
from backchannel.agents.registry import Agents
from backchannel.config.agents import AgentSettings
from backchannel.core.commands.texts import no_summary_text, undo_text
from backchannel.core.compaction.prompting import SummaryFailed
from backchannel.core.compaction.values import CompactionState, MadeSummary, SummaryUndone
from backchannel.core.contracts import Clock, Model
from backchannel.core.delivery.delivery import Post
from backchannel.core.facts import CompactionAsked, RunChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import CompactionEntry
from backchannel.core.sessions import Session
from backchannel.core.supervision import Backoff
from backchannel.errors import FenceLost, GatewayError, StopRequested
from backchannel.runtime.active import ActiveRun, RunSetup
from backchannel.runtime.events import CompactionMoved, Hub
from backchannel.runtime.holding import Holding
from backchannel.runtime.model_calls import ModelCalls, NoModelAnswered
from backchannel.runtime.summaries import CompactionJob, NothingToCompact, Summaries
from backchannel.runtime.supervisor import DatabaseWait
from backchannel.service import Reactions, Service, SupervisedLoop
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

MOST_AT_ONCE = 4
"""How many summaries are made beside the lanes at the same time."""
_MOST_WAITING = 256
"""How many may wait for that. The next run of a session that was turned away asks again."""
_LOOK_AGAIN_S = 5.0
"""How long a summary waits for news of a run of another gateway."""
_MOST_LOOKS = 720
_LONGEST_REST, _MOST_RESTING = 32, 1000
"""After a failure some runs are passed over, more each time: a model that always fails costs little."""
_CHANGED = "the conversation was changed meanwhile"
_LEFT = "a run of this session needs a summary at once and makes it, or the gateway is stopping"


class CompactionResult(msgspec.Struct, frozen=True):
    """What became of a compaction that a person asked for: its entry, or why there is none."""

    entry: CompactionEntry | None = None
    reason: str | None = None
    is_failure: bool = False
    """Whether the reason is an error, whose words are for operators."""


class Compaction(Service):
    """Makes summaries of the older parts of conversations."""

    name = "compaction"

    def __init__(
        self,
        store: Store,
        agents: Agents,
        models: Models,
        calls: ModelCalls,
        holding: Holding,
        hub: Hub,
        clock: Clock,
        wait: DatabaseWait,
    ) -> None:
        self._store = store
        self._agents = agents
        self._models = models
        self._hub = hub
        self._clock = clock
        self._durably = wait.durably
        self._summaries = Summaries(store, calls, holding, clock, wait)
        self._tasks: dict[str, asyncio.Task[CompactionResult]] = {}
        """Those beside the lanes, by session id."""
        self._making: dict[str, asyncio.Future[None]] = {}
        """Done when the summary is ready, or is not made, by session id."""
        self._ready: dict[str, MadeSummary] = {}
        """Summaries that wait for the end of a run."""
        self._ends: dict[str, asyncio.Event] = {}
        """Set when a run of the session ends, by key."""
        self._resting: dict[str, tuple[int, int]] = {}
        """Sessions whose summaries failed: how often in a row, and how many runs are passed over now."""
        self._asked: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._state = SupervisedLoop(self.name, clock, Backoff(1.0, 1.0))
        self.kept = (self._state,)

    def reactions(self) -> Reactions:
        return {RunChanged: self._on_run, CompactionAsked: self._on_asked}

    async def halt(self) -> None:
        await self.close()

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._asked]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ready.clear()
        self._ends.clear()

    # --- Beside the lane ---

    def beside(self, job: CompactionJob) -> asyncio.Task[CompactionResult] | None:
        """Begin a summary in the background; None if there are too many, or if it failed a short while ago.

        A session has one at a time.
        """
        task = self._tasks.get(job.session_id)
        if task is not None or len(self._tasks) >= _MOST_WAITING or (not job.is_asked and self._rests(job.session_id)):
            return task
        task = self._tasks[job.session_id] = asyncio.create_task(self._work(job))
        task.add_done_callback(lambda _: self._tasks.pop(job.session_id, None))
        return task

    async def _work(self, job: CompactionJob) -> CompactionResult:
        try:
            async with self._slots:
                made = await self._ready_for(job)
            return await self._written(made)
        except FenceLost:
            return CompactionResult(reason="the gateway is stopping")
        except Exception as error:  # noqa: BLE001 - the edge of the background: whatever fails is logged, once
            is_failure = not isinstance(error, NothingToCompact | SummaryFailed)
            return CompactionResult(reason=self._failed(job, error), is_failure=is_failure)
        finally:
            self._ready.pop(job.session_id, None)

    async def _ready_for(self, job: CompactionJob) -> MadeSummary:
        making = self._making[job.session_id] = asyncio.get_running_loop().create_future()
        try:
            made = self._ready[job.session_id] = await self._summaries.make(job)
        finally:
            del self._making[job.session_id]
            making.set_result(None)
        return made

    async def _written(self, made: MadeSummary) -> CompactionResult:
        """Write a summary as soon as no run is active, unless a run of the session writes it first."""
        for _ in range(_MOST_LOOKS):
            if made.session_id not in self._ready:
                break  # a run has written it, and it may be taken back by now
            ended = self._ends.setdefault(made.key, asyncio.Event())
            state = await self._durably(partial(self._store.commit_compaction, made))
            if state is not CompactionState.BUSY or made.session_id not in self._ready:
                break
            await self._next_end(made.key, ended)
        self._ends.pop(made.key, None)
        entry = made.message.compaction
        if await self._durably(partial(self._store.compaction, made.session_id)) != entry:
            return CompactionResult(reason=_CHANGED)
        self._succeeded(made.session_id)
        return CompactionResult(entry)

    async def _next_end(self, key: str, ended: asyncio.Event) -> None:
        """Wait for the end of a run of the session, but not for ever: another gateway may work on it."""
        waits = [asyncio.ensure_future(ended.wait()), asyncio.ensure_future(self._clock.sleep(_LOOK_AGAIN_S))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            if self._ends.get(key) is ended:
                del self._ends[key]

    def _on_run(self, fact: RunChanged) -> None:
        if self._ends and fact.run.is_finished and (ended := self._ends.get(fact.run.session_key)) is not None:
            ended.set()

    # --- In the way of a run ---

    async def take(self, active: ActiveRun) -> bool:
        """Write a summary that is ready, for a run between two of its steps; returns whether it was written."""
        made = self._ready.pop(active.session_id, None)
        return made is not None and await self._committed(made, active)

    async def in_the_way(self, active: ActiveRun, setup: RunSetup, prompt_tokens: int) -> str | None:
        """Make and write a summary while a run waits, once in a run; returns why there is none, or None."""
        if active.has_compacted:
            return "it was tried before in this run"
        active.has_compacted = True
        return await self._awaited(active, job_of(active, setup, prompt_tokens))

    async def carry(self, active: ActiveRun, setup: RunSetup, prompt_tokens: int, earlier: str) -> bool:
        """Begin a transcript with a summary of the one before it, once in a run; returns whether it was written."""
        if active.has_carried:
            return False
        active.has_carried = True
        job = msgspec.structs.replace(job_of(active, setup, prompt_tokens), carried_from=earlier)
        return await self._awaited(active, job) is None

    async def _awaited(self, active: ActiveRun, job: CompactionJob) -> str | None:
        why: str | None = "it was stopped"
        self._hub.publish(CompactionMoved(active.run, is_end=False))
        try:
            why = await self._while_it_waits(active, job)
        finally:
            self._hub.publish(CompactionMoved(active.run, is_end=True, is_done=why is None))
        return why

    async def _while_it_waits(self, active: ActiveRun, job: CompactionJob) -> str | None:
        await self._begun(active.session_id)
        try:
            made = self._ready.pop(active.session_id, None) or await self._summaries.make(job)
            is_written = await self._committed(made, active)
        except (FenceLost, StopRequested):
            raise  # it is the run that is over
        except Exception as error:  # noqa: BLE001 - whatever fails here, the run goes on without a summary
            return self._failed(job, error)
        if not is_written:
            return _CHANGED
        self._succeeded(active.session_id)
        return None

    async def _begun(self, session_id: str) -> None:
        """Wait for a summary that is being made; one that still waits for its turn is not waited for."""
        if (making := self._making.get(session_id)) is not None:
            await asyncio.shield(making)
        elif session_id not in self._ready and (task := self._tasks.get(session_id)) is not None:
            task.cancel()

    async def _committed(self, made: MadeSummary, active: ActiveRun) -> bool:
        state = await self._durably(partial(self._store.commit_compaction, made, active.fence))
        return state is CompactionState.DONE

    # --- Asked for by a person ---

    async def asked(self, session: Session, wish: str | None) -> CompactionResult:
        """Make a summary for a person, and wait for it.

        Raises:
            UnknownAgent, UnknownModel, ModelUnusable
        """
        agent = self._agents.get(session.agent_id)
        if self._agents.is_function(agent.id):
            return CompactionResult(reason=f"the agent {agent.id!r} is a function and asks no model")
        model = self._models.get(session.model or agent.model)
        task = self.beside(_asked_job(session, agent, model, wish))
        if task is None:
            return CompactionResult(reason="too many summaries are being made: ask again later")
        await asyncio.wait([task])  # it goes on if the person hangs up
        return CompactionResult(reason=_LEFT) if task.cancelled() else task.result()

    async def undo(self, key: str, session_id: str | None = None) -> SummaryUndone:
        """Take the last summary of a session back; while a run is active, that happens when it has ended.

        Raises:
            SessionNotFound: there is no such session.
        """
        return await self._store.undo_compaction(key, session_id)

    def _on_asked(self, fact: CompactionAsked) -> None:
        task = asyncio.create_task(self._carry_out(fact))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _carry_out(self, fact: CompactionAsked) -> None:
        try:
            told = await (self._undone(fact) if fact.undoes else self._summarised(fact))
            if told is not None and fact.chat is not None:
                post = Post(
                    session_key=fact.key, address=fact.chat.address, text=told, quotes=fact.chat.quotes, always=True
                )
                await self._durably(partial(self._store.post, post))
        except (GatewayError, FenceLost) as error:
            log.warning("nobody was told that there is no summary", session_key=fact.key, error=str(error))

    async def _summarised(self, fact: CompactionAsked) -> str | None:
        """Make a summary for a chat; returns what the chat is told if there is none."""
        session = await self._durably(partial(self._store.session, fact.key))
        if session is None or session.session_id != fact.session_id:
            return no_summary_text(_CHANGED)
        try:
            result = await self.asked(session, fact.wish)
        except GatewayError as error:
            log.warning("no summary was made", session_key=fact.key, error=str(error))
            return no_summary_text(None)
        return None if result.entry is not None else no_summary_text(None if result.is_failure else result.reason)

    async def _undone(self, fact: CompactionAsked) -> str | None:
        """Take a summary back after the run that was active; returns what the chat is told if there is none."""
        ended = self._ends.setdefault(fact.key, asyncio.Event())
        session = await self._durably(partial(self._store.session, fact.key))
        if session is not None and session.running_run is not None:
            await self._next_end(fact.key, ended)
        self._ends.pop(fact.key, None)
        undone = await self._store.undo_compaction(fact.key, fact.session_id, fact.chat)
        return undo_text(undone) if undone.state is CompactionState.GONE else None

    # --- What became of it ---

    def _succeeded(self, session_id: str) -> None:
        self._resting.pop(session_id, None)
        self._state.noted(None)

    def _rest(self, session_id: str) -> None:
        """Pass a session over for some runs: its last summary failed, or there was nothing to summarise."""
        failures = self._resting.pop(session_id, (0, 0))[0] + 1
        self._resting[session_id] = failures, min(2**failures, _LONGEST_REST) - 1
        if len(self._resting) > _MOST_RESTING:
            del self._resting[next(iter(self._resting))]

    def _rests(self, session_id: str) -> bool:
        """Tell whether a session is passed over after this run, because its last summaries failed."""
        failures, left = self._resting.get(session_id, (0, 0))
        if left:
            self._resting[session_id] = failures, left - 1
        return left > 0

    def _failed(self, job: CompactionJob, error: Exception) -> str:
        why = error.message if isinstance(error, NoModelAnswered | GatewayError) else str(error) or type(error).__name__
        self._rest(job.session_id)
        if isinstance(error, NothingToCompact):
            return why
        is_known = isinstance(error, NoModelAnswered | SummaryFailed | GatewayError)
        log.warning("no summary was made", session_key=job.key, error=why, exc_info=None if is_known else error)
        self._state.noted(f"no summary was made: {why}")
        return why


def job_of(active: ActiveRun, setup: RunSetup, prompt_tokens: int) -> CompactionJob:
    """Describe the summary of a run's conversation."""
    return CompactionJob(
        key=active.run.session_key,
        session_id=active.session_id,
        agent=setup.agent,
        model=setup.model,
        is_shared=setup.session.is_shared,
        prompt_tokens=prompt_tokens,
        run_id=active.run.id,
    )


def _asked_job(session: Session, agent: AgentSettings, model: Model, wish: str | None) -> CompactionJob:
    return CompactionJob(
        key=str(SessionKey.stored(session.key)),
        session_id=session.session_id,
        agent=agent,
        model=model,
        is_shared=session.is_shared,
        prompt_tokens=None,
        used_tokens=session.total_tokens or 0,
        wish=wish,
        is_asked=True,
    )
