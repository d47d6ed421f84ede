"""What `/subagents` says: the children of a session as a list, one in full, and its last words.

A child is named by its number, its label, its key, or the beginning of its id. Children are numbered in the order in
which they were started, so a number that somebody has read still means the same child when another was started since.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backchannel.core.cutting import reading_text
from backchannel.core.headers import quote_name
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Block, Message, TextBlock, ThinkingBlock, ToolCallBlock
from backchannel.core.redaction import redact_opening, redact_value_opening
from backchannel.core.spawn_texts import show_cost, show_duration, show_tokens

ALL = "all"
"""Names every child, for `/subagents stop`."""
LISTED = 50
LOGGED = 10
_ID_SHOWN = 8
_ID_BEGINS = 4
"""So much of an id names a child at least."""
_LINE_LIMIT = 300
_LOOKED_AT = 4000
"""How much of a text is looked at for its line; white space at its beginning is none of it."""


class ChildView(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a child."""

    number: int
    key: SessionKey
    doing: str
    """Such as `running`, `ok` or `error`."""
    label: str | None = None
    task: str | None = None
    model: str | None = None
    runtime_ms: int | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    receipt: str | None = None
    is_archived: bool = False

    @property
    def id(self) -> str:
        return self.key.path[-1]

    @property
    def name(self) -> str:
        return quote_name(self.label) if self.label else self.id[:_ID_SHOWN]


def find_child(children: Sequence[ChildView], written: str) -> ChildView | None:
    """Find the child that somebody means; None when it is none of them, or could be several."""
    name = written.strip('"').lower()  # a list shows labels in quotes
    ways = (
        [child for child in children if written == str(child.number)],
        [child for child in children if written in (child.label, str(child.key), child.id)],
        [child for child in children if name == (child.label or "").lower()],
        [child for child in children if len(name) >= _ID_BEGINS and child.id.startswith(name)],
    )
    found = next((way for way in ways if way), [])
    return found[0] if len(found) == 1 else None


def list_text(children: Sequence[ChildView], left_out: int) -> str:
    """Write what `/subagents list` answers."""
    if not children:
        return "This session has started no sub-agents."
    lines = [f"{child.number}. {_line(child)}" for child in children]
    return "\n".join([*lines, *([f"({left_out} older ones are not shown)"] if left_out else [])])


def _line(child: ChildView) -> str:
    facts = [child.doing]
    if child.runtime_ms is not None:
        facts.append(show_duration(child.runtime_ms))
    if child.receipt is not None and child.receipt != "pending":
        facts.append(child.receipt)
    if child.is_archived:
        facts.append("archived")
    task = f": {quote_name(redact_opening(child.task, _LOOKED_AT)[0])}" if child.task else ""
    return f"{child.name}, {', '.join(facts)}{task}"


def info_text(child: ChildView) -> str:
    """Write what `/subagents info` answers."""
    facts = [
        f"Sub-agent {child.name}: {child.doing}{', archived' if child.is_archived else ''}",
        f"Task: {_short(redact_opening(child.task, _LOOKED_AT)[0])}" if child.task else None,
        f"Model: {child.model}" if child.model else None,
        f"Runtime: {show_duration(child.runtime_ms)}" if child.runtime_ms is not None else None,
        f"Tokens: {show_tokens(child.tokens_in, child.tokens_out)}",
        f"Cost: {show_cost(child.cost)}" if child.cost is not None else None,
        f"Result: {child.receipt}" if child.receipt else None,
        f"Session: {child.key}",
    ]
    return "\n".join(fact for fact in facts if fact)


def log_text(child: ChildView, messages: Sequence[Message]) -> str:
    """Write what `/subagents log` answers: the child's last messages, without what looks like a credential."""
    lines = [f"{message.role}: {_short(said)}" for message in messages if (said := _said(message))]
    return "\n".join(lines) or f"Sub-agent {child.name} has written nothing yet."


def _said(message: Message) -> str:
    """Give what a person reads of a message's beginning; thoughts are left out."""
    content = tuple(_opening(block) for block in message.content[:_LINE_LIMIT] if not isinstance(block, ThinkingBlock))
    return reading_text(msgspec.structs.replace(message, content=content))


def _opening(block: Block) -> Block:
    match block:
        case TextBlock():
            return TextBlock(text=redact_opening(block.text, _LOOKED_AT)[0])
        case ToolCallBlock():
            return msgspec.structs.replace(block, arguments=redact_value_opening(block.arguments, _LINE_LIMIT))
    return block


def unknown_text(written: str, children: Sequence[ChildView]) -> str:
    """Answer somebody who named a child that there is not."""
    if not children:
        return list_text(children, 0)
    return (
        f"No sub-agent here is {quote_name(written)}: name it by its number in `/subagents list`, its label or its id."
    )


def stopped_text(child: ChildView, runs: int) -> str:
    """Write what `/subagents stop` answers."""
    return f"Stopped sub-agent {child.name}." if runs else f"Sub-agent {child.name} is not running."


def stopped_all_text(count: int) -> str:
    """Write what `/subagents stop all` answers."""
    return f"Stopped {count} sub-agent{'' if count == 1 else 's'}." if count else "No sub-agent is running here."


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_LIMIT else f"{line[: _LINE_LIMIT - 1]}…"
