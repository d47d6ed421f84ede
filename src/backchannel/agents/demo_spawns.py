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

HIGHEST = 100_000
"""As far as it counts."""
MOST_AT_ONCE = 20
"""As many sub-agents as a session may have at work, unless `maxChildren` says otherwise."""
NAMED = r"(?P<agent>(?!quietly\b)[a-z0-9][a-z0-9_-]*)(?::\s+|\s+(?=(?:quietly[:,]?\s+)?count\s))"
"""An agent before a task; it is told from the task's own words by a colon, or by what every sub-agent can do."""

_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_COUNT = re.compile(r"(?:quietly[:,]?\s+)?count (?:up )?to (\w+|[\d,]{1,12})\s*[.!]*", re.IGNORECASE)
_TITLE = re.compile(r'^Sub-agent .*task "([^"]*)":(?P<is_known> its result is above already\.)?$', re.MULTILINE)
_STATUS = re.compile(r"Status: (\w+)\nResult: (.*?)(?=\n(?:Notes|Stats): |\Z)", re.DOTALL)


def is_task(part: Part) -> bool:
    """Whether this is what a sub-agent was started for."""
    return part.kind == SESSION_MESSAGE and part.tool == SOURCE_TOOL


def do_task(part: Part) -> str:
    """Do what a sub-agent can do without a real model: count."""
    last = counts_to(part)
    if last is None:
        return "I am the built-in demo model, and counting is all I can do by myself; a real model would have done it."
    if last > HIGHEST:
        return f"I count to {HIGHEST:,} at most, so I did not begin."
    return ", ".join(map(str, range(1, last + 1)))


def counts_to(part: Part) -> int | None:
    """Tell how far a sub-agent is to count; None when it is to do something else."""
    counted = _COUNT.fullmatch(part.text) if is_task(part) else None
    return _number(counted[1].lower().replace(",", "")) if counted else None


def _number(word: str) -> int | None:
    if word in _WORDS:
        return _WORDS.index(word) + 1
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 100 and int(word) > 0 else None


def spawn_arguments(match: re.Match[str]) -> dict[str, str]:
    """Read what `sessions_spawn` is called with: the task, and the agent if one is named."""
    agent = match.groupdict().get("agent")
    return {"task": match["task"]} | ({"agentId": agent} if agent else {})


def refuse_number(match: re.Match[str]) -> str | None:
    """Say so when somebody wants none, or more than are allowed."""
    if int(match["times"]) == 0:
        return f"That would be none. Say how many, from 1 to {MOST_AT_ONCE}: `spawn 3 {short(match['task'])}`"
    if int(match["times"]) > MOST_AT_ONCE:
        limit = "unless `agents.defaults.subagents.maxChildren` says otherwise"
        return f"A session has at most {MOST_AT_ONCE} sub-agents at work, {limit}; I start no more than that at once."
    return None


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
