"""Exchanges for tests: two sessions, the requester A and the target B, and what happens between them."""

from __future__ import annotations

from typing import Any

from backchannel.core.flows.exchange import open_exchange, step_exchange
from backchannel.core.flows.exchange_values import Action, AddNote, Deliver, Event, Exchange, Party, Reopen, SendRequest
from backchannel.core.flows.flow import AbortRun, FlowRefused, QueueRun, RunEnded, Settle
from backchannel.core.keys import SessionKey
from backchannel.core.policy.limits import ExchangeLimitSettings, Lineage
from backchannel.core.runs import Chain, RunState
from backchannel.core.sessions import Address

parse = SessionKey.parse
A = Party(key=parse("agent:main:main"), channel="telegram")
B = Party(key=parse("agent:ops:discord:group:42"), channel="discord")
CHILD = Party(key=parse("agent:main:subagent:7"))
ADDRESS = Address(channel="discord", to="Room42", account_id="bot", thread_id="t9")
ORIGIN = Lineage(chain=Chain("cause", 2), path=("agent:x:main", "agent:y:main", A.name), runs=3)
NAMES = {A.key: "A", B.key: "B", CHILD.key: "child"}


def request(**given: Any) -> SendRequest:
    """Make a send from A to B, by a tool call that does not wait."""
    facts: dict[str, Any] = {
        "exchange_id": "x1",
        "run_id": "p1",
        "requester": A,
        "target": B,
        "message": "Is the disk full?",
        "call_id": "r9/0/1",
        "is_waiting": False,
        "address": ADDRESS,
        "origin": ORIGIN,
    }
    return SendRequest(**facts | given)


def opened(max_turns: int = 2, **given: Any) -> Exchange:
    """Begin an exchange."""
    result = open_exchange(request(**given), (), ExchangeLimitSettings(max_ping_pong_turns=max_turns))
    assert not isinstance(result, FlowRefused)
    return result[0]


def ended(exchange: Exchange, reply: str | None = "Fine.", state: RunState = RunState.OK, **given: Any) -> RunEnded:
    """Let the open run end."""
    return RunEnded(run_id=exchange.run_id or "none", state=state, reply=reply, **given)


def after(exchange: Exchange, *events: Event | str) -> Exchange:
    """Let things happen one after the other; a text is the reply with which the open run ends."""
    for event in events:
        exchange, _ = step_exchange(exchange, ended(exchange, event) if isinstance(event, str) else event)
    return exchange


def shown(actions: tuple[Action, ...]) -> list[str]:
    """Write actions in words that a table can hold."""
    return [_shown(action) for action in actions]


def _shown(action: Action) -> str:
    match action:
        case QueueRun(kind=kind, key=key):
            return f"{kind}@{NAMES[key]}"
        case AbortRun(even_running=even_running):
            return "abort" if even_running else "abort-if-queued"
        case AddNote(key=key):
            return f"note@{NAMES[key]}"
        case Settle(outcome=outcome):
            return f"settle:{outcome}"
        case Deliver():
            return "deliver"
        case Reopen():
            return "reopen"
