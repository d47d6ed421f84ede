"""Payloads of the events that the gateway sends."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from backchannel.core.messages import Block, Role
from backchannel.wire.rows import SessionRow
from backchannel.wire.shapes import Answer


class Challenge(Answer, frozen=True, kw_only=True):
    """The first thing that a client gets; a device signs the nonce, and other clients need not look at it."""

    nonce: str
    ts: int


class ShownMessage(Answer, frozen=True, kw_only=True):
    """A message as `chat` events carry it."""

    role: Role
    content: tuple[Block, ...]
    timestamp: int


class ChatEvent(Answer, frozen=True, kw_only=True):
    """How a person's message is being answered; it carries what the run says, or all that it has said so far."""

    run_id: str
    session_key: str
    agent_id: str
    seq: int
    state: str
    delta_text: str | None = None
    replace: bool | None = None
    """Whether the text takes the place of that of the delta before: the run says something else now."""
    message: ShownMessage | None = None
    error_message: str | None = None
    stop_reason: str | None = None


class AgentEvent(Answer, frozen=True, kw_only=True):
    """What an agent does: its life cycle, its text, its thoughts, its tools."""

    run_id: str
    session_key: str
    seq: int
    stream: str
    ts: int
    data: dict[str, Any]


class SessionsChanged(Answer, frozen=True, kw_only=True):
    """A session's row changed, or the session is gone."""

    session_key: str
    agent_id: str
    reason: str
    ts: int
    session_id: str | None = None
    active_run_ids: list[str] | None = None
    session: SessionRow | None = None


class SessionMessage(Answer, frozen=True, kw_only=True):
    """A message entered a transcript."""

    session_key: str
    agent_id: str
    session_id: str
    message_id: str
    message_seq: int
    message: Raw


class Tick(Answer, frozen=True, kw_only=True):
    """A sign of life."""

    ts: int


class Shutdown(Answer, frozen=True, kw_only=True):
    """The gateway stops; the connection is closed next."""

    reason: str
