"""Images that requests bring: taken as they are, never fetched, and their content says what they are."""

from __future__ import annotations

import base64
import binascii

from backchannel.core.delivery.received import image_type
from backchannel.core.messages import ImageBlock
from backchannel.errors import InvalidRequest

MAX_IMAGES = 20
MAX_REQUEST_IMAGE_BYTES = 5 * 1024 * 1024
"""How large an image may be that a request brings in base64."""


def read_base64(data: str, param: str, expected: str) -> ImageBlock:
    """Read an image. Its first bytes say its type, whatever the request says.

    Raises:
        InvalidRequest: it is too large, or no image that models can see; `expected` says what would be one.
    """
    if len(data) > MAX_REQUEST_IMAGE_BYTES * 4 // 3 + 4:
        raise InvalidRequest(f"{param}: an image has at most {MAX_REQUEST_IMAGE_BYTES} bytes", param=param)
    try:
        kind = image_type(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{param}: the image is not in base64: {expected}", param=param) from None
    if kind is None:
        raise InvalidRequest(f"{param}: the content is no image that models can see: {expected}", param=param)
    return ImageBlock(mime_type=kind, data=data)
