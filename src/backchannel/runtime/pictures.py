"""Pictures in a request: read when a model is first shown them.

A picture that is gone never fails a run: a line stands in its place. How many messages show theirs is decided in
`core/cut.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeGuard

from msgspec.structs import replace

from backchannel.core.cut import MOST_PICTURE_BYTES
from backchannel.core.delivery.received import MAX_IMAGE_BYTES, encode_base64
from backchannel.core.messages import Block, ImageBlock, Message, TextBlock
from backchannel.core.requests import NOT_AGAIN
from backchannel.runtime.cluster.media import Media

GONE = "(an image that is no longer there)"
_NOT_SHOWN = TextBlock(text=NOT_AGAIN)


class Pictures:
    """Puts pictures into messages."""

    def __init__(self, media: Media) -> None:
        self._media = media

    async def loaded(self, messages: list[Message]) -> tuple[list[Message], list[int]]:
        """Return the messages with the content of their pictures, and the sizes of those in bytes."""
        if not has_pictures(messages):
            return messages, []
        sizes: list[int] = []
        return [await self._load_into(message, sizes) for message in messages], sizes

    async def _load_into(self, message: Message, sizes: list[int]) -> Message:
        if not has_pictures([message]):
            return message
        room, content, own = MOST_PICTURE_BYTES, list[Block](), list[int]()
        for block in reversed(message.content):
            if not _is_kept(block):
                content.append(block)
                continue
            # The newest is always shown. What is older than one that does not fit is not: something would be missing.
            is_left = room > 0
            shown, size = await self._load(block, room if own else MAX_IMAGE_BYTES) if is_left else (_NOT_SHOWN, 0)
            room -= size or (room if shown is _NOT_SHOWN else 0)
            content.append(shown)
            own.append(size)
        sizes += reversed(own)
        return replace(message, content=tuple(reversed(content)))

    async def _load(self, block: ImageBlock, room: int) -> tuple[Block, int]:
        content = await self._media.load(block.file or "", MAX_IMAGE_BYTES)
        if content is None:
            return TextBlock(text=GONE), 0
        if len(content) > room:
            return _NOT_SHOWN, 0
        data = await asyncio.to_thread(encode_base64, content)
        return ImageBlock(mime_type=block.mime_type, data=data), len(content)


def has_pictures(messages: Sequence[Message]) -> bool:
    """Tell whether a message refers to a picture that a person sent."""
    return any(_is_kept(block) for message in messages for block in message.content)


def _is_kept(block: Block) -> TypeGuard[ImageBlock]:
    return isinstance(block, ImageBlock) and block.file is not None
