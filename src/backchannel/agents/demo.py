"""The built-in demo model: it understands a few plain requests, offline and without a key.

It is honest about what it is. A request that needs a tool calls the real tool, if this session has it. Otherwise the
model says so. A new request is one more `Skill` in `SKILLS`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import msgspec

from backchannel.agents.demo_talk import (
    NAMED,
    SpokenPart,
    answer_request,
    counts_to,
    do_task,
    is_task,
    newest_part,
    play_part,
    refuse_number,
    said_by_user,
    spawn_arguments,
)
from backchannel.core.budget import estimate_tokens, text_tokens
from backchannel.core.compaction.prompting import asks_for_summary
from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, Price, TextDelta
from backchannel.core.messages import Block, Role, ToolCallBlock, Usage, text_content
from backchannel.core.text import cut

REF = "builtin/demo"
WORD_DELAY_S = 0.012
"""Slow enough that a person sees it stream, and quick enough not to be waited for."""
NUMBER_DELAY_S = 0.05
"""Sub-agents count more slowly: one that is to be watched, or killed, has to be at work for some seconds."""
MOST_PIECES = 1200
"""So that the longest count takes a minute."""
MAX_LINE = 200
STARTED = "Started "
_WORDS = re.compile(r"\S+\s*|\s+")

INTRODUCTION = (
    "I am Backchannel's built-in demo model. I run offline and follow a few fixed rules, so do not expect wit; "
    "with ANTHROPIC_API_KEY or OPENAI_API_KEY set, or a local Ollama, a real model takes my place."
)


SUMMARY = "(The demo model writes no summaries. A real model would tell here what was said before.)"


@dataclass(frozen=True, slots=True)
class Skill:
    """One request that the demo understands."""

    example: str
    pattern: re.Pattern[str]
    answer: Callable[[re.Match[str], ModelRequest], str] | None = None
    """What it says at once; a skill without it uses a tool."""
    tool: str = ""
    arguments: Callable[[re.Match[str]], dict[str, Any]] = lambda match: {}
    times: Callable[[re.Match[str]], int] = lambda match: 1
    """How often it calls the tool, all at once."""
    refuse: Callable[[re.Match[str]], str | None] = lambda match: None
    """What it says instead of calling the tool."""


class DemoModel:
    """A model of a few fixed rules."""

    ref = REF
    context_window = 32_768
    price: Price | None = None
    is_free = True
    sees_images = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        content = decide(request)
        delay_s = WORD_DELAY_S if counts_to(newest_part(request)) is None else NUMBER_DELAY_S
        for block in content:
            if not isinstance(block, ToolCallBlock):
                for piece in pieces_of(getattr(block, "text", "")):
                    await asyncio.sleep(delay_s)  # before the first, too: others do not speak at once
                    yield TextDelta(piece)
        used = sum(estimate_tokens(message) for message in request.messages) + text_tokens(request.system)
        written = sum(text_tokens(getattr(block, "text", "")) for block in content)
        yield ModelReply(content=content, usage=Usage(input=used, output=written), model=REF)


def pieces_of(text: str) -> Iterator[str]:
    """Cut a text into words, or, if it has very many, into so many words at a time."""
    words = _WORDS.findall(text)
    size = len(words) // MOST_PIECES + 1
    return ("".join(words[start : start + size]) for start in range(0, len(words), size))


def decide(request: ModelRequest) -> tuple[Block, ...]:
    """Choose the reply: pure, the same request always gives the same."""
    if asks_for_summary(request):
        return text_content(SUMMARY)
    results = list(takewhile(lambda message: message.role is Role.TOOL_RESULT, reversed(request.messages)))
    if results:
        return text_content(
            describe_tool_results([(result.tool_name or "", result.text) for result in reversed(results)])
        )
    part = newest_part(request)
    if (played := play_part(part, request)) is not None:
        return text_content(played)
    # What another session asks for is looked up with the real tool too; a greeting from it is no call for help.
    for skill in SKILLS if part.is_users else [skill for skill in SKILLS if skill.tool]:
        if match := skill.pattern.fullmatch(part.text):
            return _use(skill, match, request)
    if part.is_users:
        return text_content(_say_back(part, request))
    return text_content(do_task(part) if is_task(part) else answer_request(part))


def _use(skill: Skill, match: re.Match[str], request: ModelRequest) -> tuple[Block, ...]:
    if skill.answer is not None:
        return text_content(skill.answer(match, request))
    if (refusal := skill.refuse(match)) is not None:
        return text_content(refusal)
    if any(tool.name == skill.tool for tool in request.tools):
        call = ToolCallBlock(id="", name=skill.tool, arguments=skill.arguments(match))
        return (call,) * skill.times(match)
    return text_content(f"For that I would call the tool {skill.tool}, which this session does not have.")


def _say_back(part: SpokenPart, request: ModelRequest) -> str:
    count = len(said_by_user(request))
    nth = "the first thing you said here" if count == 1 else f"number {count} of what you said here"
    return f"You said: {part.text}\n\nI keep it in mind as {nth}. Say `help` to see what I understand."


def _help(match: re.Match[str], request: ModelRequest) -> str:
    has = {tool.name for tool in request.tools}
    lines = [
        f"- `{skill.example}`" + ("" if skill.answer or skill.tool in has else " (not in this session)")
        for skill in SKILLS
    ]
    return INTRODUCTION + "\n\nYou can say:\n" + "\n".join(lines)


def _remember(match: re.Match[str], request: ModelRequest) -> str:
    earlier = said_by_user(request)[:-1]
    if not earlier:
        return "Nothing yet: this is the first thing you said here."
    return "You said, in order:\n" + "\n".join(f"{number}. {text}" for number, text in enumerate(earlier, 1))


def _address(word: str) -> str:
    """Read the session that a person means; a plain name, such as `researcher`, is that agent's main session."""
    return f"agent:{word}:main" if _AGENT_NAME.fullmatch(word) else word


# Not what means something else already: `main`, `current`, `node-…`, and the ids of sessions.
_AGENT_NAME = re.compile(r"(?!(?:main|current|node-.*|[0-9a-f-]{32,})$)[a-z0-9][a-z0-9_-]*", re.IGNORECASE)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text + r"\s*[.!?]*", re.IGNORECASE | re.DOTALL)


SKILLS = (
    Skill("help", _pattern(r"help|hello|hi|hey|who are you|what are you|what can you do"), answer=_help),
    Skill(
        "what did I say?",
        _pattern(r"(?:what did i (?:just )?say|what do you remember|recall|remember)"),
        answer=_remember,
    ),
    Skill("list sessions", _pattern(r"(?:list|show)(?: all| my| the)? sessions"), tool="sessions_list"),
    Skill(
        "read <session>",
        _pattern(r"read (?P<session>\S+?)"),
        tool="sessions_history",
        arguments=lambda match: {"sessionKey": _address(match["session"]), "limit": 10},
    ),
    Skill("who can I spawn?", _pattern(r"(?:who can i spawn|list agents)"), tool="agents_list"),
    Skill(
        "ask <session> <question>",
        re.compile(r"ask (?P<session>\S+?)[:,]?\s+(?P<message>.+)", re.IGNORECASE | re.DOTALL),
        tool="sessions_send",
        arguments=lambda match: {"sessionKey": _address(match["session"]), "message": match["message"]},
    ),
    Skill(
        "spawn 3 <task>",
        re.compile(rf"spawn (?P<times>\d{{1,9}})\s+(?:{NAMED})?(?P<task>.+)", re.IGNORECASE | re.DOTALL),
        tool="sessions_spawn",
        arguments=spawn_arguments,
        times=lambda match: int(match["times"]),
        refuse=refuse_number,
    ),
    Skill(
        "spawn researcher count to ten",
        re.compile(rf"spawn {NAMED}(?P<task>.+)", re.IGNORECASE | re.DOTALL),
        tool="sessions_spawn",
        arguments=spawn_arguments,
    ),
    Skill(
        "spawn <task>",
        re.compile(r"spawn (?P<task>.+)", re.IGNORECASE | re.DOTALL),
        tool="sessions_spawn",
        arguments=spawn_arguments,
    ),
)


# What a tool gave, as text for people


def describe_tool_results(results: Sequence[tuple[str, str]]) -> str:
    """Describe the results of tools that were called together, each by name and result."""
    shown = [describe_tool_result(tool, text) for tool, text in results]
    started = sum(text.startswith(STARTED) for text in shown)
    if not started:
        return "\n\n".join(shown)
    whose = "The result is" if started == 1 else "The results are"
    return "\n".join(shown) + f"\n\n{whose} posted here. `/subagents` shows who is at work."


def describe_tool_result(tool: str, text: str) -> str:
    """Put the result of a tool into words; a result without words of its own is shown as it is."""
    try:
        result = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    if not isinstance(result, dict):
        return text
    if result.get("status") in ("forbidden", "error"):
        return f"That did not work: {result.get('error', 'no reason given')}"
    words = _IN_WORDS.get(tool)
    try:
        return words(result) if words else f"{tool} gave:\n\n{text}"
    except (KeyError, TypeError, AttributeError):
        return f"{tool} gave:\n\n{text}"


def _sessions(result: dict[str, Any]) -> str:
    rows = result["sessions"]
    if not rows:
        return "I see no sessions."
    lines = [f"- `{row['key']}` ({row['kind']}, {row['status']}){_label(row)}" for row in rows]
    more = "\n\nThere are more." if "nextCursor" in result else ""
    hidden = "\n\nI may not see all there are." if result["visibility"]["restricted"] else ""
    count = "one session" if len(rows) == 1 else f"{len(rows)} sessions"
    return f"I see {count}:\n" + "\n".join(lines) + more + hidden + "\n\nSay `read <key>` to read one."


def _label(row: dict[str, Any]) -> str:
    return f" “{row['label']}”" if row.get("label") else ""


def _history(result: dict[str, Any]) -> str:
    lines = [f"- {message['role']}: {_line(message)}" for message in result["messages"]]
    if not lines:
        return f"Nothing was said in `{result['sessionKey']}` yet."
    return f"The last that was said in `{result['sessionKey']}`:\n" + "\n".join(lines)


def _line(message: dict[str, Any]) -> str:
    parts = [block["text"] for block in message["content"] if block["type"] == "text"]
    calls = [f"(calls {block['name']})" for block in message["content"] if block["type"] == "toolCall"]
    line = " ".join(" ".join([*parts, *calls]).split())
    return cut(line, MAX_LINE)


def _reply(result: dict[str, Any]) -> str:
    who = f"`{result['sessionKey']}`"
    match result["status"]:
        case "ok":
            reply = result["reply"].strip()
            return f"{who} answered:\n\n{_quoted(reply)}" if reply else f"{who} had nothing to say."
        case "timeout":
            return f"{who} has not answered yet: {result['error']}"
    return f"{who} has the message; I did not wait for the answer."


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _agents(result: dict[str, Any]) -> str:
    names = ", ".join(f"`{agent['id']}`" for agent in result["agents"])
    return f"I may spawn under: {names}."


def _spawned(result: dict[str, Any]) -> str:
    return f"{STARTED}`{result['childSessionKey']}`."


_IN_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "sessions_list": _sessions,
    "sessions_history": _history,
    "agents_list": _agents,
    "sessions_send": _reply,
    "sessions_spawn": _spawned,
}
