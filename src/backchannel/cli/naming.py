"""Sessions as people name them on the command line: by key, by id, by label, or by the agent whose main one it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from backchannel.cli.options import Options
from backchannel.errors import SessionNotFound

if TYPE_CHECKING:
    from backchannel.cli.client import Client

WHICH = "a key, `main`, a session id, a label, or an agent's id"
"""What names a session, for the help of commands."""

_PLAIN = re.compile(
    r".*:.*|main|current|node-.*|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\s*", re.IGNORECASE | re.DOTALL
)

Name = TypeVar("Name", str, str | None)


def find_key(options: Options, name: Name, caller: str | None = None) -> Name:
    """Tell which session a name means; what can only be a key or an id is left for the gateway to read.

    With a caller, bare keys are those of its agent, as they are for the caller itself.

    Raises:
        SessionNotFound: no session and no agent is called so.
        CallFailed: several sessions have this label.
        NoGateway
    """
    if name is None or _PLAIN.fullmatch(name):
        return name
    from backchannel.cli.client import CallFailed, connected

    with connected(options) as client:
        try:
            return _by_key(client, name, caller) or _by_label(client, name) or _by_agent(client, name)
        except CallFailed as refused:
            if refused.reason == "ambiguous_label":
                raise
            return name  # what is wrong with it, or with the token, is told by what was asked for


def _by_key(client: Client, name: str, caller: str | None) -> str | None:
    return _resolved(client, key=name, agentId=_agent_of(caller))


def _by_label(client: Client, name: str) -> str | None:
    return _resolved(client, label=name)


def _by_agent(client: Client, name: str) -> str:
    listed = client.call("agents.list")
    if name.lower() == listed["mainKey"]:
        return name  # the main session under the name that it was given, which need not be there yet
    if name.lower() in (agent["id"] for agent in listed["agents"]):
        return f"agent:{name.lower()}:main"
    raise SessionNotFound(f"no session has the key, the id or the label {name[:80]!r}, and no agent has this id")


def _resolved(client: Client, **asked: str | None) -> str | None:
    from backchannel.cli.client import CallFailed

    try:
        return str(client.call("sessions.resolve", **asked)["key"])
    except CallFailed as refused:
        if refused.reason != "session_not_found":
            raise
        return None


def _agent_of(caller: str | None) -> str | None:
    """The agent that a full key names; any other caller is one of the default agent."""
    from backchannel.core.keys import SessionKey
    from backchannel.errors import InvalidSessionKey

    try:
        return SessionKey.parse(caller).agent if caller is not None else None
    except InvalidSessionKey:
        return None
