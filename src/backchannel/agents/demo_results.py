"""How the demo model tells a tool's result: as text for people, not as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

MAX_LINE = 200
STARTED = "Started "


def tell_results(results: Sequence[tuple[str, str]]) -> str:
    """Tell what the tools gave that were called together, each as its name and its result."""
    told = [tell_result(tool, text) for tool, text in results]
    started = sum(text.startswith(STARTED) for text in told)
    if not started:
        return "\n\n".join(told)
    whose = "What comes of it" if started == 1 else "What comes of them"
    return "\n".join(told) + f"\n\n{whose} is told here. `/subagents` shows who is at work."


def tell_result(tool: str, text: str) -> str:
    """Tell what a tool gave; what cannot be told better is shown as it is."""
    try:
        result = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    if not isinstance(result, dict):
        return text
    if result.get("status") in ("forbidden", "error"):
        return f"That did not work: {result.get('error', 'no reason given')}"
    tell = _TELLERS.get(tool)
    try:
        return tell(result) if tell else f"{tool} gave:\n\n{text}"
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
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


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


_TELLERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "sessions_list": _sessions,
    "sessions_history": _history,
    "agents_list": _agents,
    "sessions_send": _reply,
    "sessions_spawn": _spawned,
}
