"""Hooks: the requests that a program may post to `/hooks`.

A hook speaks to a session of its own, `hook:<uuid>`, or to one that it names. It may name another `hook:` key, or a key
that `hooks.allowSessionKeys` permits. Its reply goes nowhere, or, if it asks for that, to a channel that
`hooks.allowDeliver` names. The door, its token and its limits are in `gateway/hooks.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from backchannel.core.caller_keys import CallerKeys
from backchannel.core.keys import KeyScheme, Kind, SessionKey, read_part
from backchannel.core.messages import Message, Provenance, ProvenanceKind, Role, text_content
from backchannel.core.policy.decisions import Decision, quote
from backchannel.core.policy.send_policy import Destination
from backchannel.core.sessions import Session
from backchannel.core.text import matches
from backchannel.errors import Forbidden, InvalidRequest
from backchannel.storage.ids import new_id

HOOK = "hook"
"""The source channel of what hooks post, and the scope of their idempotency keys."""
ALLOW_SESSION_KEYS = "hooks.allowSessionKeys"
ALLOW_DELIVER = "hooks.allowDeliver"

POSTED = Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel=HOOK)
WOKEN = Provenance(kind=ProvenanceKind.INTERNAL_SYSTEM, source_channel=HOOK)


def new_key(agent: str) -> SessionKey:
    """Make the key of a session for one message."""
    return SessionKey.hook(agent, str(uuid.uuid4()))


def read_key(keys: CallerKeys, text: str, allowed: Sequence[str]) -> SessionKey:
    """Read the session that a hook names. Nothing is looked up: a hook learns of no session whether it exists.

    Raises:
        InvalidSessionKey: it is no key.
        InvalidRequest: it is a session id.
        Forbidden: a hook may not name this session; the message names the setting.
    """
    written = keys.read(text)
    if written.session_id is not None:
        raise InvalidRequest(
            "sessionKey: a session id came (a hook names a key, such as hook:builds)", param="sessionKey"
        )
    decision = may_name(written.key, keys.scheme, allowed)
    if not decision.allowed:
        raise Forbidden(f"sessionKey: {decision.reason}", param="sessionKey", rule=ALLOW_SESSION_KEYS)
    return written.key


def may_name(key: SessionKey, scheme: KeyScheme, allowed: Sequence[str]) -> Decision:
    """Decide whether a hook may name a session; patterns are matched on the key with and without `agent:<id>:`."""
    if scheme.kind(key) is Kind.HOOK:
        return Decision(True, "it is a hook's own kind of key")
    spellings = Destination.of(key, scheme).spellings
    for pattern in allowed:
        if any(matches(part, spelling) for part in read_part(pattern) for spelling in spellings):
            return Decision(True, f"{ALLOW_SESSION_KEYS} has {quote(pattern)}", ALLOW_SESSION_KEYS)
    shown = CallerKeys(scheme, None).show(key)
    reason = f"{quote(shown)} is no hook: key, and {ALLOW_SESSION_KEYS} has no pattern that fits it"
    return Decision(False, f"{reason} (name hook:<something>, or add a pattern there)", ALLOW_SESSION_KEYS)


def check_channel(channel: str, allowed: Sequence[str]) -> None:
    """Refuse a reply that would go where no hook's may go.

    Raises:
        Forbidden: the message names the setting.
    """
    if channel not in allowed:
        there = ", ".join(allowed) or "nothing"
        raise Forbidden(
            f"deliver: {ALLOW_DELIVER} has {there}, and not {quote(channel)} (add it there to let replies go to it)",
            param="channel",
            rule=ALLOW_DELIVER,
        )


def check_return_address(session: Session, allowed: Sequence[str]) -> None:
    """Refuse a reply that has nowhere to go, or may not go where its session would answer.

    Raises:
        InvalidRequest: the session has no return address.
        Forbidden: its channel is not allowed.
    """
    address = session.address
    if address is None:
        raise InvalidRequest("deliver: the session has no return address (name channel and to)", param="channel")
    check_channel(address.channel, allowed)


def wake_note(text: str, now_ms: int) -> Message:
    """Make the note that a wake leaves."""
    return Message(id=new_id(), role=Role.SYSTEM, content=text_content(text), timestamp=now_ms, provenance=WOKEN)
