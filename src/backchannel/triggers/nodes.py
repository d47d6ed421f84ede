"""Nodes: devices and programs with a name and sessions of their own.

A node's name is its id. Its session is `node-<id>`, and `node-<id>:<anything>` are its own too. It speaks to no others.
Keys are compared as parsed, part by part, so no spelling (`node:`, another case, percent signs) makes one node's key
another's.
"""

from __future__ import annotations

import re

from backchannel.core.caller_keys import CallerKeys
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.messages import Provenance, ProvenanceKind
from backchannel.core.runs import scoped_run_id
from backchannel.core.text import quoted
from backchannel.errors import Forbidden, InvalidRequest

SAID = Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel="node")

_NODE = "node-"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_WHAT_IS_AN_ID = "1 to 64 letters, digits, `_`, `.` and `-`, the first a letter or digit, such as kitchen"


def read_node_id(text: str | None) -> str:
    """Read the id that a client connects under. Case counts.

    Raises:
        InvalidRequest: there is none, or it is no id.
    """
    if text is None:
        raise InvalidRequest(f"nodeId: a node needs one ({_WHAT_IS_AN_ID})", param="nodeId")
    if not _ID.fullmatch(text):
        raise InvalidRequest(f"nodeId: {quoted(text)} is not an id (expected {_WHAT_IS_AN_ID})", param="nodeId")
    return text


def choose_node(node_id: str | None, bound: SessionKey | None, scheme: KeyScheme) -> SessionKey:
    """Find the session of a client that connects as a node; `bound` is the one that its token is bound to.

    Without a bound session it is a node of the default agent.

    Raises:
        InvalidRequest: the id is none.
        Forbidden: the token is bound to another session.
    """
    key = SessionKey.node(bound.agent if bound else scheme.default_agent, read_node_id(node_id))
    if bound is not None and key != bound:
        raise Forbidden(
            f"nodeId: this token is bound to another session than {str(key)!r} "
            "(`backchannel tokens create --session` makes one for it)",
            param="nodeId",
        )
    return key


def id_of(node: SessionKey) -> str:
    """Give the id that a node has connected under."""
    return node.path[0].removeprefix(_NODE)


def is_node(key: SessionKey) -> bool:
    """Whether the key is the session under which a node connects."""
    head, *rest = key.path
    return not rest and head.startswith(_NODE) and bool(_ID.fullmatch(head.removeprefix(_NODE)))


def own_key(node: SessionKey, scheme: KeyScheme, text: str | None) -> SessionKey:
    """Read which of its sessions a node means; nothing is its own. Of others it does not learn whether they exist.

    Raises:
        InvalidSessionKey: the text is no key.
        Forbidden: it is not the node's.
    """
    if text is None:
        return node
    key = CallerKeys(scheme, node).read(text).key
    if key.agent != node.agent or key.path[0] != node.path[0]:
        raise Forbidden(
            f"sessionKey: {quoted(text)} is not this node's (it has {node.rest!r}, and keys that begin "
            f"with {node.rest + ':'!r})",
            param="sessionKey",
        )
    return key


def run_id(node: SessionKey, idempotency_key: str | None) -> str | None:
    """Make the id of the run that a node names by a key of its own."""
    return None if idempotency_key is None else scoped_run_id(str(node), idempotency_key)
