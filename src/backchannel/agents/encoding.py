"""Encoding of requests with pictures, beside the event loop.

The SDKs write every request on the loop, with Python's own encoder: a picture of 10 MB would hold everything up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

_PICTURES = frozenset({"image", "image_url", "input_image"})


def encoding_beside(client_class: type[T]) -> type[T]:
    """Give the class of an SDK's client that writes requests with pictures beside the event loop.

    `_prepare_options` is what the SDKs, of one make, offer for changing a request before it is written.
    """
    base: Any = client_class

    class EncodingClient(base):  # type: ignore[misc]  # of either SDK
        async def _prepare_options(self, options: Any) -> Any:
            options = await super()._prepare_options(options)
            if options.extra_json is None and options.content is None and has_pictures(options.json_data):
                options.content = await asyncio.to_thread(msgspec.json.encode, options.json_data, enc_hook=_plain)
                options.json_data = None
            return options

    return cast(type[T], EncodingClient)


def has_pictures(body: object) -> bool:
    """Whether a request to a provider, of either make, shows a picture."""
    if not isinstance(body, Mapping):
        return False
    contents = (message.get("content") for message in body.get("messages") or body.get("input") or ())
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return any(part.get("type") in _PICTURES for part in parts)


def _plain(value: Any) -> Any:
    """Give what stands for a value of the SDK's own types."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_unset=True, mode="json", by_alias=True)
    return list(value)  # what is iterated over once
