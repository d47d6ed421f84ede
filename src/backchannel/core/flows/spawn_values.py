"""Values of the sub-agent flow: its row, its events and its actions.

`core/flows/spawn.py` moves them. A `Spawn` is what the body of its row holds; everything here is a plain value.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.flows.flow import AbortRun, QueueRun, RunEnded, Settle
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Usage
from backchannel.core.runs import Chain, FlowCall, Run, RunState
from backchannel.core.sessions import Address, Session
from backchannel.core.stored import StoredForm


class SpawnState(StrEnum):
    """Where a spawn is; `core/flows/spawn.py` tells what moves it."""

    RUN = "run"
    ANNOUNCE = "announce"
    DONE = "done"


class SpawnOutcome(StrEnum):
    """What the requester was told."""

    POSTED = "posted"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class SpawnRules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that hold for one spawn, written down when it is accepted."""

    deletes: bool = False
    """`cleanup: "delete"`: archived as soon as its receipt is settled."""
    archive_after_ms: int | None = None
    """Otherwise archived this long after it ended; None is never."""
    wakes: bool = False
    """Whether the requester gets a run once all children of one run are settled."""
    wake_after_ms: int | None = None
    """The longest that such a wake waits for the last child; None waits for all."""
    max_hops: int = 8
    max_chain_runs: int = 100
    """How far the chain may go with the wake."""


class Spawn(msgspec.Struct, frozen=True, kw_only=True):
    """What `sessions_spawn` started."""

    id: str
    requester: SessionKey
    child: SessionKey
    task: str
    label: str | None
    child_run: str
    chain: Chain
    path: tuple[str, ...]
    address: Address | None
    """The requester's return address, frozen when the spawn was accepted."""
    rules: SpawnRules
    run_id: str | None
    """The run that is open; the end of any other changes nothing."""
    requester_run: str | None = None
    """The run that spawned; None when a program called from outside a run."""
    model: str = ""
    """The model that it was given, as whoever spawned it was told."""
    transcript: str | None = None
    """The file of the child's first transcript."""
    state: SpawnState = SpawnState.RUN
    status: RunState | None = None
    """How the child's own run ended."""
    error: str | None = None
    ended_at: int | None = None
    outcome: SpawnOutcome | None = None
    reason: str | None = None

    @property
    def barrier_id(self) -> str:
        """The barrier that it belongs to: that of the run that spawned it, or one of its own."""
        return self.requester_run or self.id


_STORED: StoredForm[Spawn] = StoredForm(Spawn)
read_spawn, write_spawn = _STORED.read, _STORED.write


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What rows tell of a child when it is announced; what is not known is None."""

    last_text: str | None = None
    """The last text that the child's own run wrote."""
    tool_result: str | None = None
    """Its newest tool result."""
    runtime_ms: int | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    model: str | None = None
    """The model that really answered."""
    session_id: str | None = None
    archived_transcript: str | None = None
    """The file that its transcript will be, if the child is archived as soon as its post has arrived."""


# What happens


class ChildRunEnded(RunEnded, frozen=True, kw_only=True):
    """A run of the child ended."""

    findings: Findings
    at: int


class ChildCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """The requester was stopped or deleted: nobody waits for this child any more."""

    reason: str
    at: int


Event = ChildRunEnded | ChildCancelled


# What is to be done


class PostText(msgspec.Struct, frozen=True, kw_only=True):
    """Tell the requester: its chat, by the frozen address, and its transcript."""

    text: str


Action = QueueRun | AbortRun | PostText | Settle
Stepped = tuple[Spawn, tuple[Action, ...]]


# What is asked of the store, and what it tells


class SpawnAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A spawn, as the tool asks for it; what it stands on is read in the unit that accepts it."""

    call: FlowCall
    requester: SessionKey
    child: SessionKey
    task: str
    rules: SpawnRules
    max_children: int
    model: str
    """What the caller is told."""
    session_model: str | None = None
    """What its session is given; None is its agent's own."""
    label: str | None = None
    thinking: str | None = None
    timeout_s: float = 0.0


class SpawnRecord(msgspec.Struct, frozen=True):
    """A spawn with what became of it."""

    spawn: Spawn
    run: Run
    """The child's own."""
    delivery_id: str
    delivery_state: DeliveryState
    delivery_changed_at: int


class ChildSession(msgspec.Struct, frozen=True):
    """A child; one that no spawn of this gateway made has no story."""

    session: Session
    story: SpawnRecord | None


class Family(msgspec.Struct, frozen=True):
    """A session's children, the newest and the living first, and the usage of all that descend from it."""

    children: list[ChildSession]
    total: int
    usage: Usage
    """Its own included."""
