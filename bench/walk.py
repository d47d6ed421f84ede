"""One flow, followed through the package: how many functions it calls, and the page that tells a run's life.

`python -m bench.walk` serves a gateway in this process, has one run to warm it up, and then counts the calls of an
`agent` and an `agent.wait` over a real socket. `--flow` follows a send, a spawn or a message over Telegram instead.
Fewer files are fewer to read for whoever follows a run.

`python -m bench.walk --page` prints `docs/internals/life-of-a-message.md`, made of the same walk. `STAGES` says which
calls are worth telling. A step that the walk does not pass, or passes in another order, is an error: so the page cannot
go stale.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import textwrap
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import OperatorToken
from backchannel.gateway.server import ListeningServer, serve
from bench.client import connected
from bench.flows import FLOWS, CountedModel, Doors, Flow, enter_telegram, settings_for

ROUNDS = 5
QUIET_S = 0.2
PATIENCE_S = 60.0
_CLOCK = "/runtime/watchdog.py"
"""Looks at the loop many times a second, whatever goes on."""
_AT_START = 0
"""The argument of `RESUME`, at which a call is reported: after a `yield` or an `await` it is another."""

_INTRO = """# The life of a message

Made by `make reference`. `bench.walk` serves a gateway, sends one `agent` request over a WebSocket, waits for its end
with `agent.wait`, and records every call. Each step below is one of them, in the order of that recording. A step that
is no longer called is an error. Paths are below `src/backchannel/`.

"""


@dataclass(frozen=True, slots=True)
class LifeStep:
    """One call of the walk that is worth telling: `where` is `file:function`."""

    where: str
    says: str
    is_beside: bool = False
    """It goes on at the same time as the steps around it, so its place in the recording is not checked."""


@dataclass(frozen=True, slots=True)
class LifeStage:
    """Steps that belong together on the page."""

    title: str
    steps: tuple[LifeStep, ...]


STAGES: tuple[LifeStage, ...] = (
    LifeStage(
        "The door: a frame becomes a request",
        (
            LifeStep(
                "gateway/ws/transport.py:WebSocketProtocol.data_received",
                "The transport takes bytes from the socket, within limits of size and time.",
            ),
            LifeStep(
                "gateway/ws/websocket.py:WebSocketConnection._take",
                "The connection reads one frame and starts a task for its request.",
            ),
            LifeStep(
                "gateway/calls.py:check_allowed",
                "The scope of the token must include the scope of the method.",
            ),
            LifeStep(
                "gateway/calls.py:Method.read_params",
                "The parameters become a struct; a wrong one is an error that names it.",
            ),
            LifeStep("gateway/methods/runs.py:agent", "The handler of the method makes a `RunRequest`."),
            LifeStep(
                "gateway/addressing.py:address_for_message",
                "The session is found by its key, and its agent must exist. From here on the key is a `SessionKey`.",
            ),
        ),
    ),
    LifeStage(
        "The first commit: the run is accepted and started",
        (
            LifeStep("runtime/runtime.py:Runtime.submit", "The runtime takes requests of every door."),
            LifeStep(
                "runtime/lanes.py:Lanes.submit",
                "The lane takes a slot if one is free, and hands the request to the store.",
            ),
            LifeStep(
                "storage/sqlite/driver.py:SqliteDriver._run_unit",
                "The driver runs the unit in the transaction that all waiting units share.",
            ),
            LifeStep(
                "storage/units/runs.py:accept",
                "The unit looks for an earlier request with the same key, then finds or makes the session.",
            ),
            LifeStep(
                "runtime/guard.py:SendGuard.check", "The send policy decides, inside the unit that writes the outcome."
            ),
            LifeStep(
                "storage/units/runs.py:_enter",
                "The lane is free, so the run starts at once: its message enters the transcript in this commit.",
            ),
            LifeStep(
                "storage/sqlite/driver.py:SqliteDriver._committed",
                "COMMIT has returned. Only now anybody is told.",
            ),
            LifeStep("runtime/runtime.py:Runtime._on_facts", "The facts of the commit go to those who act on them."),
            LifeStep(
                "gateway/events/subscriptions.py:Subscriptions.publish", "Clients that subscribed get their events."
            ),
            LifeStep("runtime/lanes.py:Lanes._begin", "The lane starts a task for the run."),
            LifeStep(
                "wire/frames.py:show_answer",
                "The request is answered: the run is accepted, and this is its id.",
                is_beside=True,
            ),
        ),
    ),
    LifeStage(
        "The work: a model is asked",
        (
            LifeStep("runtime/runner.py:Runner.work", "The runner carries out one run, from its row to its end."),
            LifeStep("runtime/runner.py:Runner._setups", "The runner finds the agent's model and tools."),
            LifeStep(
                "runtime/conversations.py:Conversations.request",
                "The request extends the last one of the session, which is kept. Nothing is read from the database.",
            ),
            LifeStep(
                "core/requests.py:Conversation.add",
                "The new message is added to the conversation, in an order that providers take.",
            ),
            LifeStep("runtime/asking.py:Asking._stream", "The model is asked, and its reply is read as it comes."),
            LifeStep(
                "runtime/asking.py:_ShownReply.show", "Each piece is shown to whoever listens. Nothing is stored yet."
            ),
        ),
    ),
    LifeStage(
        "The second commit: the reply is stored and the run ends",
        (
            LifeStep(
                "storage/units/steps.py:commit_reply",
                "The unit writes the reply. Without tool calls it ends the run.",
            ),
            LifeStep(
                "storage/units/steps.py:_take_step",
                "The step is counted, if the fence and the run allow it. The last one ends the run.",
            ),
            LifeStep("storage/units/runs.py:closed", "The lane of the ended run is free."),
            LifeStep(
                "storage/groups.py:UnitTx.happened",
                "The end of the run is told to `storage/reactions.py`, in the same commit.",
            ),
            LifeStep(
                "storage/units/deliveries.py:post_reply",
                "A reply that goes to a chat gets its receipt here. This one does not.",
            ),
            LifeStep(
                "runtime/lanes.py:Lanes._release", "After the commit, the lane takes its next run, if there is one."
            ),
            LifeStep(
                "gateway/events/subscriptions.py:Subscriptions._chat_end",
                "Clients get the `chat` event with the reply.",
            ),
        ),
    ),
)


class CallCounter:
    """Lists the calls of functions of the package, in all threads.

    A coroutine or generator that goes on is no call: how often it pauses depends on the speed of the machine.
    """

    def __init__(self) -> None:
        self._calls: list[CodeType] = []

    def __enter__(self) -> Self:
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _count(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or "/src/backchannel/" not in code.co_filename:
            return
        is_of_clock = _CLOCK in code.co_filename or (frame.f_back and _CLOCK in frame.f_back.f_code.co_filename)
        if code.co_code[frame.f_lasti + 1] == _AT_START and not is_of_clock:
            self._calls.append(code)

    async def quiet(self) -> None:
        """Wait until nothing is called for a moment."""
        seen = -1
        while seen != len(self._calls):
            seen = len(self._calls)
            await asyncio.sleep(QUIET_S)

    def take(self) -> Counter[CodeType]:
        """Give the calls since the last time, in the order of their first call."""
        calls, self._calls = self._calls, []
        return Counter(calls)


async def walk(state: Path, flow: Flow) -> Counter[CodeType]:
    """Serve a gateway, and count the calls of one flow by function, in the order of their first call.

    The flow is followed several times. Of each function the fewest calls count: a timer does not fire each time.
    """
    model = CountedModel()
    async with AsyncExitStack() as exits:
        telegram = await enter_telegram(flow, exits)
        counter = exits.enter_context(CallCounter())
        gateway = Gateway.open(settings_for(telegram), state=state)
        gateway.add_model(model)
        place, token = await exits.enter_async_context(_served(gateway))
        doors = Doors(await exits.enter_async_context(connected(place.websocket_url, token.token)), telegram)
        rounds = [await _follow(flow, doors, f"walk-{number}", model, counter) for number in range(ROUNDS + 1)]
    _, fewest, *others = rounds  # the first one warms up
    for other in others:
        fewest &= other
    return fewest


async def _follow(flow: Flow, doors: Doors, name: str, model: CountedModel, counter: CallCounter) -> Counter[CodeType]:
    await flow.prepare(doors, name)
    await counter.quiet()
    counter.take()
    model.asked = 0
    await flow.begin(doors, name)
    async with asyncio.timeout(PATIENCE_S):
        await model.was_asked(flow.model_calls)
        await counter.quiet()
    if model.asked != flow.model_calls:
        raise ValueError(f"the flow asked its model {model.asked} times, not {flow.model_calls}: mend bench/flows.py")
    return counter.take()


@asynccontextmanager
async def _served(gateway: Gateway) -> AsyncIterator[tuple[ListeningServer, OperatorToken]]:
    ready: asyncio.Future[tuple[ListeningServer, OperatorToken]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(gateway, lambda place, token: ready.set_result((place, token))))
    try:
        yield await ready
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def count_calls(flow: Flow) -> Counter[CodeType]:
    """Walk through a gateway in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(walk(Path(folder), flow))


def render_life() -> str:
    """Render the page that tells the life of a message.

    Raises:
        ValueError: the walk does not pass a step, or not in this order.
    """
    passed = [f"{_file_of(code)}:{code.co_qualname}" for code in count_calls(FLOWS["run"])]
    _check_order(passed)
    numbers = iter(range(1, len(passed)))
    return _INTRO + "\n".join(line for stage in STAGES for line in _stage_lines(stage, numbers))


def _check_order(passed: list[str]) -> None:
    steps = [step for stage in STAGES for step in stage.steps]
    if missing := [step.where for step in steps if step.where not in passed]:
        raise ValueError(f"one run does not pass {', '.join(missing)}: mend STAGES in bench/walk.py")
    told = [step.where for step in steps if not step.is_beside]
    if told != (right := sorted(told, key=passed.index)):
        raise ValueError(f"one run passes the steps in another order, {', '.join(right)}: mend STAGES in bench/walk.py")


def _stage_lines(stage: LifeStage, numbers: Iterator[int]) -> Iterator[str]:
    yield f"## {stage.title}"
    yield ""
    for step in stage.steps:
        number = next(numbers)
        line = f"{number}. `{step.where}`{' (meanwhile)' if step.is_beside else ''}: {step.says}"
        yield textwrap.fill(line, 120, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)
    yield ""


def _file_of(code: CodeType) -> str:
    return code.co_filename.partition("/src/backchannel/")[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description="Count the calls of one flow.")
    parser.add_argument("--flow", choices=sorted(FLOWS), default="run")
    parser.add_argument("--by", choices=("file", "function"), default="file", help="count by file or by function")
    parser.add_argument("--page", action="store_true", help="print the page that tells the life of a message")
    options = parser.parse_args()
    if options.page:
        print(render_life(), end="")
        return
    calls = count_calls(FLOWS[options.flow])
    functions, files = Counter[str](), Counter[str]()
    for code, count in calls.items():
        files[_file_of(code)] += count
        functions[f"{_file_of(code)}:{code.co_qualname}"] += count
    for name, count in (files if options.by == "file" else functions).most_common():
        print(f"{count:5} {name}")
    print(f"{len(calls)} functions in {len(files)} files, {calls.total()} calls")


if __name__ == "__main__":
    main()
