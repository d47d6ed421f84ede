"""On whose behalf a tool is called through a door: a token decides, never an argument.

An operator's token makes the operator the caller, or, where a session is named, that session, under its own
visibility, policy and sandbox. An agent's token is bound to one session and can name no other.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backchannel.agents.toolset import NEVER_FOR_SUBAGENTS
from backchannel.core.caller_keys import CallerKeys
from backchannel.core.keys import SessionKey
from backchannel.core.shapes import Params
from backchannel.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    NotFound,
    ScopeMissing,
    SessionNotFound,
    UnknownAgent,
)
from backchannel.gateway.addressing import check_agent, resolve
from backchannel.gateway.auth import TokenHolder
from backchannel.gateway.messages import IdempotencyKey
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.protocol import Scope
from backchannel.tools.base import Caller
from backchannel.tools.registry import find_tool, invoke

_SCOPES = {"read": Scope.READ, "write": Scope.WRITE}


class InvokeParams(Params, frozen=True, kw_only=True):
    """What a call of a tool consists of, through WebSocket and HTTP alike."""

    tool: str
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    session_key: str | None = None
    idempotency_key: IdempotencyKey | None = None


async def invoke_as(parts: GatewayParts, holder: TokenHolder, params: InvokeParams) -> Any:
    """Call a session tool for whoever holds the token.

    Raises:
        UnknownTool, InvalidRequest: the call does not fit.
        Forbidden, ScopeMissing: the token may not make it.
    """
    tool = find_tool(params.tool)
    needed = _SCOPES[tool.scope]
    if not holder.is_agent and needed not in holder.scopes:
        raise ScopeMissing(f"{tool.name} needs the scope {needed.value}", scope=needed.value)
    caller = await caller_of(parts, holder, params.session_key)
    check_tool(parts, caller, tool.name)
    calling = Caller(caller.key, params.idempotency_key, token_id=holder.token_id)
    return await invoke(parts, calling, tool.name, params.args)


def check_tool(parts: GatewayParts, caller: Caller, name: str) -> None:
    """Refuse a tool that is not the caller's; that a sub-agent may not spawn is for the tool itself to answer.

    Raises:
        Forbidden: the message names the setting that decided.
    """
    key = caller.key
    if key is None or has_tool(parts, caller, name) or (key.is_subagent and name == NEVER_FOR_SUBAGENTS):
        return
    shown = CallerKeys(parts.scheme, None).show(key)
    raise Forbidden(f"{name} is not among the tools of {shown}: {parts.toolset.why_not(key, name)}", tool=name)


def has_tool(parts: GatewayParts, caller: Caller, name: str) -> bool:
    """Whether a tool is the caller's: a session has those of its agent, the operator has all."""
    key = caller.key
    return key is None or name in parts.toolset.of(key.agent, str(key))


async def caller_of(parts: GatewayParts, holder: TokenHolder, session: str | None) -> Caller:
    """Tell on whose behalf a token's holder calls.

    Raises:
        Forbidden: it is bound to another session, or the session named cannot be a caller.
    """
    if holder.session_key is not None:
        bound = parts.scheme.in_force(SessionKey.parse(holder.session_key))
        if session is not None and not await _means(parts, session, bound):
            raise Forbidden("this token is bound to one session, and may not call as another")
        return await _calling_as(parts, bound)
    if session is None:
        return Caller()
    try:
        key = (await resolve(parts, session)).key
    except (InvalidRequest, NotFound) as error:
        raise _nobody(error) from error
    return await _calling_as(parts, key)


async def _calling_as(parts: GatewayParts, key: SessionKey) -> Caller:
    """Make a session the caller if it exists; the main session of a configured agent always does."""
    try:
        check_agent(parts, key.agent)
        found = await parts.store.session(str(key))
        if not parts.scheme.is_main(key) and (found is None or found.archived_at is not None):
            raise SessionNotFound(f"there is no session {str(key)!r}")
    except (UnknownAgent, SessionNotFound) as error:
        raise _nobody(error) from error
    return Caller(key)


def _nobody(error: GatewayError) -> Forbidden:
    return Forbidden(f"sessionKey: nobody can call as this session: {error.message}", param="sessionKey")


async def _means(parts: GatewayParts, text: str, bound: SessionKey) -> bool:
    if text in ("current", str(bound)):
        return True
    try:
        return (await resolve(parts, text, bound.agent)).key == bound
    except GatewayError:
        return False
