"""The demo model's part in conversations, in exchanges and as a sub-agent.

The provenance of the newest message says which step of a flow it is, and who wrote it. Who spoke in what was said
before is read from the headers, as any model does, by the mark that the system prompt names. A text that only looks
like a header or a step is answered like any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from backchannel.core.commands.control_words import ANNOUNCE_SKIP, REPLY_SKIP
from backchannel.core.contracts import ModelRequest
from backchannel.core.flows.exchange_texts import asked_in
from backchannel.core.headers import SESSION_MESSAGE, USER_MESSAGE
from backchannel.core.messages import FlowStep, Message, Provenance, Role
from backchannel.core.text import cut, unfenced

MAX_QUOTE = 120

_MARK = re.compile(rf"`\[([^\s`\[]+) {SESSION_MESSAGE} ")
_FENCED = re.compile(r"^(`{3,})\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
_QUIETLY = re.compile(r"\bquietly\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SpokenPart:
    """The words of one writer in a message that a model is sent."""

    kind: str
    text: str
    source: Provenance | None = None
    """Where the newest part of the message came from; earlier parts have none."""

    @property
    def step(self) -> FlowStep | None:
        return None if self.source is None else self.source.step

    @property
    def is_users(self) -> bool:
        return self.kind == USER_MESSAGE and self.step is not FlowStep.ASK


def header_pattern(mark: str) -> re.Pattern[str]:
    """Make the pattern of the lines that say who speaks from here on."""
    return re.compile(rf"^\[{re.escape(mark)} ([a-z ]+?)(?: \| .*)?\]$", re.MULTILINE)


def parts_of(message: Message, request: ModelRequest) -> list[SpokenPart]:
    """Split a user message at the headers that name another speaker."""
    mark = _MARK.search(request.system)
    first, *rest = header_pattern(mark[1]).split(message.text) if mark else [message.text]
    parts = [(kind, text.strip()) for kind, text in zip(rest[::2], rest[1::2], strict=True)]
    *before, (kind, newest) = [(USER_MESSAGE, first.strip()), *parts] if first.strip() or not parts else parts
    source = message.provenance
    if source is not None and source.step is FlowStep.ASK:
        newest = asked_in(newest)
    return [*(SpokenPart(*part) for part in before), SpokenPart(kind, newest, source)]


def newest_part(request: ModelRequest) -> SpokenPart:
    """Give the part that is to be answered."""
    return parts_of(request.messages[-1], request)[-1]


def said_by_user(request: ModelRequest) -> list[str]:
    """Give the words of the session's own user, oldest first: not those of other sessions, nor of the gateway."""
    messages = (message for message in request.messages if message.role is Role.USER)
    return [part.text for message in messages for part in parts_of(message, request) if part.is_users]


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


def play_part(part: SpokenPart, request: ModelRequest) -> str | None:
    """Answer a turn, an announce step, or the message that wakes a requester; None for anything else."""
    match part.source:
        case Provenance(step=FlowStep.TURN, turn=turn):
            return FOLLOW_UPS.get(turn or 0, REPLY_SKIP)
        case Provenance(step=FlowStep.ANNOUNCE, exchange_id=None):
            return _announce_task(part.text, request)
        case Provenance(step=FlowStep.ANNOUNCE):
            return _announce_reply(part.text)
        case Provenance(step=FlowStep.WAKE):
            return _sum_up(part.text)
    return None


def _announce_reply(text: str) -> str:
    request = next(iter(unfenced(text)), "")
    return ANNOUNCE_SKIP if is_quiet(request) else f"I was asked: “{short(request)}”, and have answered."


def answer_request(part: SpokenPart) -> str:
    """Answer what another session, or a person through `sessions_send`, asks."""
    writer = part.source.source_session_key if part.source else None
    who = f"Hello, {writer}." if writer else "Hello."
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
    return part.step is FlowStep.TASK


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


def _announce_task(text: str, request: ModelRequest) -> str:
    task = next(iter(unfenced(text)), "")
    if is_quiet(task):
        return ANNOUNCE_SKIP
    said = [message.text for message in request.messages if message.role is Role.ASSISTANT]
    return f"On “{short(task)}”: {short(said[-1]) if said else 'nothing was done.'}"


def _sum_up(text: str) -> str:
    posts = iter(unfenced(text))
    lines = [
        f"- “{title[1]}”: {'as told above' if title['is_known'] else _gist(next(posts, ''))}"
        for title in _TITLE.finditer(without_fenced(text))
    ]
    return "\n".join(["My sub-agents have ended:", *lines])


def _gist(post: str) -> str:
    found = _STATUS.match(post)
    return f"{found[1]}. {short(found[2])}" if found else short(post)
