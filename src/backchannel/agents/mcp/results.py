"""Results of MCP tools as a model sees them: text and images of bounded size.

An image is passed on only if its first bytes say that it is one. An image that a provider refuses would stay in the
transcript and spoil every later request of the session.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence

import mcp_types

from backchannel.core.contracts import ToolOutput
from backchannel.core.messages import Block, ImageBlock, TextBlock
from backchannel.core.text import clean_name, cut

MOST_TEXT = 100_000
"""How many characters of text a result keeps."""
LARGEST_IMAGE = 5 * 1024 * 1024
"""How long an image may be, in base64; providers take no larger ones."""
MOST_IMAGES = 8
LARGEST_IMAGES = 8 * 1024 * 1024
"""How long all images of a result may be together: they are checked, and stored, in one go."""
_SHOWN_URI = 2_000
_EMPTY = "(the tool answered without any content)"
_FIRST_BYTES = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


def output_of(result: mcp_types.CallToolResult) -> ToolOutput:
    """Make what a model is shown of a result."""
    blocks = [_block(content) for content in result.content]
    return ToolOutput(tuple(_bounded(blocks or [TextBlock(text=_EMPTY)])), is_error=bool(result.is_error))


def _block(content: mcp_types.ContentBlock) -> Block:
    match content:
        case mcp_types.TextContent():
            return TextBlock(text=content.text)
        case mcp_types.ImageContent():
            return _image(content.mime_type, content.data)
        case mcp_types.AudioContent():
            return TextBlock(text=f"(audio, {_size(content.data)} of {clean_name(content.mime_type)}: it is not kept)")
        case mcp_types.ResourceLink():
            about = f": {cut(content.description, MOST_TEXT)}" if content.description else ""
            return TextBlock(text=f"(a link to {clean_name(content.name)}, {cut(str(content.uri), _SHOWN_URI)}{about})")
        case mcp_types.EmbeddedResource():
            return _resource(content.resource)


def _resource(resource: mcp_types.TextResourceContents | mcp_types.BlobResourceContents) -> Block:
    uri = cut(str(resource.uri), _SHOWN_URI)
    if isinstance(resource, mcp_types.TextResourceContents):
        return TextBlock(text=f"{uri}:\n{resource.text}")
    mime = resource.mime_type or "an unknown type"
    if mime in _FIRST_BYTES:
        return _image(mime, resource.blob)
    return TextBlock(text=f"(the resource {uri}, {_size(resource.blob)} of {clean_name(mime)}: it is not kept)")


def _image(mime: str, data: str) -> Block:
    if mime == "image/jpg":
        mime = "image/jpeg"
    if len(data) > LARGEST_IMAGE:
        return TextBlock(text=f"(an image of {_size(data)}: it is too large to be kept)")
    return ImageBlock(mime_type=mime, data=data)


def _looked_at(image: ImageBlock) -> Block:
    """Look whether it is an image; only at one that is kept, since that takes its time."""
    try:
        content = base64.b64decode(image.data or "", validate=True)
    except (binascii.Error, ValueError):
        return TextBlock(text="(an image that cannot be read)")
    if not content.startswith(_FIRST_BYTES.get(image.mime_type, ())):
        kind = clean_name(image.mime_type)
        return TextBlock(text=f"(an image that is no PNG, JPEG, GIF or WebP, as {kind}: it is not kept)")
    return image


def _size(data: str) -> str:
    return f"{len(data.rstrip('=')) * 3 // 4:,} bytes"


def _bounded(blocks: Sequence[Block]) -> Iterator[Block]:
    """Keep so many images, and so much text: of what is more, the middle is left out."""
    images = size = left_out = 0
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    total = sum(map(len, texts))
    if total > MOST_TEXT:
        yield TextBlock(text=_cut_in_the_middle("\n".join(texts)))
    for block in blocks:
        if isinstance(block, ImageBlock):
            length = len(block.data or "")
            if images < MOST_IMAGES and size + length <= LARGEST_IMAGES:
                images, size = images + 1, size + length
                yield _looked_at(block)
            else:
                left_out += 1
        elif total <= MOST_TEXT:
            yield block
    if left_out:
        yield TextBlock(text=f"({left_out} more images are left out)")


def _cut_in_the_middle(text: str) -> str:
    half = MOST_TEXT // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out:,} characters of {len(text):,} are left out here …]\n{text[-half:]}"
