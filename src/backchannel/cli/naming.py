"""Names that people type: sessions by key, id, label or agent, others by short id."""

from __future__ import annotations

import re
from typing import TypeVar

from backchannel.cli import answers
from backchannel.cli.client import CallFailed, GatewayClient, ask, connected
from backchannel.cli.options import Options
from backchannel.cli.short_forms import UUID
from backchannel.core.short_ids import GAP, IdKind
from backchannel.core.text import quoted
from backchannel.errors import SessionNotFound

WHICH = "a key, `main`, a session id or its beginning, a label, or an agent's id"
"""The names of a session, for the help of commands."""

_PLAIN = re.compile(rf"[^{GAP}]*:[^{GAP}]*|main|current|node-[^{GAP}]*|{UUID}|\s*", re.IGNORECASE)
_CHILD_BEGINNING = re.compile(r"(?P<agent>agent:[^:]+:)?subagent:(?P<id>[0-9a-f][0-9a-f-]{3,34})", re.IGNORECASE)
"""A sub-agent's key without its end. Other keys are not looked up: a whole key may be new."""
_WHOLE = re.compile(rf"[0-9a-f]{{32}}|{UUID}")

Name = TypeVar("Name", str, str | None)


def find_key(options: Options, name: Name, caller: str | None = None) -> Name:
    """Find the key of the session that a name means. Whole keys and ids are left to the gateway.

    With a caller, bare keys belong to its agent, as for the caller itself.

    Raises:
        SessionNotFound: no session and no agent is called so.
        CallFailed: several sessions have this label.
        NoGateway
    """
    if name is None:
        return name
    child = _CHILD_BEGINNING.fullmatch(name)
    if child is None and _PLAIN.fullmatch(name):
        return name
    with connected(options) as client:
        if child is not None:
            return _by_beginning(client, name if child["agent"] else child["id"])
        if GAP in name:
            return _by_short_key(client, name)
        try:
            return _by_key(client, name, caller) or _by_label(client, name) or _by_agent(client, name)
        except CallFailed as refused:
            if refused.reason in ("ambiguous_label", "ambiguous_id"):
                raise
            return name  # the request that follows reports what is wrong with it, or with the token


def find_id(options: Options, kind: IdKind, written: str) -> str:
    """Find the id with this beginning. A whole id is not looked up.

    Raises:
        CallFailed: none begins so, or several do.
        NoGateway
    """
    return (
        written if _WHOLE.fullmatch(written) else ask(options, "ids.resolve", answers.IdFound, kind=kind, id=written).id
    )


def _by_key(client: GatewayClient, name: str, caller: str | None) -> str | None:
    return _resolved(client, key=name, agentId=_agent_of(caller))


def _by_label(client: GatewayClient, name: str) -> str | None:
    return _resolved(client, label=name)


def _by_agent(client: GatewayClient, name: str) -> str:
    listed = client.call("agents.list", answers.AgentsListed)
    if name.lower() == listed.main_key:
        return name  # the main session under the name that it was given, which need not be there yet
    if name.lower() in (agent.id for agent in listed.agents):
        return f"agent:{name.lower()}:main"
    return _by_beginning(client, name)


def _by_short_key(client: GatewayClient, name: str) -> str:
    """Find a session by its key as tables show it; `tree` leaves the agent out where it is plain."""
    from backchannel.core.keys import is_full_key

    is_bare = ":" in name and not is_full_key(name)
    written = f"agent:{client.defaults.default_agent_id}:{name}" if is_bare else name
    return client.call("ids.resolve", answers.IdFound, kind=IdKind.SESSION, id=written).id


def _by_beginning(client: GatewayClient, name: str) -> str:
    try:
        return client.call("ids.resolve", answers.IdFound, kind=IdKind.SESSION, id=name).id
    except CallFailed as refused:
        if refused.reason != "session_not_found":
            raise
    raise SessionNotFound(f"no session has the key, the id or the label {quoted(name)}, and no agent has this id")


def _resolved(client: GatewayClient, **asked: str | None) -> str | None:
    try:
        return client.call("sessions.resolve", answers.SessionFound, **asked).key
    except CallFailed as refused:
        if refused.reason != "session_not_found":
            raise
        return None


def _agent_of(caller: str | None) -> str | None:
    """Give the agent of a full key; None for any other caller."""
    from backchannel.core.keys import SessionKey
    from backchannel.errors import InvalidSessionKey

    try:
        return SessionKey.parse(caller).agent if caller is not None else None
    except InvalidSessionKey:
        return None
