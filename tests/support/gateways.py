"""A gateway of one scripted agent on a real database, and what the tests of the runtime do to it.

async with running(tmp_path, model) as gateway: …      # a life that ends cleanly
async with dying(tmp_path, model) as gateway: …        # a life that ends as by a power cut
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel
from backchannel.config.load import config_from
from backchannel.core.contracts import Clock, Model, ModelRequest
from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.facts import DeliveryChanged, RunChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Provenance, ProvenanceKind, text_content
from backchannel.core.runs import Run, RunRequest, RunState
from backchannel.core.sessions import WEBCHAT, Session
from backchannel.gateway.app import Gateway
from backchannel.runtime.events import Event
from backchannel.storage.driver import Faults, ProcessKilled

E = TypeVar("E")
Equip = Callable[[Gateway], object]

MAIN = "agent:main:main"
CONFIG: dict[str, Any] = {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}}


def with_defaults(**defaults: Any) -> dict[str, Any]:
    """Make the configuration of these tests with other `agents.defaults`."""
    return {"agents": {**CONFIG["agents"], "defaults": defaults}}


class Power:
    """The power that a process runs on; once it is cut, the next commit is not made and nothing after it."""

    def __init__(self) -> None:
        self.is_cut = False

    def before_commit(self, number: int) -> None:
        if self.is_cut:
            raise ProcessKilled

    def after_commit(self, number: int) -> None: ...


@asynccontextmanager
async def running(
    state: Path,
    *models: Model,
    config: dict[str, Any] | None = None,
    equip: Equip = lambda gateway: None,
    clock: Clock | None = None,
    faults: Faults | None = None,
) -> AsyncIterator[Gateway]:
    """Open a gateway, and end it cleanly."""
    gateway = Gateway(config_from(config or CONFIG, {}, state=state), clock=clock, faults=faults)
    for model in models:
        gateway.add_model(model)
    equip(gateway)
    async with gateway:
        yield gateway


@asynccontextmanager
async def dying(
    state: Path,
    *models: Model,
    config: dict[str, Any] | None = None,
    equip: Equip = lambda gateway: None,
    clock: Clock | None = None,
    power: Power | None = None,
) -> AsyncIterator[Gateway]:
    """Open a gateway, and end it as by a power cut: what is not committed by then never will be."""
    power = power or Power()
    async with running(state, *models, config=config, equip=equip, clock=clock, faults=power) as gateway:
        yield gateway
        power.is_cut = True
        with suppress(asyncio.CancelledError):  # a dead process answers nobody
            await gateway.store.sign_of_life()
        assert gateway.failed is not None
        await gateway.failed


async def die_in(
    state: Path, run_id: str, *, times: int, equip: Equip = lambda gateway: None, clock: Clock | None = None
) -> None:
    """Let the process die so often while this run, of the main session, waits for its model."""
    for _ in range(times):
        begun = asyncio.Event()
        model = ScriptedModel(replies=[held(reached=begun)])
        async with dying(state, model, equip=equip, clock=clock) as gateway:
            if await gateway.store.run(run_id) is None:
                await gateway.submit("main", "go", run_id=run_id)
            await begun.wait()


async def die_with_function(
    state: Path, equip: Callable[[Gateway, asyncio.Event], None], *, times: int, clock: Clock | None = None
) -> None:
    """Let the process die so often while run `r` of a function agent is at work, which sets the event when it is."""
    for _ in range(times):
        begun = asyncio.Event()
        async with dying(state, equip=partial(_swapped, equip, begun), clock=clock) as gateway:
            await gateway.submit("main", "go", run_id="r")
            await begun.wait()


def _swapped(equip: Callable[[Gateway, asyncio.Event], None], begun: asyncio.Event, gateway: Gateway) -> None:
    equip(gateway, begun)


async def ended(gateway: Gateway, run_id: str, timeout_s: float = 20) -> Run:
    """Wait for a run that must end."""
    run = await gateway.runtime.wait(run_id, timeout_s)
    assert run.is_finished, f"{run_id} is still {run.state}"
    return run


def waiters(gateway: Gateway) -> int:
    """Count those who wait for a run."""
    waiting = gateway.runtime._waits._waiting
    return sum(map(len, waiting.values())) or len(waiting)


async def stored(gateway: Gateway, run_id: str) -> Run:
    run = await gateway.store.run(run_id)
    assert run is not None, f"there is no run {run_id}"
    return run


async def session_of(gateway: Gateway, key: str = MAIN) -> Session:
    session = await gateway.store.session(key)
    assert session is not None, f"there is no session {key}"
    return session


async def transcript_of(gateway: Gateway, key: str = MAIN) -> list[Message]:
    session = await session_of(gateway, key)
    return (await gateway.store.history(session.session_id, limit=10_000)).messages


async def texts_of(gateway: Gateway, key: str = MAIN) -> list[str]:
    """Read the texts of a transcript, tool results included."""
    return [message.text for message in await transcript_of(gateway, key)]


async def live_runs(gateway: Gateway) -> list[Run]:
    return await gateway.store.runs(states=(RunState.QUEUED, RunState.RUNNING), limit=10_000)


async def settled(gateway: Gateway) -> None:
    """Wait until no run is left to do, and nothing to show on webchat."""
    heard = Heard(gateway)
    while live := await live_runs(gateway):
        for run in live:
            await ended(gateway, run.id, 20)
    for receipt in await gateway.store.receipts(state=DeliveryState.PENDING, limit=10_000):
        if receipt.delivery.channel == WEBCHAT.channel:
            await heard.until(partial(heard.is_settled, receipt.delivery.id))


def held(*texts: str, reached: asyncio.Event | None = None) -> Reply:
    """Make a reply that says these and then never ends."""
    return Reply(text=texts, gate=asyncio.Event(), held_at=len(texts), reached=reached)


def echo(request: ModelRequest) -> Scripted:
    return f"re: {request.messages[-1].text}"


def request(key: str, text: str, **more: Any) -> RunRequest:
    """Make what a door asks the runtime to accept."""
    return RunRequest(
        key=SessionKey.parse(key),
        content=text_content(text),
        provenance=Provenance(kind=ProvenanceKind.EXTERNAL_USER),
        **more,
    )


class Heard:
    """Writes down what a gateway tells, and waits for it."""

    def __init__(self, gateway: Gateway) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()
        gateway.runtime.hub.listen(self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()
        self._more = asyncio.Event()

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def states(self, run_id: str) -> list[RunState]:
        """List the states that a run was told to be in, each once."""
        told = [event.run.state for event in self.of(RunChanged) if event.run.id == run_id]
        return list(dict.fromkeys(told))

    def is_settled(self, delivery_id: str) -> bool:
        """Whether a receipt was told to be settled."""
        told = [fact.delivery for fact in self.of(DeliveryChanged)]
        return any(delivery.id == delivery_id and delivery.state.is_settled for delivery in told)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await self._more.wait()
