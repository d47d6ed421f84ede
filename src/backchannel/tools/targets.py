"""Targets: the session that a caller means, if the caller may know of it.

One look-up for every tool. A session that the caller may not see is refused before anything about it is told. To a
sandboxed caller, a session that does not exist looks the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from backchannel.core.caller_keys import CallerKeys, LookedUp, RequestAddress, SessionResolved, WrittenAddress
from backchannel.core.keys import ChatType, SessionKey
from backchannel.core.policy.decisions import Decision
from backchannel.core.policy.send_policy import Destination, may_send
from backchannel.core.policy.visibility import OPERATOR, Viewer, sees, unseen
from backchannel.core.policy.visibility import explain as explain_view
from backchannel.core.sessions import Session
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, SessionNotFound
from backchannel.tools.base import Caller, Parts
from backchannel.wire.answers import Explanation
from backchannel.wire.rows import DecisionExplained
from backchannel.wire.shapes import Answer


class RefusedAnswer(Answer, frozen=True, kw_only=True):
    """An outcome that the caller should handle: nothing happened, and why."""

    status: str
    error: str
    session_key: str | None = None


REFUSALS = (
    ("there is no such session", '`{status: "error", error}`'),
    (
        "the caller may not see it",
        '`{status: "forbidden", error}`, which names the setting that decided and the value that would allow it; to a '
        "sandboxed caller a session that does not exist looks the same",
    ),
)
"""How every tool that names a session refuses: for the reference page."""


@dataclass(frozen=True, slots=True)
class Target:
    """A session that the caller may see."""

    session: Session
    key: SessionKey
    shown: str
    """The key as the caller would write it."""

    @property
    def is_archived(self) -> bool:
        return self.session.archived_at is not None


async def find_target(
    parts: Parts, caller: Caller, text: str, *, archived_children: bool = False, archived_own: bool = False
) -> Target | RefusedAnswer:
    """Find the session that a text means, if the caller may see it.

    With `archived_children` it may be a former child; with `archived_own`, the caller's own session that was deleted,
    and any that was deleted for the operator.
    """
    found = await _find(parts, caller, text, archived_children=archived_children, archived_own=archived_own)
    if isinstance(found, RefusedAnswer):
        return found
    at, session = found
    shown = CallerKeys(parts.scheme, caller.key).show(at.key)
    return _missing(parts, caller, shown) if session is None else Target(session, at.key, shown)


def owns(viewer: Viewer, target: Target) -> bool:
    """Whether the former transcripts of a session are the viewer's to read: its own, its children's, or any."""
    return viewer.caller in (None, target.key) or _is_child(viewer, target.session)


async def find_address(parts: Parts, caller: Caller, text: str) -> RequestAddress | RefusedAnswer:
    """Find where a message may be sent: to a session that is there, or to the main session of a configured agent."""
    found = await _find(parts, caller, text)
    if isinstance(found, RefusedAnswer):
        return await _sent_before(parts, caller, text) or found
    at, session = found
    if session is None and not (parts.scheme.is_main(at.key) and at.key.agent in parts.agents.ids()):
        missing = _missing(parts, caller, CallerKeys(parts.scheme, caller.key).show(at.key))
        return await _sent_before(parts, caller, text) or missing
    return at


async def _sent_before(parts: Parts, caller: Caller, text: str) -> RequestAddress | None:
    """Find where a message from outside, which may be the repetition of one that was accepted, went then."""
    if caller.run_id is not None:
        return None  # a call of a run is known by its own id, whatever it names
    try:
        written = CallerKeys(parts.scheme, caller.key).read(text)
    except InvalidRequest:
        return None
    if (key := await addressed_before(parts, written, caller.call_id)) is None:
        return None
    session = await parts.store.session(str(key))
    is_seen = sees(parts.viewer(caller), key, session.spawned_by if session else None).allowed
    return RequestAddress(key, written.session_id) if is_seen else None


async def addressed_before(parts: Parts, written: WrittenAddress, idempotency_key: str | None) -> SessionKey | None:
    """Find the session that a text named once, for a request that may be the repetition of one accepted then.

    Only where its idempotency key is known. The unit that takes the request then answers with what came of the first,
    or refuses another one under that key: it never does anything anew.
    """
    if idempotency_key is None or not await parts.store.is_key_used(idempotency_key):
        return None
    if written.session_id is None:
        return written.key
    entry = await parts.store.session_by_id(written.session_id)
    return None if entry is None else SessionKey.stored(entry.key)


async def _find(
    parts: Parts, caller: Caller, text: str, *, archived_children: bool = False, archived_own: bool = False
) -> tuple[RequestAddress, Session | None] | RefusedAnswer:
    keys, viewer = CallerKeys(parts.scheme, caller.key), parts.viewer(caller)
    try:
        written = keys.read(text)
        found = await look_up(parts, viewer, written, archived_children=archived_children)
        if isinstance(found, RefusedAnswer):
            return found
        # Whether a key exists is told below, to those who may see it.
        resolved = SessionResolved(written.key, True) if written.session_id is None else keys.choose(written, found)
    except (InvalidRequest, SessionNotFound) as error:
        return _not_found(viewer, error.message)
    key, session = resolved.key, await parts.store.session(str(resolved.key))
    decision = sees(viewer, key, session.spawned_by if session else None)
    if not decision.allowed:
        return forbidden(decision)
    is_there = (
        session is not None
        and resolved.session_id in (None, session.session_id)
        and (
            session.archived_at is None
            or (archived_children and _is_child(viewer, session))
            or (archived_own and viewer.caller in (None, key))
        )
    )
    return RequestAddress(key, resolved.session_id), session if is_there else None


def _is_child(viewer: Viewer, session: Session) -> bool:
    """Whether a session is a sub-agent that the viewer started, or any for the operator."""
    return session.spawned_by is not None and (viewer.caller is None or session.spawned_by == str(viewer.caller))


def _missing(parts: Parts, caller: Caller, shown: str) -> RefusedAnswer:
    return _not_found(parts.viewer(caller), f"there is no session {shown!r} (sessions_list shows those you can see)")


async def look_up(
    parts: Parts, viewer: Viewer, written: WrittenAddress, *, archived_children: bool = False
) -> LookedUp | RefusedAnswer:
    """Find what the store knows of a key or session id; an id is refused whose session the viewer may not see."""
    if await parts.store.session(str(written.key)) is not None:
        return LookedUp(key_exists=True)
    if written.session_id is None:
        return LookedUp()
    entry = await parts.store.session_by_id(written.session_id)
    session = None if entry is None else await parts.store.session(entry.key)
    if entry is None:
        return LookedUp()
    if entry.end_reason == "deleted":
        # Its key may live anew: the id never leads to what lives there.
        is_there = session is not None and session.session_id == entry.session_id and _is_child(viewer, session)
        if is_there and archived_children:
            return LookedUp(id_key=SessionKey.stored(entry.key), id_is_current=True)
        return LookedUp(id_is_deleted=True)
    # Which key an id belongs to, or belonged to before a reset, is shown only to those who may see that session.
    decision = sees(viewer, SessionKey.stored(entry.key), session.spawned_by if session else None)
    if not decision.allowed:
        return forbidden(decision)
    return LookedUp(id_key=SessionKey.stored(entry.key), id_is_current=entry.is_current)


def forbidden(decision: Decision) -> RefusedAnswer:
    """Show a decision as the outcome of a tool."""
    return RefusedAnswer(status="forbidden", error=decision.reason)


def _not_found(viewer: Viewer, error: str) -> RefusedAnswer:
    return forbidden(unseen(viewer)) if viewer.hides_existence else RefusedAnswer(status="error", error=error)


LOOKING_TOOLS = ("sessions_list", "sessions_history", "sessions_search", "session_status")
SENDING_TOOL = "sessions_send"


async def explain(parts: Parts, caller: Caller, target: str, channel: str | None, chat_type: str | None) -> Explanation:
    """Explain what the rules say of one session reaching another, without doing anything.

    Raises:
        InvalidRequest: the target is no key, or the chat type is unknown.
        SessionIdReplaced, SessionNotFound: it is the id of no session, or of one that was reset or deleted.
    """
    key = await _explained_key(parts, CallerKeys(parts.scheme, caller.key), target)
    session = await parts.store.session(str(key))
    view = explain_view(parts.viewer(caller), key, session.spawned_by if session else None)
    address = session.address if session else None
    known = session.channel if session and session.channel else (address.channel if address else None)
    destination = Destination.of(key, parts.scheme, channel or known, _chat_type(chat_type))
    policy = may_send(parts.config.session.send_policy, destination, session.send_policy if session else None)
    return Explanation(
        caller="operator" if caller.key is None else _full(parts, caller.key),
        target=_full(parts, key),
        tools=[
            *(_explained(name, view) for name in LOOKING_TOOLS),
            _explained(SENDING_TOOL, policy if view.allowed else view),
        ],
        send=_explained("send", policy),
    )


async def _explained_key(parts: Parts, keys: CallerKeys, target: str) -> SessionKey:
    """Read which session is asked about: an operator asks, so an id is looked up whoever the caller would be."""
    written = keys.read(target)
    if written.session_id is None:
        return written.key
    found = await look_up(parts, OPERATOR, written)
    assert isinstance(found, LookedUp), "an operator sees every session"
    return keys.choose(written, found).key


def _full(parts: Parts, key: SessionKey) -> str:
    return CallerKeys(parts.scheme, None).show(key)


def _chat_type(word: str | None) -> ChatType | None:
    if word is None:
        return None
    try:
        return ChatType(word)
    except ValueError:
        known = ", ".join(ChatType)
        raise InvalidRequest(
            f"chatType: {quoted(word, 64)} is not a type of chat (expected {known})", param="chatType"
        ) from None


def _explained(what: str, decision: Decision) -> DecisionExplained:
    return DecisionExplained(what=what, allowed=decision.allowed, reason=decision.reason, rule=decision.rule)
