"""Spawns for tests: the requester A, its sub-agents, and what happens to them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backchannel.core.flows.flow import AbortRun, QueueRun, Settle
from backchannel.core.flows.spawn import step_spawn
from backchannel.core.flows.spawn_values import Action, ChildRunEnded, Event, Findings, PostText, Spawn, SpawnRules
from backchannel.core.keys import SessionKey
from backchannel.core.runs import Chain, RunState
from backchannel.core.sessions import Address

parse = SessionKey.parse
A = parse("agent:main:telegram:group:42")
CHILD = parse("agent:ops:subagent:7")
ADDRESS = Address(channel="telegram", to="Room42", account_id="bot", thread_id="t9")
RULES = SpawnRules(wakes=True, wake_after_ms=30_000)
FINDINGS = Findings(
    last_text="3 % are left.",
    tool_result="df says 97 %",
    runtime_ms=312_000,
    tokens_in=1_200,
    tokens_out=400,
    cost=0.02,
    model="acme/large-1",
    session_id="5f1c",
)
ENDED_AT = 5_000


def spawned(**given: Any) -> Spawn:
    """Make a spawn of A, as a tool call of its run `r9` made it."""
    facts: dict[str, Any] = {
        "id": "s1",
        "requester": A,
        "child": CHILD,
        "task": "Look at the disk.",
        "label": "disk",
        "child_run": "c1",
        "chain": Chain("cause", 2),
        "path": ("agent:x:main", str(A), str(CHILD)),
        "address": ADDRESS,
        "rules": RULES,
        "run_id": "c1",
        "requester_run": "r9",
        "transcript": "/state/agents/ops/sessions/5f1c.jsonl",
    }
    return Spawn(**facts | given)


def sibling(number: int) -> Spawn:
    """Make one of several children of the same run."""
    return spawned(id=f"s{number}", child=parse(f"agent:ops:subagent:{number}"), child_run=f"c{number}", label=None)


def ended(spawn: Spawn, reply: str | None = "Full.", state: RunState = RunState.OK, **given: Any) -> ChildRunEnded:
    """Let the open run end."""
    facts: dict[str, Any] = {"run_id": spawn.run_id or "none", "findings": FINDINGS, "at": ENDED_AT}
    return ChildRunEnded(reply=reply, state=state, **facts | given)


def after(spawn: Spawn, *events: Event | str) -> Spawn:
    """Let things happen one after the other; a text is the reply with which the open run ends."""
    for event in events:
        spawn, _ = step_spawn(spawn, ended(spawn, event) if isinstance(event, str) else event)
    return spawn


def outcome(spawn: Spawn, actions: tuple[Action, ...]) -> str:
    """Write a step in words that a table can hold."""
    where = spawn.state if spawn.outcome is None else f"{spawn.state}, {spawn.outcome}"
    return " ".join([f"{where}:", *map(_shown, actions)])


def _shown(action: Action) -> str:
    match action:
        case QueueRun(kind=kind, id=run_id):
            return f"{kind}:{run_id}"
        case AbortRun(run_id=run_id):
            return f"abort:{run_id}"
        case Settle(outcome=how):
            return f"settle:{how}"
        case PostText():
            return "post"


def done(spawn: Spawn, state: RunState = RunState.OK, error: str | None = None) -> Spawn:
    """Make a child whose own run has ended so."""
    return replace(spawn, status=state, error=error, ended_at=ENDED_AT)
