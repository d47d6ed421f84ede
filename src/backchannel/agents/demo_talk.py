"""The demo model's part in exchanges and as a sub-agent, and how it reads headers.

It reads the headers of the gateway like any model, by the mark that its system prompt names. A text without the mark
that looks like a header, a turn or an announce step is what somebody said. It is answered as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from backchannel.core.commands.control_words import ANNOUNCE_SKIP, REPLY_SKIP
from backchannel.core.contracts import ModelRequest
from backchannel.core.flows.exchange_texts import CONTEXT_LINE, EXCHANGE_ANNOUNCE_LINE, TURN_LINE
from backchannel.core.flows.spawn import SPAWN_TOOL
from backchannel.core.flows.spawn_texts import SPAWN_ANNOUNCE_LINE, WAKE_LINE
from backchannel.core.headers import SESSION_MESSAGE, SYSTEM_MESSAGE, USER_MESSAGE
from backchannel.core.messages import Message, Role
from backchannel.core.text import cut

MAX_QUOTE = 120

_MARK = re.compile(rf"`\[([^\s`\[]+) {SESSION_MESSAGE} ")
_FROM = re.compile(r'\| from "([^"]*)"')
_TOOL = re.compile(r'\| tool "([^"]*)"')
_CONTEXT = re.compile(rf"\n{re.escape(CONTEXT_LINE)}\nAsked by [^\n]+\n[^\n]+\Z")  # it stands last, whatever is quoted
_FENCED = re.compile(r"^(`{3,})\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
_QUIETLY = re.compile(r"\bquietly\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SpokenPart:
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


def parts_of(message: Message, request: ModelRequest) -> list[SpokenPart]:
    """Split a user message at the headers that name another speaker."""
    mark = _MARK.search(request.system)
    if mark is None:
        return [_part(USER_MESSAGE, message.text)]
    first, *rest = header_pattern(mark[1]).split(message.text)
    parts = [_part(kind, text, facts) for kind, facts, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True)]
    return [_part(USER_MESSAGE, first), *parts] if first.strip() else parts


def _part(kind: str, text: str, facts: str = "") -> SpokenPart:
    said = text.strip()
    context = _CONTEXT.search(said)
    writer, tool = _FROM.search(facts), _TOOL.search(facts)
    return SpokenPart(
        kind=kind,
        text=said[: context.start()].rstrip() if context else said,
        writer=writer[1] if writer else None,
        tool=tool[1] if tool else None,
        is_request=context is not None,
    )


def newest_part(request: ModelRequest) -> SpokenPart:
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
    """Whether the message asks for a silent answer."""
    return _QUIETLY.search(text) is not None


def short(text: str) -> str:
    """Bring a text to one line that is not long."""
    line = " ".join(text.split())
    return cut(line, MAX_QUOTE)


# Exchanges: as the one asked, in turns and in announces

FOLLOW_UPS = {
    1: "Thank you, that helps. Is there anything else that I should know?",
    2: "You are welcome. That is all from my side; ask again whenever you like.",
}
"""What it says in the first turns; in every later one it stops."""

_TURN = re.compile(re.escape(TURN_LINE) + r"(\d+) of \d+\]")


def play_part(part: SpokenPart) -> str | None:
    """Answer a turn or an announce step; None for anything else."""
    if part.is_request:
        return None
    if part.kind == SESSION_MESSAGE and (turn := _TURN.match(part.text)):
        return FOLLOW_UPS.get(int(turn[1]), REPLY_SKIP)
    if part.kind == SYSTEM_MESSAGE and part.text.startswith(EXCHANGE_ANNOUNCE_LINE):
        return _announce_reply(part.text)
    return None


def _announce_reply(text: str) -> str:
    request = next(iter(fenced_texts(text)), "")
    return ANNOUNCE_SKIP if is_quiet(request) else f"I was asked: “{short(request)}”, and have answered."


def answer_request(part: SpokenPart) -> str:
    """Answer what another session, or a person through `sessions_send`, asks."""
    who = f"Hello, {part.writer}." if part.writer else "Hello."
    return (
        f"{who} You asked: “{short(part.text)}”\n\n"
        "All is well here. I am the built-in demo model, so this is all I know about it; a real model would say more."
    )


# Sub-agents: as one of them, and when its own have ended

HIGHEST = 100_000
"""As far as it counts."""
_MOST_AT_ONCE = 20
"""As many sub-agents as a session may have at work, unless `maxChildren` says otherwise."""
NAMED = r"(?P<agent>(?!quietly\b)[a-z0-9][a-z0-9_-]*)(?::\s+|\s+(?=(?:quietly[:,]?\s+)?count\s))"
"""An agent before a task; a colon separates it from the task's own words, or by what every sub-agent can do."""

_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_COUNT = re.compile(r"(?:quietly[:,]?\s+)?count (?:up )?to (\w+|[\d,]{1,12})\s*[.!]*", re.IGNORECASE)
_TITLE = re.compile(r'^Sub-agent .*task "([^"]*)":(?P<is_known> its result is above already\.)?$', re.MULTILINE)
_STATUS = re.compile(r"Status: (\w+)\nResult: (.*?)(?=\n(?:Notes|Stats): |\Z)", re.DOTALL)


def is_task(part: SpokenPart) -> bool:
    """Whether this is what a sub-agent was started for."""
    return part.kind == SESSION_MESSAGE and part.tool == SPAWN_TOOL


def do_task(part: SpokenPart) -> str:
    """Do what a sub-agent can do without a real model: count."""
    last = counts_to(part)
    if last is None:
        return "I am the built-in demo model, and counting is all I can do by myself; a real model would have done it."
    if last > HIGHEST:
        return f"I count to {HIGHEST:,} at most, so I did not begin."
    return ", ".join(map(str, range(1, last + 1)))


def counts_to(part: SpokenPart) -> int | None:
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
    """Reply to a number of sub-agents that is none, or more than are allowed."""
    if int(match["times"]) == 0:
        return f"That would be none. Say how many, from 1 to {_MOST_AT_ONCE}: `spawn 3 {short(match['task'])}`"
    if int(match["times"]) > _MOST_AT_ONCE:
        limit = "unless `agents.defaults.subagents.maxChildren` says otherwise"
        return f"A session has at most {_MOST_AT_ONCE} sub-agents at work, {limit}; I start no more than that at once."
    return None


def play_step(part: SpokenPart, request: ModelRequest) -> str | None:
    """Answer an announce step, or the message that wakes a requester; None for anything else."""
    if part.kind != SYSTEM_MESSAGE:
        return None
    if part.text.startswith(SPAWN_ANNOUNCE_LINE):
        return _announce_task(part.text, request)
    return _sum_up(part.text) if part.text.startswith(WAKE_LINE) else None


def _announce_task(text: str, request: ModelRequest) -> str:
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
