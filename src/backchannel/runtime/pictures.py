"""Pictures in a request: read when a model is asked, and kept nowhere.

The newest is always shown. One request has room for only so many, because every request of a conversation carries them
all again. A line stands for each of the others. A picture that is gone, or a model that sees none, never fails a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeGuard

from msgspec.structs import replace

from backchannel.core.contracts import Model, ModelRequest, sees_images
from backchannel.core.delivery.received import MAX_IMAGE_BYTES, encode_base64
from backchannel.core.messages import Block, ImageBlock, Message, TextBlock
from backchannel.runtime.cluster.media import Media

MOST_PICTURES_SHOWN = 20
MOST_BYTES = 4 * 1024 * 1024
"""Of all pictures of a request together, unless the newest alone has more."""
UNSEEN = "(an image, which this model cannot see)"
GONE = "(an image that is no longer there)"
EARLIER = "(an earlier image, which is not shown again)"
IMAGE_REFUSED = "(an image that the model did not take)"


class Pictures:
    """Puts pictures into requests."""

    def __init__(self, media: Media) -> None:
        self._media = media

    async def shown(self, request: ModelRequest) -> ModelRequest:
        """Give the request with what its pictures show; one that refers to none is returned as it is."""
        kept = _newest_first(request.messages)
        if not kept:
            return request
        blocks = await self._read(kept)
        return replace(request, messages=tuple(_with_blocks(request.messages, blocks)))

    async def _read(self, kept: Sequence[ImageBlock]) -> list[Block]:
        blocks: list[Block] = []
        room = MOST_BYTES
        for block in kept:
            content = await self._media.load(block.file or "", MAX_IMAGE_BYTES)
            if content is None:
                blocks.append(TextBlock(text=GONE))
            elif len(content) > room and room < MOST_BYTES:
                break  # what is older is not looked for: it may be small, and what came between would be missing
            else:
                room -= len(content)
                blocks.append(await asyncio.to_thread(_shown, block.mime_type, content))
        return [*blocks, *(TextBlock(text=EARLIER) for _ in kept[len(blocks) :])]


def _shown(mime_type: str, content: bytes) -> ImageBlock:
    return ImageBlock(mime_type=mime_type, data=encode_base64(content))


def limited(messages: list[Message], model: Model) -> list[Message]:
    """Give messages with a line for each picture that this model is not shown, so that it costs no more than that."""
    most, line = (MOST_PICTURES_SHOWN, EARLIER) if sees_images(model) else (0, UNSEEN)
    kept = _newest_first(messages)
    if len(kept) <= most:
        return messages
    return _with_blocks(messages, [*kept[:most], *(TextBlock(text=line) for _ in kept[most:])])


def told(request: ModelRequest, line: str) -> ModelRequest:
    """Give the request with a line in the place of each picture."""
    lines = [TextBlock(text=line) for _ in _newest_first(request.messages)]
    return replace(request, messages=tuple(_with_blocks(request.messages, lines)))


def _newest_first(messages: Sequence[Message]) -> list[ImageBlock]:
    """List the pictures in one go: every run looks through its whole transcript for them."""
    images = [block for message in messages for block in message.content if isinstance(block, ImageBlock)]
    return [image for image in reversed(images) if image.file is not None]


def _is_kept(block: Block) -> TypeGuard[ImageBlock]:
    return isinstance(block, ImageBlock) and block.file is not None


def _with_blocks(messages: Sequence[Message], blocks: Sequence[Block]) -> list[Message]:
    """Put blocks in the place of the pictures, the newest first."""
    left = iter(blocks)
    filled: list[Message] = []
    for message in reversed(messages):
        if any(map(_is_kept, message.content)):
            content = [next(left) if _is_kept(block) else block for block in reversed(message.content)]
            filled.append(replace(message, content=tuple(reversed(content))))
        else:
            filled.append(message)
    return filled[::-1]
