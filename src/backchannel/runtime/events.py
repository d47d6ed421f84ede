"""Events: committed facts and live progress for listeners, and the log of failures.

Facts come from the store after their commit. Progress, which no row holds, comes from the runner: text as it is
streamed, tools as they start and end. A listener is a plain function called on the event loop; it must not block and
must not raise. The log of failures is one of them: it logs committed ones only, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple

import msgspec
import structlog

from backchannel.core.cluster.echoes import EVERYTHING, Topic, run_topic, session_topic
from backchannel.core.delivery.delivery import Delivery
from backchannel.core.facts import DeliveryChanged, Fact, PairingChanged, QueueFilled, RunChanged, SessionBegunAnew
from backchannel.core.messages import Block
from backchannel.core.policy.pairing import PairingState
from backchannel.core.runs import Run, RunState
from backchannel.core.text import made_visible

log = structlog.get_logger(__name__)

_LONGEST_ERROR = 300


class ReplyGrew(msgspec.Struct, frozen=True):
    """A model streams; `text` is the whole reply so far, `delta` what is new."""

    run: Run
    text: str
    delta: str


class ThinkingGrew(msgspec.Struct, frozen=True):
    """A model thinks aloud; `delta` is what is new."""

    run: Run
    delta: str


class ModelRetried(msgspec.Struct, frozen=True):
    """A model failed in a way that may pass, and is asked again at `retry_at`; what it had streamed does not count."""

    run: Run
    error: str
    attempt: int
    """The attempt that failed."""
    retry_at: int
    attempts: int
    """How many there are at most."""


class ToolStarted(msgspec.Struct, frozen=True):
    run: Run
    call_id: str
    name: str
    arguments: object


class ToolEnded(msgspec.Struct, frozen=True):
    run: Run
    call_id: str
    name: str
    is_error: bool
    content: tuple[Block, ...] | None = None
    """What it returned; None where another gateway works on the run."""


class CompactionMoved(msgspec.Struct, frozen=True):
    """A run begins to wait for a summary of its conversation, or goes on."""

    run: Run
    is_end: bool
    is_done: bool = False
    """At the end: whether there is a summary."""


class WaitStarted(msgspec.Struct, frozen=True):
    """A run begins to wait for another session; it does nothing itself until that has answered."""

    run_id: str


Progress = ReplyGrew | ThinkingGrew | ModelRetried | ToolStarted | ToolEnded | CompactionMoved | WaitStarted
Event = Fact | Progress
Listener = Callable[[Event], None]


class ListenerWants(NamedTuple):
    """What a listener wants to hear of other gateways: of all they do, of these sessions, and of these runs."""

    everything: bool = False
    sessions: Sequence[Set[str]] = ()
    """Keys, in as many sets as the listener keeps them in."""
    runs: Set[str] = frozenset()

    def has(self, run: Run) -> bool:
        """Whether a run is among it."""
        return self.everything or run.id in self.runs or any(run.session_key in keys for keys in self.sessions)

    def topics(self) -> Iterator[Topic]:
        """Name all of it."""
        if self.everything:
            yield EVERYTHING
        else:
            yield from (session_topic(key) for keys in self.sessions for key in keys)
            yield from map(run_topic, self.runs)


Wants = Callable[[], ListenerWants]
WantHeard = Callable[[str | None, bool], None]


class Hub:
    """Hands each event to those who listen for its kind, in order."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[Listener, tuple[type, ...]]] = {}
        self._far: set[int] = set()
        """Those who also hear what other gateways did."""
        self._wanting: dict[int, Wants] = {}
        self._wants_heard: list[WantHeard] = []
        self._next = 0
        self._by_kind: dict[type, list[Listener]] = {}
        """The listeners of each kind that came since the last change of listeners."""

    def listen(
        self, listener: Listener, *kinds: type, elsewhere: bool = False, wants: Wants | None = None
    ) -> Callable[[], None]:
        """Add a listener of these kinds of events, or of all; the function returned removes it again.

        With `elsewhere` it also hears what other gateways on the same database did, as far as any listener `wants` it;
        and of the runs there what they stream.
        """
        self._next += 1
        number = self._next
        self._listeners[number] = (listener, kinds)
        self._by_kind = {}
        if elsewhere:
            self._far.add(number)
        if wants is not None:
            self._wanting[number] = wants
            self.want(None)

        def remove() -> None:
            self._listeners.pop(number, None)
            self._far.discard(number)
            self._wanting.pop(number, None)
            self._by_kind = {}

        return remove

    def want(self, run_id: str | None, *, streams: bool = True) -> None:
        """Say that somebody begins to wait for a run, or for more than one; with `streams` for what it streams too."""
        for hear in self._wants_heard:
            hear(run_id, streams)

    def listen_for_wants(self, hear: WantHeard) -> None:
        """Have a function called whenever somebody begins to wait for a run."""
        self._wants_heard.append(hear)

    def is_wanted(self, run: Run) -> bool:
        """Whether somebody here wants to hear what a run streams that another gateway works on."""
        return any(wants().has(run) for wants in self._wanting.values())

    def wanted_topics(self) -> set[Topic]:
        """Name all that listeners want to hear of other gateways."""
        topics = {topic for wants in self._wanting.values() for topic in wants().topics()}
        return {EVERYTHING} if EVERYTHING in topics else topics

    def publish(self, event: Event) -> None:
        kind = type(event)
        listeners = self._by_kind.get(kind)
        if listeners is None:
            heard = self._listeners.values()
            listeners = self._by_kind[kind] = [each for each, kinds in heard if not kinds or kind in kinds]
        for listener in listeners:
            listener(event)

    def publish_elsewhere(self, event: Event) -> None:
        """Hand on what another gateway did."""
        for number in list(self._far):
            listener, kinds = self._listeners[number]
            if not kinds or type(event) in kinds:
                listener(event)


def log_failures(event: Event) -> None:
    """Write a run or a delivery that failed into the log; a listener."""
    if isinstance(event, RunChanged):
        if event.run.state in (RunState.ERROR, RunState.TIMEOUT):
            _log_run(event.run)
    elif isinstance(event, DeliveryChanged) and event.delivery.state.needs_person:
        _log_delivery(event.delivery)


def log_pairings(event: Event) -> None:
    """Write into the log who asks to be let in, and what an owner said; a listener. The code is not in it."""
    if isinstance(event, PairingChanged):
        pairing = event.pairing
        what = (
            "a stranger was sent a code" if pairing.state is PairingState.PENDING else f"a stranger was {pairing.state}"
        )
        log.info(what, channel=pairing.channel, sender=made_visible(pairing.sender_id), by=pairing.answered_by)


def log_sessions(event: Event) -> None:
    """Write into the log that a session began anew by itself, or takes no more messages; a listener."""
    if isinstance(event, QueueFilled):
        log.warning("a queue is full", session_key=event.key, waiting=event.waiting)
    if isinstance(event, SessionBegunAnew):
        log.info(
            "a session began anew",
            session_key=event.key,
            reason=event.reason,
            ended=event.ended_id,
            session_id=event.session_id,
        )


def _log_run(run: Run) -> None:
    log.warning(
        f"a run ended as {run.state}",
        run_id=run.id,
        session_key=run.session_key,
        kind=run.kind.value,
        code=run.error_code,
        error=(run.error or "")[:_LONGEST_ERROR],
    )


def _log_delivery(delivery: Delivery) -> None:
    log.warning(
        f"a delivery is {delivery.state}",
        delivery=delivery.id,
        run_id=delivery.run_id,
        session_key=delivery.session_key,
        channel=delivery.channel,
        attempts=delivery.attempts,
        error=(delivery.error or "")[:_LONGEST_ERROR],
    )


class Retries:
    """The last retry of each run whose model has said nothing since, for readers between two events.

    It is kept in memory. Of a run on another gateway only the events are known here.
    """

    def __init__(self, hub: Hub) -> None:
        self._by_run: dict[str, ModelRetried] = {}
        hub.listen(self._on_event, ModelRetried, ReplyGrew, ThinkingGrew, ToolStarted, RunChanged)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ModelRetried):
            self._by_run[event.run.id] = event
        elif self._by_run and isinstance(event, ReplyGrew | ThinkingGrew | ToolStarted | RunChanged):
            self._by_run.pop(event.run.id, None)

    def of(self, run_id: str) -> ModelRetried | None:
        """Tell why the model of a run is asked again; None if it is not."""
        return self._by_run.get(run_id)
