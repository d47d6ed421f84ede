"""Addresses of sessions as operators write them: keys, ids and labels.

A key names a session, whatever transcript it has now. An id names one transcript; after a reset or a deletion it names
none, even if the key is in use again. Requests that change something find their session here and pass the id on to
their unit, which checks it again. `gateway/methods/history.py` reads deleted sessions.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from backchannel.agents.registry import Agents
from backchannel.core.caller_keys import CallerKeys, LookedUp, RequestAddress, SessionResolved, WrittenAddress
from backchannel.core.keys import KeyScheme, SessionKey, normalise_agent_id
from backchannel.core.policy.visibility import OPERATOR
from backchannel.core.sessions import Session
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, SessionIdReplaced, SessionNotFound, UnknownAgent
from backchannel.gateway.parts import GatewayParts
from backchannel.openclaw.rows import SessionRow
from backchannel.tools.targets import addressed_before, look_up
from backchannel.wire.answers import FoundKey, SessionFound

_SHORT_ID = re.compile("[0-9a-fA-F]{8,32}")
_MOST_CANDIDATES = 10


def operator_keys(parts: GatewayParts, agent_id: str | None = None) -> CallerKeys:
    """Read keys for an operator; a bare key belongs to the agent named, else to the default agent."""
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


async def resolve(parts: GatewayParts, text: str, agent_id: str | None = None) -> SessionResolved:
    """Resolve a text to a session, which may not exist yet.

    Raises:
        InvalidSessionKey, SessionIdReplaced, SessionNotFound: it names none.
        InvalidRequest: the agent named is another than the session's.
    """
    keys = operator_keys(parts, agent_id)
    resolved = await _choose(parts, keys, keys.read(text))
    if agent_id is not None:
        check_agent_id(keys, resolved.key)
    return resolved


async def _choose(parts: GatewayParts, keys: CallerKeys, written: WrittenAddress) -> SessionResolved:
    found = await look_up(parts, OPERATOR, written)
    assert isinstance(found, LookedUp), "an operator sees every session"
    return keys.choose(written, found)


async def address_for_message(
    parts: GatewayParts, text: str, agent_id: str | None, idempotency_key: str | None = None
) -> RequestAddress:
    """Resolve the session of a message. It need not exist: the message makes it, for a configured agent.

    Raises:
        InvalidSessionKey, SessionIdReplaced, SessionNotFound: it names none.
        InvalidRequest: the agent named is another than the session's.
        UnknownAgent: its agent is not configured.
    """
    keys = operator_keys(parts, agent_id)
    written = keys.read(text)
    # A text that can mean one session only needs no look-up, which keeps the way of a message short.
    is_plain = written.is_explicit and written.session_id is None
    if is_plain and (agent_id is None or written.key.agent == keys.agent):
        check_agent(parts, written.key.agent)
        return RequestAddress(written.key)
    return await _address(parts, keys, written, agent_id, idempotency_key)


async def address_by_id(
    parts: GatewayParts, session_id: str, agent_id: str | None, idempotency_key: str | None = None
) -> RequestAddress:
    """Resolve the session of a message by its id; an unknown id makes a new session.

    Raises:
        As `address_for_message`.
    """
    keys = operator_keys(parts, agent_id)
    return await _address(parts, keys, keys.read_id(session_id), agent_id, idempotency_key)


async def address_by_name(parts: GatewayParts, name: str, idempotency_key: str | None = None) -> RequestAddress:
    """Resolve the session of a message from a key, an id, a label or an agent, as the command line takes them.

    An agent's id means its main session, unless a session of the default agent has this key.

    Raises:
        InvalidSessionKey, SessionIdReplaced, SessionNotFound: it names none.
        AmbiguousLabel: several sessions have it as their label.
        UnknownAgent: its agent is not configured.
    """
    with suppress(SessionNotFound):
        return await address_for_message(parts, name, None, idempotency_key)
    with suppress(SessionNotFound):
        return RequestAddress(await find_labelled(parts, name.strip(), None))
    if (main := main_of(parts.scheme, parts.agents, name)) is not None:
        return RequestAddress(main)
    known = f"no session has the key, the id or the label {quoted(name)}, and no agent has this id"
    raise SessionNotFound(f"{known} (agent:{parts.scheme.default_agent}:<name> begins one)")


def main_of(scheme: KeyScheme, agents: Agents, name: str) -> SessionKey | None:
    """Give the main session of the agent with this id; None if there is no such agent."""
    try:
        return scheme.main(agents.get(name.strip().lower()).id)
    except UnknownAgent:
        return None


async def address_to_make(
    parts: GatewayParts, text: str, agent_id: str | None, idempotency_key: str | None = None
) -> RequestAddress:
    """Resolve the session to make; a word alone is a key of the agent.

    Raises:
        As `address_for_message`.
    """
    keys = operator_keys(parts, agent_id)
    return await _address(parts, keys, replace(keys.read(text), is_explicit=True), agent_id, idempotency_key)


async def _address(
    parts: GatewayParts, keys: CallerKeys, written: WrittenAddress, agent_id: str | None, idempotency_key: str | None
) -> RequestAddress:
    try:
        resolved = await _choose(parts, keys, written)
        at = RequestAddress(resolved.key, resolved.session_id)
    except (SessionIdReplaced, SessionNotFound):
        if (was := await addressed_before(parts, written, idempotency_key)) is None:
            raise
        at = RequestAddress(was, written.session_id)
    if agent_id is not None:
        check_agent_id(keys, at.key)
    check_agent(parts, at.key.agent)
    return at


async def address_existing(parts: GatewayParts, text: str, agent_id: str | None) -> RequestAddress:
    """Resolve the existing session to change.

    Raises:
        SessionNotFound: there is none, or it is archived.
    """
    resolved = await resolve(parts, text, agent_id)
    session = await _load(parts, resolved)
    if session is None or session.archived_at is not None:
        raise no_session(parts, text)
    return RequestAddress(resolved.key, resolved.session_id)


async def find_session(
    parts: GatewayParts, text: str, agent_id: str | None = None, *, archived: bool = False
) -> Session:
    """Load the session that a text means.

    Raises:
        SessionNotFound: there is none; an archived one counts with `archived` only.
    """
    resolved = await resolve(parts, text, agent_id)
    session = await _load(parts, resolved)
    if session is None or (session.archived_at is not None and not archived):
        raise no_session(parts, text)
    return session


async def find_session_or_main(
    parts: GatewayParts, text: str, agent_id: str | None
) -> tuple[RequestAddress, Session | None]:
    """Load the session that a text means, archived or not; a main session may have no row yet.

    Raises:
        SessionNotFound: there is none.
        UnknownAgent: it would be the main session of an agent that is not configured.
    """
    resolved = await resolve(parts, text, agent_id)
    session = await _load(parts, resolved)
    if session is None:
        if resolved.session_id is not None or not parts.scheme.is_main(resolved.key):
            raise no_session(parts, text)
        check_agent(parts, resolved.key.agent)
    return RequestAddress(resolved.key, resolved.session_id), session


async def _load(parts: GatewayParts, resolved: SessionResolved) -> Session | None:
    """Load a session; None also if its id has just been replaced."""
    session = await parts.store.session(str(resolved.key))
    return session if session is None or resolved.session_id in (None, session.session_id) else None


async def look_at(parts: GatewayParts, key: str) -> SessionRow | None:
    """Show a session as it is now; None if there is none."""
    seen = await parts.store.session_seen(key)
    return None if seen is None else parts.rows.session_row(*seen)


def no_session(parts: GatewayParts, text: str) -> SessionNotFound:
    """Say that a text names no session; one that begins with an agent's id lacks the rest of a key."""
    agent_id, _, rest = text.strip().lower().partition(":")
    whole = ""
    if rest and agent_id in parts.agents.ids():
        whole = f"; of the agent {agent_id} the key would be {quoted(f'agent:{agent_id}:{rest}')}"
    return SessionNotFound.named(quoted(text), whole)


def check_agent_id(keys: CallerKeys, key: SessionKey) -> None:
    """Refuse a session whose agent is not the one in the request.

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


async def find_by_short_id(parts: GatewayParts, short_id: str, agent_id: str | None) -> SessionFound:
    """Find a session by the beginning of the UUID in its key, as addresses of OpenClaw's pages have it."""
    if _SHORT_ID.fullmatch(short_id) is None:
        return SessionFound(ok=False)
    agent = None if agent_id is None else normalise_agent_id(agent_id)
    keys = await parts.store.sessions_with_uuid(short_id.lower(), agent, _MOST_CANDIDATES)
    found = [FoundKey(key=parts.rows.key(key), agent_id=SessionKey.stored(key).agent) for key in keys]
    if len(found) == 1:
        return SessionFound(ok=True, key=found[0].key, agent_id=found[0].agent_id)
    return SessionFound(ok=False, candidates=found or None)
