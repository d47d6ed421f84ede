"""The barrier: a requester's wait for all children that one of its runs spawned.

The barrier opens when that run has ended and every child is settled, or at a deadline after the run ended. Children
that settle later share one more wake. Until then the barrier holds the posts. A run of the requester that starts
meanwhile gets the held posts. So each post enters the transcript once: by that run, or by the wake. There is no wake if
there is nothing to say. There is none after a stop either; held posts then become notes.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from backchannel.core.flows.flow import QueueRun
from backchannel.core.flows.spawn import from_gateway
from backchannel.core.flows.spawn_texts import child_title, wake_text
from backchannel.core.flows.spawn_values import Spawn, SpawnRules
from backchannel.core.keys import SessionKey
from backchannel.core.messages import FlowStep
from backchannel.core.runs import Chain, RunKind
from backchannel.core.sessions import Address
from backchannel.core.stored import StoredForm

_WAKE = "/wake/"


class HeldPost(msgspec.Struct, frozen=True, kw_only=True):
    """A post that waits for the others."""

    spawn_id: str
    child: SessionKey
    title: str
    text: str
    is_told: bool = False
    """Whether the requester's transcript has it already."""


class Barrier(msgspec.Struct, frozen=True, kw_only=True):
    """What one run's children are waited for with."""

    id: str
    requester: SessionKey
    address: Address | None
    """Where the wake's reply goes: the address that was frozen for the first child."""
    chain: Chain
    path: tuple[str, ...]
    rules: SpawnRules
    has_run_ended: bool
    waiting: tuple[str, ...] = ()
    """The children that are not settled."""
    posts: tuple[HeldPost, ...] = ()
    is_late: bool = False
    """The deadline has passed."""
    is_stopped: bool = False
    wakes: int = 0

    @property
    def opens(self) -> bool:
        """Whether it is time for a wake."""
        if not self.has_run_ended or not self.posts or self.is_stopped:
            return False
        return not self.waiting or (self.is_late and not self.wakes)

    @property
    def is_over(self) -> bool:
        """Whether nothing can come of it any more."""
        return self.has_run_ended and not self.waiting and not self.posts

    @property
    def untold(self) -> tuple[HeldPost, ...]:
        return tuple(post for post in self.posts if not post.is_told)


_STORED: StoredForm[Barrier] = StoredForm(Barrier)
read_barrier, write_barrier = _STORED.read, _STORED.write


def barrier_for(spawn: Spawn) -> Barrier:
    """Make the barrier of a run's first child; a spawn from outside a run has one of its own."""
    return Barrier(
        id=spawn.barrier_id,
        requester=spawn.requester,
        address=spawn.address,
        chain=spawn.chain,
        path=spawn.path,
        rules=spawn.rules,
        has_run_ended=spawn.requester_run is None,
    )


def add_child(barrier: Barrier, spawn: Spawn) -> Barrier:
    """Wait for one more; the run that spawns it is at work, perhaps once more."""
    runs_on = spawn.requester_run is not None
    return replace(
        barrier,
        waiting=(*barrier.waiting, spawn.id),
        has_run_ended=barrier.has_run_ended and not runs_on,
        is_late=barrier.is_late and not runs_on,
        is_stopped=False,
    )


def child_settled(barrier: Barrier, spawn: Spawn, text: str | None) -> Barrier:
    """One child has ended, with a post or in silence; a second signal changes nothing."""
    if spawn.id not in barrier.waiting:
        return barrier
    waiting = tuple(child for child in barrier.waiting if child != spawn.id)
    posts = barrier.posts
    if text is not None:
        posts = (*posts, HeldPost(spawn_id=spawn.id, child=spawn.child, title=child_title(spawn), text=text))
    return replace(barrier, waiting=waiting, posts=posts)


def run_ended(barrier: Barrier) -> Barrier:
    return replace(barrier, has_run_ended=True)


def deadline_passed(barrier: Barrier) -> Barrier:
    return replace(barrier, is_late=barrier.has_run_ended)


def stopped(barrier: Barrier) -> Barrier:
    """The requester was stopped: nothing wakes it."""
    return replace(barrier, is_stopped=True)


def told(barrier: Barrier) -> Barrier:
    """The transcript has all posts; one that nothing will wake for needs them no longer."""
    posts = () if barrier.is_stopped else tuple(replace(post, is_told=True) for post in barrier.posts)
    return replace(barrier, posts=posts)


def forgotten(barrier: Barrier) -> Barrier:
    """The requester was reset: its new transcript has none of the posts."""
    return replace(barrier, posts=tuple(replace(post, is_told=False) for post in barrier.posts))


def wake(barrier: Barrier) -> tuple[Barrier, QueueRun]:
    """Take what is held into one run of the requester, one hop further than its children."""
    posts = tuple((post.title, None if post.is_told else post.text) for post in barrier.posts)
    run = QueueRun(
        id=f"{barrier.id}{_WAKE}{barrier.wakes + 1}",
        kind=RunKind.WAKE,
        key=barrier.requester,
        texts=(wake_text(posts, has_chat=barrier.address is not None),),
        provenance=from_gateway(FlowStep.WAKE),
        chain=Chain(barrier.chain.id, barrier.chain.hop + 1),
        reply_to=barrier.address,
    )
    return replace(barrier, posts=(), wakes=barrier.wakes + 1), run


def barrier_of_wake(run_id: str) -> str:
    """Tell from a wake's run which barrier it came from."""
    return run_id.rpartition(_WAKE)[0]


def give_up(barrier: Barrier) -> Barrier:
    """No wake after all: whoever calls has made notes of what was held."""
    return replace(barrier, posts=(), wakes=barrier.wakes + 1)
