"""Prompts for each step of an exchange.

Text of others stands between fences that it cannot close. Names that others chose are quoted. These texts say
what the step is. The header of a message says who wrote it, and only the gateway can write a header.
"""

from __future__ import annotations

from backchannel.core.commands.control_words import ANNOUNCE_SKIP, REPLY_SKIP
from backchannel.core.flows.exchange_values import Exchange, Party
from backchannel.core.headers import quote_name
from backchannel.core.text import fenced, joined

CONTEXT_LINE = "[Agent-to-agent context]"
"""Opens the context that follows a session's message."""
TURN_LINE = "[Agent-to-agent exchange, reply-back turn "
"""Begins the first line of a turn; its number follows."""
EXCHANGE_ANNOUNCE_LINE = "[Agent-to-agent exchange, announce step]"
"""Opens the announce step."""
LATE_LINE = "[Late reply from "
FAILURE_LINE = "[No reply from "
"""Begin a note; the session follows."""

_KEY_LIMIT = 512  # a key or id that is cut could not be passed back


def primary_texts(exchange: Exchange) -> tuple[str, str]:
    """Give the message as it was sent, then the context: who asks, and who is asked."""
    return exchange.request, joined(
        CONTEXT_LINE,
        f"Asked by {_asker(exchange)}, with sessions_send. You are the one asked: {_session(exchange.target)}.",
        "Your reply to the message above goes back to the one who asks, not to a chat.",
    )


def asked_in(text: str) -> str:
    """Give the message of `primary_texts` without its context, when the two were joined to one text."""
    return text.rpartition(CONTEXT_LINE)[0].rstrip() or text


def turn_text(exchange: Exchange) -> str:
    """Give one side the other's latest reply, for the turn that the exchange is at."""
    is_first = exchange.turn == 1
    return joined(
        f"{TURN_LINE}{exchange.turn} of {exchange.max_turns}]",
        _roles(exchange),
        _belongs(exchange) if is_first else "",
        "The other session's reply:",
        fenced(exchange.latest),
        f"Your answer goes to that session, not to a chat. If nothing is left to say, reply with exactly {REPLY_SKIP}"
        " to stop.",
    )


def announce_text(exchange: Exchange) -> str:
    """Ask the target what, if anything, its own chat should be told."""
    channel = exchange.address.channel if exchange.address else exchange.target.channel
    return joined(
        EXCHANGE_ANNOUNCE_LINE,
        f"The exchange is over. You are the one asked: {_session(exchange.target)}. Asked by {_asker(exchange)}.",
        f"Your reply is posted as it is to this session's chat on {quote_name(channel)}, where people read it."
        f" To post nothing, reply with exactly {ANNOUNCE_SKIP}. You have no tools in this step.",
        "The original request:",
        fenced(exchange.request),
        "Your first reply:",
        fenced(exchange.reply),
        *_latest(exchange),
    )


def late_reply_text(exchange: Exchange) -> str:
    """Tell a requester, which no longer waits and gets no turn, what the target replied."""
    return joined(
        f"{LATE_LINE}{_session(exchange.target)}]",
        f"It belongs to {_call(exchange)}: this is the reply you were no longer waiting for. It asks for no answer.",
        fenced(exchange.reply),
    )


def failure_text(exchange: Exchange, why: str) -> str:
    """Tell a requester, which no longer waits, that there will be no reply."""
    return joined(
        f"{FAILURE_LINE}{_session(exchange.target)}]",
        f"It belongs to {_call(exchange)}: you were no longer waiting, and the run has failed. It asks for no answer.",
        fenced(why),
    )


def _roles(exchange: Exchange) -> str:
    you, other = exchange.speaker, exchange.target
    role = "the requester, which asked first"
    if you is exchange.target and exchange.requester is not None:
        other, role = exchange.requester, "the target, which was asked"
    return f"You are {role}: {_session(you)}. The other is {_session(other)}."


def _belongs(exchange: Exchange) -> str:
    """Say where the reply of turn 1 belongs, and whether the requester has seen it."""
    if exchange.call_id is None:
        return f"This turn belongs to {_call(exchange)}: this is the reply."
    known = "you already have this reply as its result"
    late = "this is the reply you were no longer waiting for"
    return f"This turn belongs to {_call(exchange)}: {known if exchange.has_reply else late}."


def _call(exchange: Exchange) -> str:
    """Name the call, with the beginning of its message: models do not see the ids of calls."""
    wrote = quote_name(exchange.request)
    if exchange.call_id is None:
        return f"a message that a program sent in this session's name, {wrote}"
    return f"your sessions_send call {quote_name(exchange.call_id, limit=_KEY_LIMIT)}, in which you wrote {wrote}"


def _asker(exchange: Exchange) -> str:
    return "the operator" if exchange.requester is None else _session(exchange.requester)


def _session(party: Party) -> str:
    return f"session {quote_name(party.name, limit=_KEY_LIMIT)} (channel {quote_name(party.channel)})"


def _latest(exchange: Exchange) -> tuple[str, ...]:
    if exchange.latest == exchange.reply:
        return ("The latest reply is the same; there was no further one.",)
    return "The latest reply of the exchange:", fenced(exchange.latest)
