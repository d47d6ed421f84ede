"""How the demo model takes part in exchanges, and knows who speaks to it.

It reads the headers of the gateway like any model, by the mark that its system prompt names: a text that only looks
like a header, a turn or an announce step is what somebody said, and is answered as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from backchannel.core.contracts import ModelRequest
from backchannel.core.control_words import ANNOUNCE_SKIP, REPLY_SKIP
from backchannel.core.exchange_prompts import ANNOUNCE_LINE, CONTEXT_LINE, TURN_LINE
from backchannel.core.headers import SESSION_MESSAGE, SYSTEM_MESSAGE, USER_MESSAGE
from backchannel.core.messages import Message, Role

MAX_QUOTE = 120

FOLLOW_UPS = {
    1: "Thank you, that helps. Is there anything else that I should know?",
    2: "You are welcome. That is all from my side; ask again whenever you like.",
}
"""What it says in the first turns; in every later one it stops."""

_MARK = re.compile(rf"`\[(\S+) {SESSION_MESSAGE} ")
_FROM = re.compile(r'\| from "([^"]*)"')
_TURN = re.compile(re.escape(TURN_LINE) + r"(\d+) of \d+\]")
_CONTEXT = re.compile(rf"\n{re.escape(CONTEXT_LINE)}\nAsked by [^\n]+\n[^\n]+\Z")  # it stands last, whatever is quoted
_FENCED = re.compile(r"^(`{3,})\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
_QUIETLY = re.compile(r"\bquietly\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """What one writer said in a message that a model is sent."""

    kind: str
    text: str
    writer: str | None = None
    """The session that wrote it."""
    is_request: bool = False
    """Whether it came with `sessions_send`, and its writer waits for the reply."""

    @property
    def is_users(self) -> bool:
        return self.kind == USER_MESSAGE and not self.is_request


def parts_of(message: Message, request: ModelRequest) -> list[Part]:
    """Take a user message apart where headers say that somebody else speaks."""
    mark = _MARK.search(request.system)
    if mark is None:
        return [_part(USER_MESSAGE, message.text)]
    header = re.compile(rf"^\[{re.escape(mark[1])} ([a-z ]+?)((?: \| .*)?)\]$", re.MULTILINE)
    first, *rest = header.split(message.text)
    parts = [_part(kind, text, facts) for kind, facts, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True)]
    return [_part(USER_MESSAGE, first), *parts] if first.strip() else parts


def _part(kind: str, text: str, facts: str = "") -> Part:
    said = text.strip()
    context = _CONTEXT.search(said)
    writer = _FROM.search(facts)
    return Part(
        kind=kind,
        text=said[: context.start()].rstrip() if context else said,
        writer=writer[1] if writer else None,
        is_request=context is not None,
    )


def newest_part(request: ModelRequest) -> Part:
    """What is to be answered."""
    return parts_of(request.messages[-1], request)[-1]


def said_by_user(request: ModelRequest) -> list[str]:
    """What the session's own user said, oldest first: not other sessions, not the gateway."""
    messages = (message for message in request.messages if message.role is Role.USER)
    return [part.text for message in messages for part in parts_of(message, request) if part.is_users]


def play_part(part: Part) -> str | None:
    """Answer a turn or an announce step; None for anything else."""
    if part.is_request:
        return None
    if part.kind == SESSION_MESSAGE and (turn := _TURN.match(part.text)):
        return FOLLOW_UPS.get(int(turn[1]), REPLY_SKIP)
    if part.kind == SYSTEM_MESSAGE and part.text.startswith(ANNOUNCE_LINE):
        return _announce(part.text)
    return None


def _announce(text: str) -> str:
    fenced = _FENCED.search(text)
    request = " ".join(fenced[2].split()) if fenced else ""
    if _QUIETLY.search(request):
        return ANNOUNCE_SKIP
    return f"I was asked: “{_short(request)}”, and have answered."


def answer_request(part: Part) -> str:
    """Answer what another session, or a person through `sessions_send`, asks."""
    who = f"Hello, {part.writer}." if part.writer else "Hello."
    return (
        f"{who} You asked: “{_short(' '.join(part.text.split()))}”\n\n"
        "All is well here. I am the built-in demo model, so this is all I know about it; a real model would say more."
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_QUOTE else text[: MAX_QUOTE - 1] + "…"
