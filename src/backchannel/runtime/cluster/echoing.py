"""Echoing: each gateway tells the others of commits that somebody there waits for.

Each gateway tells the others which topics somebody waits for there (`core/cluster/interests.py`). It does so soon after
a wait or a subscription begins, and again while it lasts. After a commit, echoes go to those gateways, and to gateways
that have something to do about it. A gateway that gets an echo reads its row, and treats it like a fact of its own. So
a commit that concerns one gateway costs the others nothing.

Echoes make things happen sooner. A look once a second finds what a lost echo was about: work that nobody does, what is
waited for, and the ends of runs that somebody here follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from time import monotonic
from typing import Protocol

import msgspec

from backchannel.core.cluster.echoes import EVERYTHING, EchoId, Topic, echoes_of, read_echo, write_echo
from backchannel.core.cluster.interests import Interests, is_want, read_wants, write_wants
from backchannel.core.cluster.members import GatewaySeen
from backchannel.core.contracts import Clock
from backchannel.core.facts import ApprovalChanged, DeliveryChanged, Fact, MessageAppended, RunChanged
from backchannel.core.runs import RunState
from backchannel.runtime.supervisor import RESTART, DatabaseWait
from backchannel.service import SupervisedLoop
from backchannel.storage.store import Store

COLLECTED_S = 0.003
"""How long words are collected before they are sent."""
WANTED_AFTER_S = 0.01
"""How long after a wait has begun the others are told of it: most begin just before their run starts here."""
EXPECTED_S = 0.1
"""How long after that it is looked at again whether a queued run has started here, as most do."""
WANTED_AGAIN_S = 5.0
MISSED_MS = 15_000
"""How far back a gateway asks for what it may have missed while it could not hear."""
MOST_WANTED = 500
"""How many topics the others are told of; who wants more is told of everything."""
HEARD_EVERY_S = 0.01
"""How long words are collected, after some were read, before more are."""
LONGEST_TEXT = 7_500
"""The server takes texts of 8,000 bytes."""
_POLL_S = 1.0
MOST_WORDS = 500
"""How many rows are read at once."""
_REMEMBERED = 4096
"""How many of the last facts of others are known, so that each is told once."""
EVERYBODY: frozenset[int] = frozenset()
"""In place of the numbers of gateways."""

_JOINED: EchoId = ("gateway", "")
"""A gateway has come: the others ask who there is."""
_ASKED: EchoId = ("who-wants", "")
"""A gateway wants to know what the others wait for."""


class EchoHearing(Protocol):
    """What a gateway does about what others did, and what it waits for."""

    async def look_again(self) -> None:
        """Look for what others have left to do, and for what was waited for."""
        ...

    def happened_elsewhere(self, facts: Sequence[Fact]) -> None: ...

    def who_acts(self, fact: Fact) -> Set[int] | None:
        """Name the gateways that have to do something about a fact, or `EVERYBODY`; None if it is nobody."""
        ...

    def wanted_topics(self) -> Set[Topic]:
        """Name what somebody here waits for that other gateways may commit."""
        ...

    def is_expecting(self) -> bool:
        """Whether more may be wanted soon: a run that is waited for is queued here, and may start elsewhere."""
        ...


class EchoService:
    """Tells the other gateways of commits, and hears of theirs."""

    def __init__(
        self,
        store: Store,
        hearing: EchoHearing,
        on_joined: Callable[[], None],
        clock: Clock,
        wait: DatabaseWait,
        *,
        polls: bool,
    ) -> None:
        """Make it; `on_joined` is called when another gateway has come, `polls` says that there is no NOTIFY."""
        self._on_joined = on_joined
        self._clock = clock
        self._store = store
        self._wait = wait
        self._kept = SupervisedLoop("echoes", clock, RESTART)
        self._looking = SupervisedLoop("leftovers", clock, RESTART)
        self._wanting = SupervisedLoop("interests", clock, RESTART)
        self.kept = (self._kept, self._looking, self._wanting)
        self._hearing = hearing
        self._polls = polls
        self._others: frozenset[int] = frozenset()
        self._interests = Interests()
        self._words: dict[Set[int], dict[EchoId, None]] = {}
        """What is to be sent, and to whom."""
        self._wanted: dict[Topic, int] = {}
        """What the others were told is wanted here, and since when, by the database's clock."""
        self._wants_since: int | None = None
        """When the first wait began that the others are still to be told of."""
        self._is_expecting = False
        self._told: dict[tuple[object, ...], None] = {}
        self._heard: asyncio.Queue[list[EchoId]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def listen(self) -> None:
        """Begin to hear the others; what they tell is done from `start` on."""
        self._store.listen(self._on_text, polls=self._polls)

    def start(self) -> None:
        self._join()
        loops = {self._kept: self._hear, self._looking: self._poll, self._wanting: self._want_again}
        self._tasks = [asyncio.create_task(kept.keep(loop), name=kept.name) for kept, loop in loops.items()]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._send_words()

    def _join(self) -> None:
        self.send(EVERYBODY, [_JOINED, *self._all_wants()])

    def set_peers(self, peers: Sequence[GatewaySeen]) -> None:
        """Record which gateways there are. If one has not said what it wants, it is asked."""
        self._others = frozenset(peer.number for peer in peers) - {self._store.number}
        self._interests.expire(self._others, monotonic())
        if not self.is_directed:
            self.send(EVERYBODY, [_ASKED])

    def look_soon(self) -> None:
        """Look at what others have left to do, and at what was waited for."""
        self._heard.put_nowait([])

    def hear(self, words: list[EchoId]) -> None:
        """Handle echoes as if another gateway had sent them. Facts that were told already are not told again."""
        self._heard.put_nowait(words)

    def entered_again(self) -> None:
        """Say once more what is wanted here: this gateway has another number."""
        self._join()

    @property
    def is_directed(self) -> bool:
        """Whether every other gateway has said what it wants. Each is then told only of that."""
        return not self._interests.are_unknown(self._others)

    # Telling

    def tell(self, facts: Sequence[Fact]) -> None:
        """Tell the others of a commit, soon. A gateway that has not said what it wants is told of everything."""
        now, tells_all = monotonic(), not self.is_directed
        for fact, echo in echoes_of(facts):
            asking = self._interests.audience(echo, now)
            if not self._others:
                continue  # one that was taken for dead may come back, and asks for what it missed
            acting = EVERYBODY if tells_all else self._hearing.who_acts(fact)
            if acting is not None:
                self.send(acting | asking if acting else EVERYBODY, [echo.word])
            elif asking:
                self.send(asking, [echo.word])

    def send(self, to: Set[int], words: Sequence[EchoId]) -> None:
        """Send words to some gateways, soon, or to `EVERYBODY`."""
        if not self._words:
            asyncio.get_running_loop().call_later(COLLECTED_S, self._send_words)
        self._words.setdefault(to, {}).update(dict.fromkeys(words))

    def _send_words(self) -> None:
        collected, self._words = self._words, {}
        number = self._store.number
        texts = [text for to, words in collected.items() for text in _texts(number, list(words), sorted(to))]
        if texts:
            self._store.wake_others(texts)

    # Wanting

    def want(self) -> None:
        """Tell the others, soon, that more may be waited for here."""
        if self._others and self._wants_since is None:
            self._wants_since = self._clock.now_ms()
            asyncio.get_running_loop().call_later(WANTED_AFTER_S, self._want_more)

    def _want_more(self) -> None:
        since_ms, self._wants_since = self._wants_since, None
        self._want_since(since_ms or self._clock.now_ms())

    def _look_at_expected(self, since_ms: int) -> None:
        self._is_expecting = False
        self._want_since(since_ms)

    def _want_since(self, since_ms: int) -> None:
        if new := self._topics() - self._wanted.keys():
            self._wanted |= dict.fromkeys(new, since_ms)
            self.send(EVERYBODY, write_wants(new, max(since_ms, self._clock.now_ms() - MISSED_MS)))
        if not self._is_expecting and self._hearing.is_expecting():
            self._is_expecting = True
            asyncio.get_running_loop().call_later(EXPECTED_S, self._look_at_expected, since_ms)

    async def _want_again(self) -> None:
        while True:
            await asyncio.sleep(WANTED_AGAIN_S)
            self._look_at_wanted()
            if self._others and self._wanted:
                self.send(EVERYBODY, write_wants(self._wanted))
            self._wanting.recovered()

    def _look_at_wanted(self) -> None:
        now = self._clock.now_ms()
        self._wanted = {topic: self._wanted.get(topic, self._wants_since or now) for topic in self._topics()}

    def _all_wants(self) -> list[EchoId]:
        """Write down all that is wanted here, for gateways that may not know it, or had to tell it in vain."""
        self._look_at_wanted()
        began = min(self._wanted.values(), default=0)
        return write_wants(self._wanted, max(began, self._clock.now_ms() - MISSED_MS))

    def _topics(self) -> Set[Topic]:
        topics = self._hearing.wanted_topics()
        return topics if len(topics) <= MOST_WANTED else {EVERYTHING}

    # Hearing

    def _on_text(self, text: str) -> None:
        """Take what another gateway has sent; what cannot be read is a reason to look at everything."""
        try:
            said = read_echo(text)
        except msgspec.DecodeError:
            self.look_soon()
            if self._others:
                self.send(EVERYBODY, [_ASKED, *self._all_wants()])  # what they said meanwhile was not heard
            return
        if said.sender != self._store.number and (not said.to or self._store.number in said.to):
            self._take(said.sender, said.words)

    def _take(self, sender: int, words: list[EchoId]) -> None:
        if _JOINED in words:
            self._on_joined()
        if _JOINED in words or _ASKED in words:
            self.send(frozenset((sender,)), self._all_wants())
        if wants := [word for word in words if is_want(word)]:
            self._take_wants(sender, wants)
        if rows := [word for word in words if not is_want(word) and word not in (_JOINED, _ASKED)]:
            self._heard.put_nowait(rows)

    def _take_wants(self, sender: int, words: list[EchoId]) -> None:
        now, (topics, since_ms) = monotonic(), read_wants(words)
        since = None if since_ms is None else now - max(self._clock.now_ms() - since_ms, 0) / 1000
        if again := self._interests.take(sender, topics, now, since=since):
            self.send(frozenset((sender,)), again)

    async def _hear(self) -> None:
        self._kept.recovered()  # it listens again; a look finds the words that a fault has lost
        while True:
            words = dict.fromkeys(await self._heard.get())
            while words and not self._heard.empty() and len(words) < MOST_WORDS:
                words.update(dict.fromkeys(self._heard.get_nowait()))
            await self._wait.durably(partial(self._echo, list(words)) if words else self._hearing.look_again)
            await asyncio.sleep(HEARD_EVERY_S)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            if self._others:
                await self._wait.durably(self._hearing.look_again)
            self._looking.recovered()

    async def _echo(self, words: Sequence[EchoId]) -> None:
        for start in range(0, len(words), MOST_WORDS):
            facts = await self._store.echoes(words[start : start + MOST_WORDS])
            self._hearing.happened_elsewhere([fact for fact in facts if self._is_new(fact)])

    def _is_new(self, fact: Fact) -> bool:
        """Whether this was not told already: words about a row may come once more than it has changed."""
        mark = _mark(fact)
        if mark is None:
            return True
        if mark in self._told:
            return False
        self._told[mark] = None
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        return True


def _mark(fact: Fact) -> tuple[object, ...] | None:
    match fact:
        case RunChanged(run) if run.state is not RunState.QUEUED:
            return "run", run.id, run.state, run.step, run.abort_requested, run.started_at, run.ended_at
        case DeliveryChanged(delivery):
            return "delivery", delivery.id, delivery.state, delivery.attempts, delivery.due_at
        case ApprovalChanged(approval):
            return "approval", approval.id, approval.state
        case MessageAppended():
            return "message", fact.message.id
        case _:
            return None


def _texts(number: int, words: Sequence[EchoId], to: list[int]) -> Iterator[str]:
    """Write words into as few texts as the server takes."""
    part: list[EchoId] = []
    size = 0
    for word in words:
        length = len(msgspec.json.encode(word)) + 1
        if part and size + length > LONGEST_TEXT:
            yield write_echo(number, part, to)
            part, size = [], 0
        if length <= LONGEST_TEXT:
            part.append(word)
            size += length
    yield write_echo(number, part, to)
