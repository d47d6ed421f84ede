"""What the rules would say of one session reaching another, without doing anything."""

from __future__ import annotations

from backchannel.core.caller_keys import CallerKeys
from backchannel.core.decisions import Decision
from backchannel.core.keys import ChatType, SessionKey
from backchannel.core.send_policy import Destination, may_send
from backchannel.core.visibility import explain as explain_view
from backchannel.errors import InvalidRequest
from backchannel.tools.inputs import Answer
from backchannel.tools.parts import Caller, Parts

LOOKING_TOOLS = ("sessions_list", "sessions_history", "session_status")
SENDING_TOOL = "sessions_send"


class Explained(Answer, frozen=True, kw_only=True):
    """One decision: what was asked, the answer, and the setting that gave it."""

    what: str
    allowed: bool
    reason: str
    rule: str | None = None


class Explanation(Answer, frozen=True, kw_only=True):
    caller: str
    target: str
    tools: list[Explained]
    send: Explained


async def explain(parts: Parts, caller: Caller, target: str, channel: str | None, chat_type: str | None) -> Explanation:
    """Tell what each tool and each send would be told.

    Raises:
        InvalidRequest: the target is no key, or the chat type is unknown.
    """
    key = CallerKeys(parts.scheme, caller.key).read(target).key
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


def _full(parts: Parts, key: SessionKey) -> str:
    return CallerKeys(parts.scheme, None).show(key)


def _chat_type(word: str | None) -> ChatType | None:
    if word is None:
        return None
    try:
        return ChatType(word)
    except ValueError:
        known = ", ".join(ChatType)
        raise InvalidRequest(f"chatType: {word[:64]!r} is not one (expected {known})", param="chatType") from None


def _explained(what: str, decision: Decision) -> Explained:
    return Explained(what=what, allowed=decision.allowed, reason=decision.reason, rule=decision.rule)
