"""Payloads of the events that the gateway sends."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from backchannel.core.messages import Block, Role
from backchannel.openclaw.rows import SessionRow
from backchannel.wire.shapes import Answer


class Challenge(Answer, frozen=True, kw_only=True):
    """The first event. A device signs the nonce; other clients may ignore it."""

    nonce: str
    ts: int


class ShownMessage(Answer, frozen=True, kw_only=True):
    """A message in a `chat` event."""

    role: Role
    content: tuple[Block, ...]
    timestamp: int


class ChatEvent(Answer, frozen=True, kw_only=True):
    """The answer to a person's message, as it grows.

    A run that calls tools may say something before and after. A client that subscribed to the session's messages gets
    each finished part as `session.message`, and `message` has only the text of the present part. For other clients
    `message` has all parts, one below the other. An internal run has only a last event: with its post to webchat once
    that is sent, else without a message.
    """

    run_id: str
    session_key: str
    agent_id: str
    seq: int
    state: str
    """`delta`, `final`, `aborted` or `error`."""
    delta_text: str | None = None
    replace: bool | None = None
    """Whether the text replaces that of the delta before: the first delta of another part."""
    message: ShownMessage | None = None
    error_message: str | None = None
    stop_reason: str | None = None


class AgentEvent(Answer, frozen=True, kw_only=True):
    """The work of an agent: its life cycle, text, thoughts and tools."""

    run_id: str
    session_key: str
    seq: int
    stream: str
    """`lifecycle`, `assistant`, `thinking`, `tool` or `retry`."""
    ts: int
    data: dict[str, Any]
    """`lifecycle`: `phase` (`start`, `end`, `error`). `assistant`: `text` so far and `delta`. `thinking`: `delta`.
    `tool`: `phase` (`start` with `args`, `result` with `isError` and a cut `result {content}`). `retry`, when a model
    call failed and is repeated: the failed `attempt` of at most `attempts`, `error`, `retryAt`.
    `data.backchannel.internal` is true for runs of exchanges and sub-agents."""


class SessionsChanged(Answer, frozen=True, kw_only=True):
    """A session's row changed, or the session is gone."""

    session_key: str
    agent_id: str
    reason: str
    """`created`, `patch`, `reset`, `delete`, `note`, `run`, `exchange` or `job`. With `run`, a run was accepted, began,
    ended or waits. With `exchange`, an exchange with this target took a step. With `job`, a cron job was added, removed
    or skipped."""
    ts: int
    session_id: str | None = None
    active_run_ids: list[str] | None = None
    session: SessionRow | None = None
    """Its present row; absent once it is deleted."""


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
