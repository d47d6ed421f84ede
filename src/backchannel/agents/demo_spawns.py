"""How the demo model works as a sub-agent, and what it says when its own sub-agents have ended."""

from __future__ import annotations

import re

from backchannel.agents.demo_parts import Part, fenced_texts, is_quiet, short, without_fenced
from backchannel.core.contracts import ModelRequest
from backchannel.core.control_words import ANNOUNCE_SKIP
from backchannel.core.headers import SESSION_MESSAGE, SYSTEM_MESSAGE
from backchannel.core.messages import Role
from backchannel.core.spawn import SOURCE_TOOL
from backchannel.core.spawn_texts import ANNOUNCE_LINE, WAKE_LINE

HIGHEST = 1000
"""As far as it counts."""

_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_COUNT = re.compile(r"(?:quietly[:,]?\s+)?count (?:up )?to (\w+)\s*[.!]*", re.IGNORECASE)
_TITLE = re.compile(r'^Sub-agent .*task "([^"]*)":(?P<is_known> its result is above already\.)?$', re.MULTILINE)
_STATUS = re.compile(r"Status: (\w+)\nResult: (.*?)(?=\n(?:Notes|Stats): |\Z)", re.DOTALL)


def is_task(part: Part) -> bool:
    """Whether this is what a sub-agent was started for."""
    return part.kind == SESSION_MESSAGE and part.tool == SOURCE_TOOL


def do_task(part: Part) -> str:
    """Do what a sub-agent can do without a real model: count."""
    last = _number(counted[1]) if (counted := _COUNT.fullmatch(part.text)) else None
    if last is not None:
        return ", ".join(map(str, range(1, last + 1)))
    return "I am the built-in demo model, and counting is all that I can do by myself; a real model would have done it."


def _number(word: str) -> int | None:
    if word.lower() in _WORDS:
        return _WORDS.index(word.lower()) + 1
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 5 and 0 < int(word) <= HIGHEST else None


def play_step(part: Part, request: ModelRequest) -> str | None:
    """Answer an announce step, or the message that wakes a requester; None for anything else."""
    if part.kind != SYSTEM_MESSAGE:
        return None
    if part.text.startswith(ANNOUNCE_LINE):
        return _announce(part.text, request)
    return _sum_up(part.text) if part.text.startswith(WAKE_LINE) else None


def _announce(text: str, request: ModelRequest) -> str:
    task = next(iter(fenced_texts(text)), "")
    if is_quiet(task):
        return ANNOUNCE_SKIP
    said = [message.text for message in request.messages if message.role is Role.ASSISTANT]
    return f"On “{short(task)}”: {short(said[-1]) if said else 'nothing was done.'}"


def _sum_up(text: str) -> str:
    posts = iter(fenced_texts(text))
    lines = [
        f"- “{title[1]}”: {'as told above' if title['is_known'] else _gist(next(posts, ''))}"
        for title in _TITLE.finditer(without_fenced(text))
    ]
    return "\n".join(["My sub-agents have ended:", *lines])


def _gist(post: str) -> str:
    found = _STATUS.match(post)
    return f"{found[1]}. {short(found[2])}" if found else short(post)
