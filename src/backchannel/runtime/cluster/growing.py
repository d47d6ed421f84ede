"""Replies that grow on one gateway and are read on another.

Each gateway remembers what its own runs have streamed (`GrowingHere`). A gateway with readers of a run elsewhere
(`GrowingElsewhere`) asks for it in that run's row, and again while there are readers. Meanwhile the gateway that works
on the run writes all that was streamed into the row, at most five times a second, and tells the others. They read the
row, and tell their readers what is new. Nothing is written for a run that nobody elsewhere reads.

Rows are hints as the events are. The reply itself comes with its commit; nothing that was streamed of it is told after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic

import msgspec

from backchannel.core.contracts import Clock
from backchannel.core.facts import GrowthWanted, GrowthWritten, RunChanged
from backchannel.core.runs import Run, RunState
from backchannel.core.stored import StoredForm
from backchannel.errors import Unavailable
from backchannel.runtime.events import (
    Event,
    Hub,
    ModelRetried,
    Progress,
    ReplyGrew,
    ThinkingGrew,
    ToolEnded,
    ToolStarted,
)
from backchannel.runtime.supervisor import RESTART, DatabaseWait
from backchannel.service import SupervisedLoop
from backchannel.storage.store import Store

WRITTEN_EVERY_S = 0.2
ASKED_AFTER_S = 0.25
"""How long a run is at work before it is asked for: most have ended by then."""
_WANTED_S = 15.0
ASKED_AGAIN_S = 5.0
_MOST_READ = 500
"""How many runs of others are looked at once."""
MOST_GROWING_CALLS = 32
"""How many of a run's last tool calls are told of."""


class CallSeen(msgspec.Struct, array_like=True):
    """A tool call of a run: whether it has ended, and how."""

    id: str
    name: str
    arguments: object
    is_ended: bool = False
    is_error: bool = False


class RetrySeen(msgspec.Struct, frozen=True, array_like=True):
    """The last time that a model was asked again."""

    error: str
    attempt: int
    retry_at: int
    attempts: int = 0


class Growth(msgspec.Struct):
    """What a run has streamed: of its step so far, and its last tool calls."""

    step: int = 0
    text: str = ""
    thinking: str = ""
    calls: list[CallSeen] = []
    retry: RetrySeen | None = None

    def take(self, event: Progress) -> None:
        """Add what is new."""
        match event:
            case ReplyGrew(run, text):
                self._at(run.step).text = text
            case ThinkingGrew(run, delta):
                self._at(run.step).thinking += delta
            case ModelRetried(run, error, attempt, retry_at, attempts):
                self._at(run.step).text = ""
                self.retry = RetrySeen(error, attempt, retry_at, attempts)
            case ToolStarted(run, call_id, name, arguments):
                self._at(run.step).calls = [*self.calls[1 - MOST_GROWING_CALLS :], CallSeen(call_id, name, arguments)]
            case ToolEnded(_, call_id, _, is_error):
                for call in self.calls:
                    if call.id == call_id:
                        call.is_ended, call.is_error = True, is_error

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.thinking or self.calls or self.retry)

    def _at(self, step: int) -> Growth:
        if step != self.step:
            self.step, self.text, self.thinking, self.retry = step, "", "", None
        return self


def news(run: Run, before: Growth | None, now: Growth) -> Iterator[Progress]:
    """Tell what is new.

    Whoever comes midway hears what was said, of a retry that lasts, and of the calls that are under way.
    """
    known = Growth() if before is None else before
    is_retried = now.step == run.step and not (now.text or now.thinking)  # and has said nothing since
    if now.retry is not None and now.retry != known.retry and (before is not None or is_retried):
        yield ModelRetried(run, now.retry.error, now.retry.attempt, now.retry.retry_at, now.retry.attempts)
    if now.step == run.step:  # else it is in the transcript by now
        is_same = known.step == now.step
        if thought := _added(known.thinking if is_same else "", now.thinking):
            yield ThinkingGrew(run, thought)
        if said := _added(known.text if is_same else "", now.text):
            yield ReplyGrew(run, now.text, said)
    states = {call.id: call.is_ended for call in known.calls}
    for call in now.calls:
        if call.id not in states and (before is not None or not call.is_ended):
            yield ToolStarted(run, call.id, call.name, call.arguments)
        if call.is_ended and before is not None and not states.get(call.id):
            yield ToolEnded(run, call.id, call.name, call.is_error)


def _added(before: str, now: str) -> str:
    """Tell what was added to a text; one that was begun anew is all new."""
    return now[len(before) :] if now.startswith(before) else now


_STORED: StoredForm[Growth] = StoredForm(Growth)


class GrowingHere:
    """Writes down what runs of this process stream, for readers on other gateways."""

    def __init__(self, store: Store, hub: Hub, wait: DatabaseWait, clock: Clock) -> None:
        self.kept = SupervisedLoop("streams", clock, RESTART)
        self._store = store
        self._durably = wait.durably
        self._growing: dict[str, Growth] = {}
        self._wanted: set[str] = set()
        self._grown: set[str] = set()
        self._over: set[str] = set()
        self._called = asyncio.Event()
        kinds = (ReplyGrew, ThinkingGrew, ModelRetried, ToolStarted, ToolEnded)
        hub.listen(self._on_progress, *kinds)
        hub.listen(self._on_run, RunChanged)

    def _on_progress(self, event: Event) -> None:
        if isinstance(event, ReplyGrew | ThinkingGrew | ModelRetried | ToolStarted | ToolEnded):
            run_id = event.run.id
            self._growing.setdefault(run_id, Growth(event.run.step)).take(event)
            if run_id in self._wanted:
                self._grown.add(run_id)
                self._called.set()

    def _on_run(self, event: Event) -> None:
        if not isinstance(event, RunChanged):
            return
        if event.run.state is not RunState.RUNNING:
            self._forget(event.run.id)
        elif event.run.fence == self._store.number:
            self._growing.setdefault(event.run.id, Growth(event.run.step))  # it may be asked for before it says a word

    def _forget(self, run_id: str) -> None:
        self._growing.pop(run_id, None)
        self._grown.discard(run_id)
        if run_id in self._wanted:
            self._wanted.discard(run_id)
            self._over.add(run_id)
            self._called.set()

    def on_wanted(self, fact: GrowthWanted) -> None:
        """Write what a run of this process has streamed, from now on."""
        if fact.run_id in self._growing and fact.run_id not in self._wanted:
            self._wanted.add(fact.run_id)
            if not self._growing[fact.run_id].is_empty:
                self._grown.add(fact.run_id)
                self._called.set()

    async def look(self) -> None:
        """Look for readers of whom no word came."""
        if unread := [run_id for run_id in self._growing if run_id not in self._wanted][:_MOST_READ]:
            for run_id in await self._store.wanted_growing(unread):
                self.on_wanted(GrowthWanted(run_id))

    def drop(self) -> None:
        """Forget all runs: this process works on none of them any more."""
        for runs in (self._growing, self._wanted, self._grown, self._over):
            runs.clear()

    async def write(self) -> None:
        """Write what has grown, and remove what is over, for as long as this process lives."""
        while True:
            self._called.clear()
            await self._durably(self._write)  # before it waits: a loop that was started again shows that it works
            self.kept.recovered()
            await asyncio.sleep(WRITTEN_EVERY_S)
            await self._called.wait()

    async def _write(self) -> None:
        grown, self._grown = self._grown, set()
        over, self._over = self._over, set()
        bodies = {id: _STORED.write(self._growing[id]) for id in grown if id in self._growing}
        try:
            if bodies:
                self._wanted.difference_update(await self._store.write_growing(bodies))
            if over:
                await self._store.forget_growing(sorted(over))
        except Unavailable:
            self._grown |= grown
            self._over |= over
            raise


class _Reading:
    """A run of another gateway that somebody here reads."""

    def __init__(self, run: Run, *, is_midway: bool) -> None:
        self.run = run
        self.growth = None if is_midway else Growth()
        self.since = monotonic()
        self.asked_at: float | None = None

    def is_to_be_asked(self, now: float) -> bool:
        if self.asked_at is None:
            return now >= self.since + ASKED_AFTER_S
        return now >= self.asked_at + ASKED_AGAIN_S


class GrowingElsewhere:
    """Asks for what runs of other gateways stream that somebody here reads, and tells it."""

    def __init__(
        self, store: Store, hub: Hub, wait: DatabaseWait, clock: Clock, on_gone: Callable[[list[str]], None]
    ) -> None:
        """Make it; `on_gone` is told of runs that somebody here follows and nobody works on: they may have ended."""
        self.kept = SupervisedLoop("stream readers", clock, RESTART)
        self._store = store
        self._on_gone = on_gone
        self._durably = wait.durably
        self._hub = hub
        self._read: dict[str, _Reading] = {}
        self._queued: set[str] = set()
        """Runs that were accepted here, and that another gateway may begin."""
        self._called = asyncio.Event()
        self._is_to_look = False
        hub.listen(self.on_own, RunChanged)

    def look_soon(self) -> None:
        """Look for runs that somebody has just begun to read."""
        self._is_to_look = True
        self._called.set()

    def on_own(self, event: Event) -> None:
        """Take note of a run that was accepted here and waits, and of one that this gateway works on; a listener."""
        if isinstance(event, RunChanged):
            is_awaited = event.run.state is RunState.QUEUED and self._hub.is_wanted(event.run)
            (self._queued.add if is_awaited else self._queued.discard)(event.run.id)

    def on_run(self, fact: RunChanged) -> None:
        """Take note of a run that another gateway has begun, gone on with, or ended."""
        if fact.run.state is not RunState.QUEUED:
            self._queued.discard(fact.run.id)
        self._note(fact.run, is_midway=fact.run.step > 0)

    def _note(self, run: Run, *, is_midway: bool) -> None:
        known = self._read.get(run.id)
        if run.state is not RunState.RUNNING or run.fence == self._store.number:
            self._read.pop(run.id, None)
        elif known is not None:
            known.run = run
        elif self._hub.is_wanted(run):
            self._read[run.id] = _Reading(run, is_midway=is_midway)
            self._called.set()

    def on_written(self, fact: GrowthWritten) -> None:
        """Tell what is new of a run that somebody here reads."""
        reading = self._read.get(fact.run_id)
        if reading is None:
            return
        reading.run = msgspec.structs.replace(reading.run, step=fact.step)
        before, reading.growth = reading.growth, _STORED.read(fact.body)
        for event in news(reading.run, before, reading.growth):
            self._hub.publish_elsewhere(event)

    async def look(self) -> None:
        """Look for runs of which no word came, and for what was written and not heard of."""
        self._is_to_look = False
        known = list(self._read)  # one that begins while we look may be missing in the answer
        running = await self._store.running_elsewhere(_MOST_READ)
        for run in running:
            self._note(run, is_midway=True)
        at_work = {run.id for run in running}
        gone = [id for id in known if id in self._read and id not in at_work] if len(running) < _MOST_READ else []
        for id in gone:
            del self._read[id]
        if over := [*gone, *(self._queued - at_work)][:_MOST_READ]:
            self._on_gone(over)
        if asked := [id for id, reading in self._read.items() if reading.asked_at is not None]:
            for fact in await self._store.echoes([("grew", id) for id in asked[:_MOST_READ]]):
                if isinstance(fact, GrowthWritten):
                    self.on_written(fact)

    async def ask(self) -> None:
        """Ask for what is read here, again and again, for as long as this process lives."""
        while True:
            self._called.clear()
            await self._durably(self._look_and_ask)
            self.kept.recovered()
            await asyncio.sleep(ASKED_AFTER_S)
            if not self._read:
                await self._called.wait()

    async def _look_and_ask(self) -> None:
        if self._is_to_look:
            await self.look()
        now = monotonic()
        self._read = {id: each for id, each in self._read.items() if self._hub.is_wanted(each.run)}
        asked = [each for each in self._read.values() if each.is_to_be_asked(now)][:_MOST_READ]
        if asked:
            for each in asked:
                each.asked_at = now
            wanted_ms = round(_WANTED_S * 1000)
            for fact in await self._store.want_growing([each.run.id for each in asked], wanted_ms):
                self.on_written(fact)
