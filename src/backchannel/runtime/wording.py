"""Text as it can be stored and sent: models and tools may give halves of characters, which no encoding takes.

A provider that cuts a stream in the middle of a character gives its two halves one after the other; a file name
that is not UTF-8 gives one that never had another.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backchannel.core.messages import Block, TextBlock, ThinkingBlock, ToolCallBlock

DEEPEST = 64
"""How deep the arguments of a tool call may be nested."""
TOO_DEEP = f"(left out: nested deeper than {DEEPEST} levels)"
"""Stands for arguments that are deeper: no JSON object, so the call is answered with an error that says it."""


def whole_text(text: str) -> str:
    """Join the halves of characters, and put a mark where one has no other."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def whole_content(content: tuple[Block, ...]) -> tuple[Block, ...]:
    """Do so in all blocks of a message."""
    return tuple(_whole_block(block) for block in content)


class _TooDeep(ValueError):
    """Arguments are nested deeper than anything that reads them can follow."""


def _whole_block(block: Block) -> Block:
    match block:
        case TextBlock():
            text = whole_text(block.text)
            return block if text is block.text else TextBlock(text=text)
        case ThinkingBlock():
            thinking = whole_text(block.thinking)
            return block if thinking is block.thinking else replace(block, thinking=thinking)
        case ToolCallBlock():
            return replace(block, name=whole_text(block.name), arguments=_whole_arguments(block.arguments))
    return block


def _whole_arguments(arguments: Any) -> Any:
    try:
        return _whole_value(arguments, DEEPEST)
    except _TooDeep:
        return TOO_DEEP


def _whole_value(value: Any, levels: int) -> Any:
    match value:
        case str():
            return whole_text(value)
        case dict() | list() if levels == 0:
            raise _TooDeep
        case dict():
            return {_whole_value(name, 0): _whole_value(inner, levels - 1) for name, inner in value.items()}
        case list():
            return [_whole_value(inner, levels - 1) for inner in value]
    return value
