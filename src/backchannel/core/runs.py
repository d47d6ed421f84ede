"""Runs: one turn of work on a session, a message in and a reply out.

States and who moves them:

- `queued`: a door accepted the run. The message waits on the run's row.
- `running`: the lane started it. The same commit put the message into the transcript.
- `ok`, `error`, `timeout`, `aborted`: the runner ended it, or recovery did because it may not go on.

A run whose steps keep killing the process is *set aside*: `queued` once more, out of its lane, until `resume_at`. A run
that no model answers *waits*: `queued` too, until `resume_at`, at the head of its lane (`core/models/model_wait.py`).

A finished run never moves again. The one exception: a person may retry a failed run, which queues it once more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

import msgspec

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Block, Chat, Message, Provenance, Sender, ToolCallBlock, Usage
from backchannel.core.sessions import Address, NewSession, Session
from backchannel.core.stored import StoredForm

NOBODY = 0
"""The fence of a run that no process has taken up: none has this number."""
FUNCTION_STEP = -1
"""The step of a function agent's calls: its run has only the one in which it ends."""

MAX_RUN_S = 7 * 24 * 3600
"""The longest time that a run may be given."""
CRASHES_UNTIL_SUSPECT = 2
"""A run in one of whose steps the process died this often may be the reason: it goes on alone, after all others."""
CRASHES_UNTIL_SET_ASIDE = 3
SET_ASIDE_MINUTES = (1, 5, 15, 60)
"""How long it is set aside after that many crashes, and after each one more; the next one ends it."""
CRASHES_UNTIL_GIVEN_UP = CRASHES_UNTIL_SET_ASIDE + len(SET_ASIDE_MINUTES)


def set_aside_ms(crashes: int) -> int | None:
    """Tell how long a run is set aside in one of whose steps the process died so often; None is not at all."""
    place = crashes - CRASHES_UNTIL_SET_ASIDE
    return SET_ASIDE_MINUTES[place] * 60_000 if 0 <= place < len(SET_ASIDE_MINUTES) else None


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    ABORTED = "aborted"

    @property
    def is_finished(self) -> bool:
        return self not in _LIVE


_LIVE = (RunState.QUEUED, RunState.RUNNING)


class RunKind(StrEnum):
    """What a run is for; all but the first are internal to the gateway's own flows or triggers."""

    MESSAGE = "message"
    PRIMARY = "primary"
    TURN = "turn"
    ANNOUNCE = "announce"
    CHILD = "child"
    WAKE = "wake"
    CRON = "cron"
    HOOK = "hook"
    NODE = "node"

    @property
    def is_internal(self) -> bool:
        """Whether the run belongs to a flow of the gateway, and its text is in no `chat` events."""
        return self in _INTERNAL


_INTERNAL = frozenset({RunKind.PRIMARY, RunKind.TURN, RunKind.ANNOUNCE, RunKind.CHILD})


class Chain(msgspec.Struct, frozen=True):
    """The line of sends and spawns that a run stands in."""

    id: str
    hop: int = 0


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """What a request without an idempotency key is joined by: it is answered by the live run that asked the same."""

    digest: str
    ended_since: int | None = None
    """A request that says that it is a repetition also joins a run that has ended at this time or later."""


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a door asks the runtime to accept."""

    key: SessionKey
    content: tuple[Block, ...]
    provenance: Provenance
    label: str | None = None
    """The name of the sender, if it gives one; a hook's session is called so too."""
    sender: Sender | None = None
    """The person who wrote it on an outside channel, and where."""
    chat: Chat | None = None
    kind: RunKind = RunKind.MESSAGE
    id: str | None = None
    """The run's id when the caller chose one: its idempotency key."""
    digest: str | None = None
    """What the idempotency key stands for: token, method, session and message, hashed."""
    join: Join | None = None
    """How the same request is known again without an idempotency key."""
    instructions: str | None = None
    """Instructions for this run only, besides its agent's."""
    session_lives_ms: int | None = None
    """How long after its last use the session is archived, where it is made for this request."""
    deliver: bool = False
    reply_to: Address | None = None
    """Where the reply goes; absent means the session's return address at this moment."""
    quotes: str | None = None
    """The platform's id of the message that the reply quotes."""
    model: str | None = None
    fallbacks: tuple[str, ...] | None = None
    """The models that are asked when that one fails; absent means the agent's."""
    thinking: str | None = None
    timeout_s: float | None = None
    expected_session_id: str | None = None
    making: NewSession | None = None
    """What its session is made with, or changes, in the same commit."""
    chain: Chain | None = None
    exchange_id: str | None = None
    spawn_id: str | None = None


class FlowCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that starts an exchange or a spawn; the same call always has the same ids."""

    flow_id: str
    run_id: str
    """The first run of what it starts."""
    call_id: str | None = None
    """The tool call in a run of the requester."""
    calling_run: str | None = None
    digest: str | None = None
    """What the idempotency key of a call from outside stands for."""


class Run(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A run as its row says; the field names are the columns."""

    id: str
    session_key: str
    session_id: str | None
    """The transcript it writes, bound when it starts."""
    kind: RunKind
    state: RunState
    position: int
    """The order of acceptance, over all sessions."""
    accepted_at: int
    started_at: int | None
    ended_at: int | None
    message: str | None
    """The message while it waits; once the run has started it is in the transcript."""
    message_id: str
    deliver: bool
    reply_to: str | None
    model: str | None
    thinking: str | None
    timeout_s: float | None
    step: int
    """How many steps are committed."""
    ran_ms: int
    """How long it has run, in all its lives, as of its last commit; time in which no process held it does not count."""
    fence: int
    """The number of the process that holds it."""
    crashes: int
    abort_requested: bool
    error_code: str | None
    error: str | None
    reply: str | None
    answered_by: str | None
    """The model that really answered."""
    tokens_in: int
    tokens_out: int
    cost: float | None
    chain_id: str
    hop: int
    exchange_id: str | None
    spawn_id: str | None
    failure_told: bool = False
    """Whether the chat that was owed an answer has had the failure notice."""
    resume_at: int | None = None
    """Until when it is set aside."""
    excused_ms: int = 0
    """How much of `ran_ms` does not count for its limit: what crashes took away, and what was before a retry."""
    instructions: str | None = None
    """Instructions for this run only."""
    quotes: str | None = None
    """The platform's id of the message that its reply quotes."""
    ran_at: int | None = None
    """When `ran_ms` was true; `started_at` if it was not set since."""
    reserved: str | None = None
    """What its next call may cost at most, as stored (`core/money/amounts.py`)."""
    fallbacks: str | None = None
    """The models that are asked when its model fails, as JSON; None: those of its agent."""
    waits_for: str | None = None
    """The model that it waits for, or has waited for in this step (`core/models/model_wait.py`)."""
    waits_on: str | None = None
    """The provider of that model, while it waits."""
    wait_told: bool = False
    """Whether the chat that is owed an answer was told that it waits."""

    @property
    def at_work_since(self) -> int | None:
        """The start of a running run, moved by the time in which no process held it: what has passed since is work."""
        last = self.ran_at or self.started_at
        return None if last is None or self.state is not RunState.RUNNING else last - self.ran_ms

    @property
    def is_finished(self) -> bool:
        return self.state not in _LIVE

    @property
    def is_suspect(self) -> bool:
        """Whether going on with it may end the process once more."""
        return self.crashes >= CRASHES_UNTIL_SUSPECT

    @property
    def is_set_aside(self) -> bool:
        """Whether it is out of its lane after crashes."""
        return self.state is RunState.QUEUED and self.resume_at is not None and self.waits_on is None

    @property
    def waits_for_model(self) -> bool:
        """Whether it stands in its lane until a model may answer."""
        return self.state is RunState.QUEUED and self.waits_on is not None

    @property
    def tried_at(self) -> int | None:
        """When a run is tried again that is set aside, or waits for a model."""
        return self.resume_at if self.state is RunState.QUEUED else None

    def remaining_s(self, limit_s: float) -> float | None:
        """Tell how long it may still run; no limit is None."""
        return None if limit_s <= 0 else max(0.0, limit_s - (self.ran_ms - self.excused_ms) / 1000)

    @property
    def usage(self) -> Usage:
        return Usage(input=self.tokens_in, output=self.tokens_out, cost=self.cost)


_FALLBACKS: StoredForm[tuple[str, ...]] = StoredForm(tuple[str, ...])


def write_fallbacks(refs: tuple[str, ...] | None) -> str | None:
    return None if refs is None else _FALLBACKS.write(refs)


def read_fallbacks(run: Run) -> tuple[str, ...] | None:
    """Read the models that a run asks when its model fails; None if it has its agent's."""
    return None if run.fallbacks is None else _FALLBACKS.read(run.fallbacks)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    state: RunState
    error_code: str | None = None
    error: str | None = None


class Fence(msgspec.Struct, frozen=True):
    """Proof that a writer still owns a run: its id and the number it was started under."""

    run_id: str
    number: int
    session_key: str | None = None
    """The run's session, where its steps are hardly about any other."""

    @classmethod
    def of(cls, run: Run, number: int) -> Self:
        is_plain = run.exchange_id is None and run.spawn_id is None and not run.deliver
        return cls(run.id, number, run.session_key if is_plain else None)


class CallState(StrEnum):
    PLANNED = "planned"
    STARTED = "started"
    DONE = "done"


def function_model(agent_id: str) -> str:
    """Name what answers where an agent is a function, in the place of a model."""
    return f"function/{agent_id}"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One call of a tool; `id` is ours and is all that idempotency and recovery use."""

    id: str
    run_id: str
    step: int
    position: int
    name: str
    arguments: str
    state: CallState
    result: str | None = None
    started_at: int | None = None
    """When it was asked for or, with outside effects, marked as begun; not known of calls of older versions."""
    ended_at: int | None = None
    is_asked: bool = False
    """Whether a person was asked for it before this process took its run up; no column of its row."""

    @property
    def block(self) -> ToolCallBlock:
        return ToolCallBlock(id=self.id, name=self.name, arguments=msgspec.json.decode(self.arguments))


class TranscriptHead(msgspec.Struct, frozen=True):
    """The row of a transcript at the start of a run: all that a request needs besides the messages."""

    mark: str
    """The mark of its headers."""
    next_seq: int
    """The place after its last message."""
    cut: str | None
    """Where a model's view begins, as stored (`core/cut.py`)."""
    shape: str | None
    """What surrounded the messages of the last request, as stored (`core/shape.py`)."""
    carries_from: str | None = None
    """The transcript before it, if this one begins with a summary of that."""


class RunStarted(msgspec.Struct, frozen=True):
    """A run that a lane may work on now, under this fence, and its session as it is at this moment."""

    run: Run
    fence: Fence
    session: Session
    head: TranscriptHead | None = None
    """Where there is one, a request to a model may need no look at the database."""


class RunAccepted(msgspec.Struct, frozen=True):
    """What accepting a message gave: the run, and whether it may start at once."""

    run: Run
    started: RunStarted | None
    is_repeat: bool = False


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One model reply, ready to be committed."""

    reply: Message
    ran_ms: int
    usage: Usage
    context_tokens: int | None = None
    shape: str | None = None
    """What surrounded the messages of the request, as it is stored; None if that is stored already."""
    leaves_calls: bool = False
    """Whether calls may be open that are not awaited any more: a function agent may return without their results."""


def tool_call_id(run_id: str, step: int, index: int) -> str:
    """Make the id of the index-th call that the step's reply asks for."""
    return f"{run_id}/{step}/{index}"


def function_call_id(run_id: str, n: int) -> str:
    """Make the id of a function agent's n-th call; running the function again gives the same ids."""
    return f"{run_id}/f/{n}"


def scoped_run_id(scope: str, key: str) -> str:
    """Make the id of a run that a trigger names by a key of its own, apart from the ids that anybody else uses.

    No `/` of the key is left, so that no key can name what follows from another run: its calls and exchanges.
    """
    return f"{scope}/{key.replace('%', '%25').replace('/', '%2f')}"


class RunInterrupted(msgspec.Struct, frozen=True):
    """A run that was running when its process ended."""

    run_id: str
    session_key: str
    crashes: int
    is_suspect: bool
    """Whether going on with it may end the process once more; one that is to be stopped or set aside does not go on."""
