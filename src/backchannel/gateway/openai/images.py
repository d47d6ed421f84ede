"""Images that clients send along: taken as they are, never fetched, and told by their content what they are."""

from __future__ import annotations

import base64
import binascii

from backchannel.core.messages import ImageBlock
from backchannel.errors import InvalidRequest

MAX_IMAGES = 20
MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""What providers take of one."""

_EXPECTED = "expected the image itself, as data:image/png;base64,… (PNG, JPEG, GIF or WebP)"
_SIGNATURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


def read_image(url: str) -> ImageBlock:
    """Read an image from its data URL. Its type is told by its first bytes, whatever the URL says.

    Raises:
        InvalidRequest: it is somewhere else, too large, or no image that models can see.
    """
    if url[:5].lower() != "data:":
        raise _refused(f"images are not fetched from elsewhere: {_EXPECTED}")
    head, _, data = url.partition(",")
    if not head.lower().endswith(";base64"):
        raise _refused(f"the image is not in base64: {_EXPECTED}")
    if len(data) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        raise _refused(f"an image has at most {MAX_IMAGE_BYTES} bytes")
    try:
        kind = _kind_of(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        raise _refused(f"the image is not in base64: {_EXPECTED}") from None
    if kind is None:
        raise _refused(f"the content is no image that models can see: {_EXPECTED}")
    return ImageBlock(mime_type=kind, data=data)


def _kind_of(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES if content.startswith(signature)), None)


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(f"image_url: {message}", param="image_url")
