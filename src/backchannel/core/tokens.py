"""What messages cost of a model's context window, estimated: no two providers count alike."""

from __future__ import annotations

import msgspec

from backchannel.core.messages import Block, ImageBlock, Message, TextBlock, ThinkingBlock, ToolCallBlock

IMAGE_TOKENS = 1_600
"""What an image is taken to cost; providers count it by its size, and none charges much more."""
MIN_BUDGET = 1_024
"""Below this no conversation is possible, whatever the window says."""
MESSAGE_TOKENS = 4
"""What a provider adds around each message."""

_MAX_REPLY_TOKENS = 16_384


def context_budget(context_window: int, system_tokens: int, tool_tokens: int) -> int:
    """Tell how many tokens of messages a model takes beside its prompt, its tools and the reply."""
    reply = min(context_window // 4, _MAX_REPLY_TOKENS)
    return max(context_window - reply - system_tokens - tool_tokens, MIN_BUDGET)


def estimate_tokens(message: Message) -> int:
    """Estimate what a message costs of the context window, rather too much than too little."""
    return MESSAGE_TOKENS + sum(map(_block_tokens, message.content))


def text_tokens(text: str) -> int:
    """Estimate what a text costs: a token for 3.5 bytes of ASCII, or for 3 of UTF-8 otherwise."""
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
