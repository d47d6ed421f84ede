"""Messages of a transcript, as people read them."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from backchannel.cli.client import Client, Payload
from backchannel.cli.output import WordWrap, clock_time, is_terminal, say, say_dim, say_styled
from backchannel.core.messages import Message
from backchannel.core.readable import text_for_people
from backchannel.core.text import shown_name

_COLOURS = {"user": "green", "assistant": "cyan", "system": "yellow", "toolResult": "magenta"}


def load_last(
    client: Client, session: str, limit: int, *, with_tools: bool = False, as_stored: bool = False
) -> Payload:
    """Load the last messages of a session, as many as asked for after those that say nothing to people are left out."""
    history: Payload = client.call("chat.history", sessionKey=session, limit=limit)
    messages = history["messages"]
    while True:
        wanted = [message for message in messages if is_shown(message, with_tools=with_tools, as_stored=as_stored)]
        if len(wanted) >= limit or not history["hasMore"]:
            break
        older = client.call("chat.history", sessionKey=session, limit=limit, before=messages[0]["id"])
        messages = older["messages"] + messages
        history["hasMore"] = older["hasMore"]
    history["hasMore"] = history["hasMore"] or len(wanted) > limit
    pending = [
        message for message in history["pending"] if is_shown(message, with_tools=with_tools, as_stored=as_stored)
    ]
    return history | {"messages": wanted[-limit:], "pending": pending}


def is_shown(message: Payload, *, with_tools: bool = False, as_stored: bool = False) -> bool:
    """Whether a message says something to people: not the result of a tool, nor calls alone, nor a word for models."""
    if message["role"] == "toolResult":
        return with_tools
    return bool(text_of(message, with_tools=with_tools, as_stored=as_stored))


def text_of(message: Payload, *, with_tools: bool = False, as_stored: bool = False) -> str:
    """The text of a message as people read it, or as it is stored; with tools, also what it calls."""
    stored = "\n".join(str(block["text"]) for block in message["content"] if block["type"] == "text")
    said = stored if as_stored else text_for_people(msgspec.convert({"id": "", "timestamp": 0, **message}, Message))
    shown = [said, *(_block(block, with_tools) for block in message["content"])]
    return "\n".join(text for text in shown if text)


def _block(block: dict[str, Any], with_tools: bool) -> str:
    match block["type"]:
        case "image":
            return f"[image {block.get('mimeType', '')}]"
        case "toolCall" if with_tools:
            return f"→ {block['name']} {msgspec.json.encode(block['arguments']).decode()}"
    return ""


def _writer(message: Payload) -> str:
    """Tell who wrote a message: not everything that stands for a user's message was written by one."""
    role: str = message["role"]
    if role == "toolResult":
        return f"{message.get('toolName', 'tool')}{' failed' if message.get('isError') else ''}"
    match message.get("provenance"):
        case {"kind": "inter_session", "sourceSessionKey": str(key)}:
            return key
        case {"kind": "internal_system"}:
            return "system"
    match message.get("sender"):
        case {"name": str(name)} | {"id": str(name)}:
            return shown_name(name) or role
    return role


def show_message(
    message: Payload, *, with_tools: bool = False, as_stored: bool = False, is_pending: bool = False
) -> None:
    """Print a message: who, when and what."""
    who = _writer(message)
    when = "not read yet" if is_pending else clock_time(message["timestamp"])
    text = text_of(message, with_tools=with_tools, as_stored=as_stored)
    if is_terminal(sys.stdout):
        say_styled(who, end=" ", fg=_COLOURS.get(message["role"]), bold=True)
        say_dim(when)
        say(WordWrap().feed(text) + "\n")
    else:
        say(f"[{when}] {who}: {text}")
