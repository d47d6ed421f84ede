"""The budget of a request: costs of messages, and the cutting of long ones.

Costs are estimates: no two providers count alike.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from backchannel.core.messages import (
    Block,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    text_content,
    text_of,
)

IMAGE_TOKENS = 1_600
"""What an image is taken to cost; providers count it by its size, and none charges much more."""
MIN_BUDGET = 1_024
"""Below this no conversation is possible, whatever the window says."""
MESSAGE_TOKENS = 4
"""What a provider adds around each message."""
LINE_TOKENS = 64
"""One line of ours, with its header."""

_HEADER_TOKENS = 16  # `[<mark> user message]`, which a joined message may need
_MAX_REPLY_TOKENS = 16_384


def context_budget(context_window: int, system_tokens: int, tool_tokens: int) -> int:
    """Return how many tokens are left for messages, after the prompt, the tools and the reply."""
    reply = min(context_window // 4, _MAX_REPLY_TOKENS)
    return max(context_window - reply - system_tokens - tool_tokens, MIN_BUDGET)


def estimate_tokens(message: Message) -> int:
    """Estimate the tokens of a message, rather too many than too few."""
    content = message.content
    if len(content) == 1 and isinstance(content[0], TextBlock):  # as most are
        return MESSAGE_TOKENS + text_tokens(content[0].text)
    return MESSAGE_TOKENS + sum(map(_block_tokens, content))


def text_tokens(text: str) -> int:
    """Estimate the tokens of a text: one for 3.5 bytes of ASCII, or for 3 bytes of other UTF-8."""
    if text.isascii():
        return len(text) * 2 // 7 + 1
    return len(text.encode(errors="surrogatepass")) // 3 + 1


def _block_tokens(block: Block) -> int:
    match block:
        case TextBlock():
            return text_tokens(block.text)
        case ToolCallBlock():
            arguments = len(msgspec.json.encode(block.arguments)) // 3
            return text_tokens(block.name) + arguments + MESSAGE_TOKENS
        case ThinkingBlock():
            return text_tokens(block.thinking) + text_tokens(block.signature or "")
        case ImageBlock():
            return IMAGE_TOKENS


def squeeze(messages: list[Message], room: int) -> list[Message]:
    """Cut the longest messages to one common length, so that all fit; the same list if they do."""
    sizes = sorted(map(estimate_tokens, messages))
    if sum(sizes) <= room:
        return messages
    left, limit = room, 0
    for i, size in enumerate(sizes):
        limit = left // (len(sizes) - i)
        if size > limit:
            break
        left -= size
    return [cut_message(message, limit) for message in messages]


def cut_message(message: Message, limit: int) -> Message:
    """Cut a message to a number of tokens: drop images that do not fit, and the middle of its text."""
    if estimate_tokens(message) <= limit:
        return message
    room = limit - MESSAGE_TOKENS
    images = [block for block in message.content if isinstance(block, ImageBlock)]
    kept = images[: max(0, room - LINE_TOKENS) // IMAGE_TOKENS]
    notice = f"[images left out: {len(images) - len(kept)}]" if len(kept) < len(images) else ""
    text = _cut_text(text_of(message.content), room - len(kept) * IMAGE_TOKENS - text_tokens(notice))
    lines = "\n".join(line for line in (text, notice) if line)
    return replace(message, content=(*text_content(lines), *kept))


def _cut_text(text: str, limit: int) -> str:
    if text_tokens(text) <= max(limit, _HEADER_TOKENS):
        return text  # the line about the cut would be longer
    raw = text.encode(errors="surrogatepass")
    half = max(0, (limit - _HEADER_TOKENS) * 3 // 2)
    head = raw[:half].decode(errors="ignore")
    tail = raw[len(raw) - half :].decode(errors="ignore")
    return f"{head}\n[characters left out here: {len(text) - len(head) - len(tail)}]\n{tail}".strip()
