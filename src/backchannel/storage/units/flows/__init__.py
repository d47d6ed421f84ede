"""Flows: the common steps of exchanges and spawns.

`core/flows/exchange.py` and `core/flows/spawn.py` decide; this executes. A flow is a row whose body is its state. The
unit that ends a run, a wait or a session also advances the flow. So "the run ended" and "the next run is queued" are
one commit. `exchanges.py` and `spawns.py` have the rest of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec.structs import replace

from backchannel.core.flows.exchange_values import Exchange
from backchannel.core.flows.flow import AbortRun, QueueRun, Settle
from backchannel.core.flows.spawn_values import Spawn
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Provenance, Role, TextBlock
from backchannel.core.runs import FlowCall, RunRequest
from backchannel.storage.ids import new_id
from backchannel.storage.tx import Tx
from backchannel.storage.units import deliveries, idempotency, inbox, runs

F = TypeVar("F", Exchange, Spawn)
E = TypeVar("E")
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowKind(Generic[F, E, A]):
    """A kind of flow: its rows, its rules, and its own actions."""

    table: str
    runs_as: str
    """The column of `runs` that names the flow."""
    read: Callable[[str], F]
    write: Callable[[F, str | None], str]
    """Writes the flow, over the body that it was read from."""
    step: Callable[[Tx, F, E], tuple[F, tuple[A, ...]]]
    tell: Callable[[Tx, F], None] = lambda tx, flow: None
    """Records a change of the flow, if that needs a fact."""
    perform: Callable[[Tx, F, str, A], None]
    """Runs the flow's own part of an action, after the common part; gets the id of the receipt."""
    columns: tuple[str, ...] = ()
    """The values that are columns too, besides the state."""


def find(tx: Tx, kind: FlowKind[F, E, A], flow_id: str) -> F | None:
    row = tx.one(f"SELECT body FROM {kind.table} WHERE id = ?", flow_id)
    return None if row is None else kind.read(row[0])


def repeat(tx: Tx, kind: FlowKind[F, E, A], call: FlowCall) -> F | None:
    """Find the flow that the same call has started.

    Raises:
        IdempotencyConflict: its key stands for something else.
    """
    if call.digest is not None:
        idempotency.find_run(tx, call.run_id, call.digest)
    return find(tx, kind, call.flow_id)


def advance(tx: Tx, kind: FlowKind[F, E, A], flow_id: str, event: E) -> None:
    """Advance a flow by an event; an event without effect does nothing."""
    row = tx.one(f"SELECT body, delivery_id FROM {kind.table} WHERE id = ?", flow_id)
    if row is None:
        return
    before = kind.read(row[0])
    flow, actions = _named(tx, *kind.step(tx, before, event))
    if flow == before:
        return
    sets = "".join(f", {name} = ?" for name in kind.columns)
    tx.run(
        f"UPDATE {kind.table} SET state = ?{sets}, body = ?, updated_at = ? WHERE id = ?",
        flow.state.value,
        *(getattr(flow, name) for name in kind.columns),
        kind.write(flow, row[0]),
        tx.now,
        flow_id,
    )
    kind.tell(tx, flow)
    perform(tx, kind, flow, str(row[1]), actions)


def _named(tx: Tx, flow: F, actions: Sequence[A]) -> tuple[F, list[A]]:
    """Give the next run an id that no client has taken."""
    named: list[A] = []
    for action in actions:
        if isinstance(action, QueueRun):
            action = replace(action, id=runs.free_id(tx, action.id))
            flow = replace(flow, run_id=action.id)
        named.append(action)
    return flow, named


def perform(tx: Tx, kind: FlowKind[F, E, A], flow: F, delivery_id: str, actions: Sequence[A]) -> None:
    """Run the actions of a step, in order."""
    for action in actions:
        match action:
            case QueueRun():
                runs.queue_step(tx, replace(request_of(action), **{kind.runs_as: flow.id}))
            case AbortRun():
                _abort(tx, action)
            case Settle():
                deliveries.settle(tx, delivery_id, action.outcome.value, action.reason)
        kind.perform(tx, flow, delivery_id, action)


def request_of(action: QueueRun) -> RunRequest:
    """Turn a flow's run into a request."""
    return RunRequest(
        key=action.key,
        content=tuple(TextBlock(text=text) for text in action.texts),
        provenance=action.provenance,
        kind=action.kind,
        id=action.id,
        timeout_s=action.timeout_s,
        reply_to=action.reply_to,
        chain=action.chain,
    )


def _abort(tx: Tx, action: AbortRun) -> None:
    run = runs.need(tx, action.run_id)
    if not run.is_finished and (action.even_running or run.session_id is None):
        runs.request_abort(tx, run.session_key, run.id)


def make_note(tx: Tx, text: str, provenance: Provenance) -> Message:
    """Build a flow's note for a session."""
    return Message(
        id=new_id(), role=Role.USER, content=(TextBlock(text=text),), timestamp=tx.now, provenance=provenance
    )


def add_note(tx: Tx, key: SessionKey, text: str, provenance: Provenance) -> None:
    """Add a note to a session's inbox, if the session is not archived."""
    inbox.add_if_kept(tx, key, make_note(tx, text, provenance))
