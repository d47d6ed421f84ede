"""How the demo model knows who speaks to it.

It reads the headers of the gateway like any model, by the mark that its system prompt names: a text that only looks
like a header, a turn or an announce step is what somebody said, and is answered as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from backchannel.core.contracts import ModelRequest
from backchannel.core.exchange_prompts import CONTEXT_LINE
from backchannel.core.headers import SESSION_MESSAGE, USER_MESSAGE
from backchannel.core.messages import Message, Role

MAX_QUOTE = 120

_MARK = re.compile(rf"`\[([^\s`\[]+) {SESSION_MESSAGE} ")
_FROM = re.compile(r'\| from "([^"]*)"')
_TOOL = re.compile(r'\| tool "([^"]*)"')
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
    tool: str | None = None
    """The tool that it came with."""
    is_request: bool = False
    """Whether it came with `sessions_send`, and its writer waits for the reply."""

    @property
    def is_users(self) -> bool:
        return self.kind == USER_MESSAGE and not self.is_request


def header_pattern(mark: str) -> re.Pattern[str]:
    """Make the pattern of the lines that say who speaks from here on."""
    return re.compile(rf"^\[{re.escape(mark)} ([a-z ]+?)((?: \| .*)?)\]$", re.MULTILINE)


def parts_of(message: Message, request: ModelRequest) -> list[Part]:
    """Take a user message apart where headers say that somebody else speaks."""
    mark = _MARK.search(request.system)
    if mark is None:
        return [_part(USER_MESSAGE, message.text)]
    first, *rest = header_pattern(mark[1]).split(message.text)
    parts = [_part(kind, text, facts) for kind, facts, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True)]
    return [_part(USER_MESSAGE, first), *parts] if first.strip() else parts


def _part(kind: str, text: str, facts: str = "") -> Part:
    said = text.strip()
    context = _CONTEXT.search(said)
    writer, tool = _FROM.search(facts), _TOOL.search(facts)
    return Part(
        kind=kind,
        text=said[: context.start()].rstrip() if context else said,
        writer=writer[1] if writer else None,
        tool=tool[1] if tool else None,
        is_request=context is not None,
    )


def newest_part(request: ModelRequest) -> Part:
    """What is to be answered."""
    return parts_of(request.messages[-1], request)[-1]


def said_by_user(request: ModelRequest) -> list[str]:
    """What the session's own user said, oldest first: not other sessions, not the gateway."""
    messages = (message for message in request.messages if message.role is Role.USER)
    return [part.text for message in messages for part in parts_of(message, request) if part.is_users]


def fenced_texts(text: str) -> list[str]:
    """The texts of others that the gateway put between fences, in order."""
    return [match[2] for match in _FENCED.finditer(text)]


def without_fenced(text: str) -> str:
    """What the gateway itself says, with nothing of what it put between fences."""
    return _FENCED.sub("", text)


def is_quiet(text: str) -> bool:
    """Whether somebody asks for something without a word about it."""
    return _QUIETLY.search(text) is not None


def short(text: str) -> str:
    """Bring a text to one line that is not long."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTE else line[: MAX_QUOTE - 1] + "…"
