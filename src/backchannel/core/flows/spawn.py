"""The sub-agent flow: a pure function from an event to the next step of `sessions_spawn`.

States, and what moves them:

- `run`: the child works on its task. After an ok end the child is asked what to announce. After any other end the post
  is made at once, without another model call.
- `announce`: the child, without tools, says what the requester is told. There is always a post, unless the child says
  exactly `ANNOUNCE_SKIP`. If the announce fails, the post has the result of the child's own run.
- `done`: told, skipped or cancelled; nothing moves it any more. So there is one post per child, however many signals
  of its end there were, and later runs on its session announce nothing.

At most one run is open, and its id is in the spawn. The end of any other run, or the same event again, changes
nothing. The unit that writes the event also executes the actions. `core/flows/barrier.py` has the posts of a requester
that waits for several children.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from backchannel.core.commands.control_words import ANNOUNCE_SKIP
from backchannel.core.flows.flow import AbortRun, QueueRun, Settle
from backchannel.core.flows.spawn_texts import announce_prompt, post_text
from backchannel.core.flows.spawn_values import (
    ChildCancelled,
    ChildRunEnded,
    Event,
    PostText,
    Spawn,
    SpawnOutcome,
    SpawnState,
    Stepped,
)
from backchannel.core.keys import SessionKey
from backchannel.core.messages import FlowStep, Provenance, ProvenanceKind
from backchannel.core.policy.decisions import Decision
from backchannel.core.runs import RunKind, RunState

SPAWN_TOOL = "sessions_spawn"
ANNOUNCE_LIMIT_S = 60.0
MAX_CHILDREN = "agents.defaults.subagents.maxChildren"
_ANY = "*"
TASK_KEPT = 4_000


def may_spawn(requester: SessionKey, agent_id: str, allowed: Collection[str], *, leaves_sandbox: bool) -> Decision:
    """Decide whether a session may start a child under an agent."""
    setting = f"agents.list[{requester.agent}].subagents.allowAgents"
    if requester.is_subagent:
        return Decision(False, "a sub-agent may not spawn another")
    if agent_id != requester.agent and agent_id not in allowed and _ANY not in allowed:
        may = ", ".join(sorted({requester.agent, *allowed}))
        reason = f"{requester.agent!r} may spawn only under {may} (add {agent_id!r} to {setting} to allow it)"
        return Decision(False, reason, setting)
    if leaves_sandbox:
        reason = (
            f"this session runs sandboxed, and the sub-agents of {agent_id!r} would not "
            f'(agents.defaults.sandbox.mode "non-main" or "all", or the same for that agent, would allow it)'
        )
        return Decision(False, reason, "agents.defaults.sandbox.mode")
    return Decision(True, f"{agent_id} is open to {requester.agent}", setting)


def has_room(open_children: int, limit: int) -> Decision:
    """Decide whether a requester may have one more child that is not settled."""
    if open_children < limit:
        return Decision(True, f"{open_children} of {limit} children", MAX_CHILDREN)
    reason = (
        f"this session has {open_children} sub-agents that are running, queued or not announced yet, and "
        f"{MAX_CHILDREN} is {limit}: wait for one to end (a higher value would allow more)"
    )
    return Decision(False, reason, MAX_CHILDREN)


def being_stopped() -> Decision:
    """Refuse a spawn of a run that was asked to stop: its children were stopped with it, and this one came after."""
    return Decision(False, "the run that asks for it is being stopped")


def first_run(spawn: Spawn, requester_shown: str) -> QueueRun:
    """Make the run that works on the task."""
    asks = from_session(requester_shown, FlowStep.TASK)
    return QueueRun(
        id=spawn.child_run, kind=RunKind.CHILD, key=spawn.child, texts=(spawn.task,), provenance=asks, chain=spawn.chain
    )


def kept(spawn: Spawn) -> Spawn:
    """Leave only the beginning of a long task: the child's transcript has all of it, and every list reads this."""
    left_out = len(spawn.task) - TASK_KEPT
    if left_out <= 0:
        return spawn
    return replace(spawn, task=f"{spawn.task[:TASK_KEPT]}… ({left_out} characters more)")


def step_spawn(spawn: Spawn, event: Event) -> Stepped:
    """Tell what comes next."""
    match event:
        case ChildRunEnded() if event.run_id == spawn.run_id and event.state.is_finished:
            return _child_ended(spawn, event) if spawn.state is SpawnState.RUN else _announce_ended(spawn, event)
        case ChildCancelled() if spawn.state is not SpawnState.DONE:
            return _cancelled(spawn, event)
    return spawn, ()


def announce_id(spawn: Spawn) -> str:
    """Name the announce run; a unit that is run twice asks for the same run."""
    return f"{spawn.id}/announce"


def _child_ended(spawn: Spawn, event: ChildRunEnded) -> Stepped:
    spawn = replace(spawn, status=event.state, error=event.error, ended_at=event.at)
    if event.state is not RunState.OK:
        return _post(spawn, event, None)
    spawn = replace(spawn, state=SpawnState.ANNOUNCE, run_id=announce_id(spawn))
    return spawn, (_announce_run(spawn),)


def _announce_run(spawn: Spawn) -> QueueRun:
    return QueueRun(
        id=announce_id(spawn),
        kind=RunKind.ANNOUNCE,
        key=spawn.child,
        texts=(announce_prompt(spawn),),
        provenance=from_gateway(FlowStep.ANNOUNCE),
        chain=spawn.chain,  # the announce keeps the hop of its spawn
        timeout_s=ANNOUNCE_LIMIT_S,
    )


def _announce_ended(spawn: Spawn, event: ChildRunEnded) -> Stepped:
    if event.state is RunState.OK and (event.reply or "").strip() == ANNOUNCE_SKIP:
        return _settle(spawn, SpawnOutcome.SKIPPED, "the sub-agent chose to stay silent")
    return _post(spawn, event, event.reply if event.state is RunState.OK else None)


def _post(spawn: Spawn, event: ChildRunEnded, announced: str | None) -> Stepped:
    note = None
    if spawn.state is SpawnState.ANNOUNCE and event.state is not RunState.OK:
        note = f"the announce step ended as {event.state}{f': {event.error}' if event.error else ''}"
    text = post_text(spawn, announced, event.findings, note)
    done = replace(spawn, state=SpawnState.DONE, run_id=None, outcome=SpawnOutcome.POSTED)
    return done, (PostText(text=text),)


def _cancelled(spawn: Spawn, event: ChildCancelled) -> Stepped:
    spawn = replace(spawn, ended_at=spawn.ended_at or event.at)
    open_run = spawn.run_id
    done, settled = _settle(spawn, SpawnOutcome.CANCELLED, event.reason)
    return done, (*settled, *(() if open_run is None else (AbortRun(open_run),)))


def _settle(spawn: Spawn, outcome: SpawnOutcome, reason: str) -> Stepped:
    done = replace(spawn, state=SpawnState.DONE, run_id=None, outcome=outcome, reason=reason)
    return done, (Settle(outcome=outcome, reason=reason),)


def from_child(child: SessionKey) -> Provenance:
    """Say that a note is the post of a child."""
    return from_session(str(child), FlowStep.POST)


def from_session(key_shown: str, step: FlowStep) -> Provenance:
    """Say that a session wrote a message of the flow."""
    return Provenance(
        kind=ProvenanceKind.INTER_SESSION, source_session_key=key_shown, source_tool=SPAWN_TOOL, step=step
    )


def from_gateway(step: FlowStep) -> Provenance:
    """Say that the gateway itself wrote a message of the flow."""
    return Provenance(kind=ProvenanceKind.INTERNAL_SYSTEM, source_tool=SPAWN_TOOL, step=step)
