"""Redaction: credentials are hidden from everything that a tool returns.

Stored data is never changed. Values without credentials come back as the same objects, so an ordinary message costs a
few searches and no copy. Redacting twice is redacting once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from msgspec.structs import replace

from backchannel.core.messages import Block, ImageBlock, Message, TextBlock, ThinkingBlock, ToolCallBlock
from backchannel.core.secrets.credentials import REDACTED, Span, find_credentials, find_named_values, is_secret_name

MAX_DEPTH = 64
TOO_DEEP = f"[left out: nested deeper than {MAX_DEPTH} levels]"

_SHORTEST = 6
"""No text with a secret in it is shorter: `pwd=ab`."""
_MOST_PASSES = 4
"""Hiding one secret can uncover another that stood half inside it. Two passes settle almost every text; the limit
keeps the time linear for those that were made to need more."""
_OVERLAP = 4096
"""How much further than what is given a secret is looked for; few are longer."""


def redact(text: str) -> tuple[str, bool]:
    """Hide what looks like a credential, and tell whether anything was hidden.

    A text with nothing to hide comes back as the same object.
    """
    shown = text
    for _ in range(_MOST_PASSES):
        spans = _find(shown)
        if not spans:
            break
        shown = _hide(shown, spans)
    return shown, shown is not text


def credentials_in(text: str) -> list[str]:
    """Find what `redact` would hide at first sight."""
    return [text[start:end] for start, end in _find(text)]


def redact_opening(text: str, limit: int) -> tuple[str, bool]:
    """Hide credentials in the first `limit` characters of a text, and give only those.

    However long the text is, little more of it is looked at than is given.
    """
    opening = text[: limit + _OVERLAP]
    shown, is_hidden = redact(opening)
    if len(opening) < len(text):
        # What stands last may be half of a secret, which no pattern finds: it begins behind the last that was found.
        known, mark, rest = shown.rpartition(REDACTED)
        shown = known + mark + rest[:-_OVERLAP]
    return shown[:limit], is_hidden


def _find(text: str) -> list[Span]:
    if len(text) < _SHORTEST:
        return []
    folded = _fold(text)
    return sorted([*find_credentials(text, folded), *find_named_values(text, folded)])


def _fold(text: str) -> str:
    folded = text.lower()
    if len(folded) == len(text):
        return folded
    # A few letters, such as İ, become two. Places in both texts must be the same.
    return "".join(small if len(small := char.lower()) == 1 else char for char in text)


def _hide(text: str, spans: Iterable[Span]) -> str:
    """Replace each span; those that touch become one."""
    shown: list[str] = []
    at = -1
    for start, end in spans:
        if start > at:
            shown += (text[max(at, 0) : start], REDACTED)
        at = max(at, end)
    return "".join((*shown, text[at:]))


TextRedaction = Callable[[str], tuple[str, bool]]
"""Hides credentials in a text and tells whether there were any, as `redact` does; it may cut the text too."""


def redact_value(value: Any, text: TextRedaction = redact, *, depth: int = 0) -> tuple[Any, bool]:
    """Hide credentials anywhere in a JSON value, keys included; a value with a secret name is hidden as it is."""
    match value:
        case str():
            return text(value)
        case dict() | list() | tuple() if depth >= MAX_DEPTH:
            return TOO_DEEP, False
        case dict():
            return _redact_dict(value, text, depth)
        case list() | tuple():
            items = [redact_value(item, text, depth=depth + 1) for item in value]
            is_same = all(new is old for (new, _), old in zip(items, value, strict=True))
            return (value if is_same else [item for item, _ in items]), any(hidden for _, hidden in items)
    return value, False


def redact_value_opening(value: Any, limit: int) -> Any:
    """Hide credentials in a JSON value of which only the first `limit` characters are shown; leaves the rest out."""
    return redact_value(_opening(value, limit))[0]


def _opening(value: Any, limit: int, depth: int = 0) -> Any:
    match value:
        case str():
            return redact_opening(value, limit)[0]
        case dict() | list() if depth >= MAX_DEPTH:
            return TOO_DEEP
        case dict():
            pairs = islice(value.items(), limit)
            return {redact_opening(name, limit)[0]: _opening(item, limit, depth + 1) for name, item in pairs}
        case list():
            return [_opening(item, limit, depth + 1) for item in value[:limit]]
    return value


def _redact_dict(value: dict[str, Any], text: TextRedaction, depth: int) -> tuple[Any, bool]:
    shown: dict[str, Any] = {}
    is_hidden = False
    for name, item in value.items():
        new_name, name_hidden = text(name)
        if is_secret_name(name):
            new_item, item_hidden = _hide_all(item, depth=depth + 1)
        else:
            new_item, item_hidden = redact_value(item, text, depth=depth + 1)
        shown[new_name] = new_item
        is_hidden |= name_hidden or item_hidden
    pairs = zip(shown.items(), value.items(), strict=False)  # names that became equal leave fewer
    is_same = all(k is a and v is b for (k, v), (a, b) in pairs)
    return (value if is_same else shown), is_hidden


def _hide_all(value: Any, *, depth: int) -> tuple[Any, bool]:
    """Hide every text and number; yes, no and nothing are no secrets."""
    match value:
        case None | bool() | "" | "[redacted]":
            return value, False
        case dict() | list() | tuple() if depth >= MAX_DEPTH:
            return TOO_DEEP, False
        case dict():
            pairs = {redact(name)[0]: _hide_all(item, depth=depth + 1) for name, item in value.items()}
            return {name: item for name, (item, _) in pairs.items()}, any(hidden for _, hidden in pairs.values())
        case list() | tuple():
            items = [_hide_all(item, depth=depth + 1) for item in value]
            return [item for item, _ in items], any(hidden for _, hidden in items)
    return REDACTED, True


def redact_message(message: Message) -> tuple[Message, bool]:
    """Hide credentials in every block, and leave out what no reader can use: signatures and image data."""
    blocks = [redact_block(block) for block in message.content]
    label, label_hidden = redact(message.label) if message.label else (message.label, False)
    is_same = label is message.label and all(new is old for (new, _), old in zip(blocks, message.content, strict=True))
    is_hidden = label_hidden or any(hidden for _, hidden in blocks)
    if is_same:
        return message, is_hidden
    return replace(message, content=tuple(block for block, _ in blocks), label=label), is_hidden


def redact_block(block: Block, text: TextRedaction = redact) -> tuple[Block, bool]:
    """Hide credentials in a block, and leave out what no reader can use."""
    match block:
        case TextBlock():
            said, hidden = text(block.text)
            return (block if said is block.text else TextBlock(text=said)), hidden
        case ThinkingBlock():
            thinking, hidden = text(block.thinking)
            is_same = thinking is block.thinking and not block.signature
            return (block if is_same else ThinkingBlock(thinking=thinking)), hidden
        case ToolCallBlock():
            arguments, hidden = redact_value(block.arguments, text)
            return (block if arguments is block.arguments else replace(block, arguments=arguments)), hidden
        case ImageBlock():
            return _redact_image(block)


def _redact_image(block: ImageBlock) -> tuple[ImageBlock, bool]:
    url, hidden = (None, False) if block.url is None or _is_data(block.url) else redact(block.url)
    return ImageBlock(mime_type=block.mime_type, url=url), hidden


def _is_data(url: str) -> bool:
    return url.lstrip()[:5].lower() == "data:"
