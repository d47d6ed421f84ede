"""Which session an operator means: keys, ids and labels as people write them, looked up in the store."""

from __future__ import annotations

from dataclasses import replace

from backchannel.core.caller_keys import CallerKeys, LookedUp, Resolved, Written
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.rows import SessionRow
from backchannel.core.sessions import Session
from backchannel.core.text import quoted
from backchannel.core.visibility import OPERATOR
from backchannel.errors import InvalidRequest, SessionNotFound
from backchannel.gateway.parts import GatewayParts
from backchannel.tools.targets import look_up


def operator_keys(parts: GatewayParts, agent_id: str | None = None) -> CallerKeys:
    """Read keys as an operator does; bare ones belong to the agent named, else to the default agent."""
    scheme = parts.scheme
    if agent_id is not None:
        scheme = replace(scheme, default_agent=known_agent(parts, agent_id))
    return CallerKeys(scheme, None)


def known_agent(parts: GatewayParts, text: str) -> str:
    """Read an agent's id.

    Raises:
        UnknownAgent: there is no such agent.
    """
    agent = normalise_agent_id(text)
    check_agent(parts, agent)
    return agent


def check_agent(parts: GatewayParts, agent: str) -> None:
    """Refuse an agent that is not configured.

    Raises:
        UnknownAgent: it is not.
    """
    parts.agents.get(agent)


async def resolve(parts: GatewayParts, text: str, agent_id: str | None = None) -> Resolved:
    """Resolve which session a text means; it may not exist yet.

    Raises:
        InvalidSessionKey, SessionIdReplaced, SessionNotFound: it names none.
        InvalidRequest: the agent named is another than the session's.
    """
    keys = operator_keys(parts, agent_id)
    resolved = await _choose(parts, keys, keys.read(text))
    if agent_id is not None:
        check_agent_id(keys, resolved.key)
    return resolved


async def _choose(parts: GatewayParts, keys: CallerKeys, written: Written) -> Resolved:
    found = await look_up(parts, OPERATOR, written)
    assert isinstance(found, LookedUp), "an operator sees every session"
    return keys.choose(written, found)


async def address_for_message(parts: GatewayParts, text: str, agent_id: str | None) -> SessionKey:
    """Resolve which session a message goes to. It need not exist: the message makes it, for a configured agent.

    Raises:
        UnknownAgent: its agent is not configured.
    """
    keys = operator_keys(parts, agent_id)
    written = keys.read(text)
    # A text that can mean one session only needs no look-up, which keeps the way of a message short.
    is_plain = written.is_explicit and written.session_id is None
    if is_plain and (agent_id is None or written.key.agent == keys.agent):
        key = written.key
    else:
        key = (await resolve(parts, text, agent_id)).key
    check_agent(parts, key.agent)
    return key


async def address_by_id(parts: GatewayParts, session_id: str, agent_id: str | None) -> SessionKey:
    """Resolve which session a message goes to that names it by its id; one that no session has makes a new session.

    Raises:
        InvalidSessionKey: it cannot be one.
        SessionIdReplaced: a reset has replaced it.
        InvalidRequest: the agent named is another than the session's.
        UnknownAgent: its agent is not configured.
    """
    keys = operator_keys(parts, agent_id)
    key = (await _choose(parts, keys, keys.read_id(session_id))).key
    if agent_id is not None:
        check_agent_id(keys, key)
    check_agent(parts, key.agent)
    return key


async def find_session(
    parts: GatewayParts, text: str, agent_id: str | None = None, *, archived: bool = False
) -> Session:
    """Load the session that a text means.

    Raises:
        SessionNotFound: there is none; an archived one counts with `archived` only.
    """
    resolved = await resolve(parts, text, agent_id)
    session = await parts.store.session(str(resolved.key))
    if session is None or (session.archived_at is not None and not archived):
        raise no_session(text)
    return session


async def look_at(parts: GatewayParts, key: str) -> SessionRow | None:
    """Show a session as it is now; None when there is none."""
    seen = await parts.store.session_seen(key)
    return None if seen is None else parts.rows.session_row(*seen)


def no_session(text: str) -> SessionNotFound:
    """Say that no session is what a text names."""
    return SessionNotFound(f"no session {quoted(text)} (sessions.list shows those there are)")


def check_agent_id(keys: CallerKeys, key: SessionKey) -> None:
    """Refuse a session of another agent than the one that the request names with it.

    Raises:
        InvalidRequest: it is.
    """
    if key.agent != keys.agent:
        raise InvalidRequest(
            f"agentId is {keys.agent!r}, but the session {keys.show(key)!r} is one of {key.agent!r} "
            "(leave agentId out, or name a session of that agent)",
            param="agentId",
        )


async def find_labelled(parts: GatewayParts, label: str, agent_id: str | None) -> SessionKey:
    """Find the session that has a label.

    Raises:
        SessionNotFound, AmbiguousLabel
    """
    agent = None if agent_id is None else known_agent(parts, agent_id)
    sessions = await parts.store.sessions_labelled(label, agent)
    keys = operator_keys(parts)
    return keys.choose_label(label, [SessionKey.parse(session.key) for session in sessions])
