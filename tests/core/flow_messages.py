"""One message of each step of a flow, as the gateway writes them."""

from __future__ import annotations

from msgspec.structs import replace

from backchannel.core.flows import barrier as barriers
from backchannel.core.flows.exchange import announce_run, failure_note, late_reply_note, primary_run, turn_run
from backchannel.core.flows.exchange_values import ExchangeState
from backchannel.core.flows.flow import QueueRun
from backchannel.core.flows.spawn import first_run, from_child, from_gateway, step_spawn
from backchannel.core.flows.spawn_texts import stopped_text
from backchannel.core.flows.spawn_values import PostText
from backchannel.core.messages import FlowStep, Message, Provenance, Role, TextBlock

from .exchanges import opened
from .spawns import A, after, ended, spawned


def written(role: Role, *texts: str, provenance: Provenance | None = None) -> Message:
    """Make a message of these texts."""
    content = tuple(TextBlock(text=text) for text in texts)
    return Message(id="m", role=role, content=content, timestamp=1, provenance=provenance)


def one_of_each() -> dict[str, Message]:
    """Name one message of each step, and both announces."""
    return {name: written(Role.USER, *texts, provenance=source) for name, (texts, source) in _made().items()}


def _made() -> dict[str, tuple[tuple[str, ...], Provenance]]:
    exchange = replace(opened(), reply="fine,\n```\n`thanks`\n```", latest="fine,\n```\n`thanks`\n```")
    spawn = spawned()
    _, (announce,) = step_spawn(spawn, ended(spawn, "done"))
    announced = after(spawn, "done")
    _, (post,) = step_spawn(announced, ended(announced, "It is **done**.\n\nAll of it."))
    assert isinstance(announce, QueueRun) and isinstance(post, PostText)
    held = barriers.child_settled(barriers.add_child(barriers.barrier_for(spawn), spawn), spawn, post.text)
    _, wake = barriers.wake(held)
    runs = {
        "ask": primary_run(exchange),
        "turn": turn_run(replace(exchange, state=ExchangeState.TURN, turn=1)),
        "empty turn": turn_run(replace(exchange, state=ExchangeState.TURN, turn=2, latest=None)),
        "announce": announce_run(replace(exchange, state=ExchangeState.ANNOUNCE)),
        "task": first_run(spawn, str(A)),
        "child's announce": announce,
        "wake": wake,
    }
    (late,), (failed,) = late_reply_note(exchange), failure_note(exchange, "out of money")
    return {name: (run.texts, run.provenance) for name, run in runs.items()} | {
        "late_reply": ((late.text,), late.provenance),
        "failure": ((failed.text,), failed.provenance),
        "post": ((post.text,), from_child(spawn.child)),
        "notice": ((stopped_text((spawn,)),), from_gateway(FlowStep.NOTICE)),
    }
