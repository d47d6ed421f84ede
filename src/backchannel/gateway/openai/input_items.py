"""The input of a response, listed by `GET /v1/responses/{id}/input_items`.

The input of a run is one message of the transcript, so the list has one item. Instructions are no items: the response
itself shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from backchannel.core.messages import Block, ImageBlock, Message, TextBlock
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest

MOST_ITEMS, USUAL_ITEMS = 100, 20
Order = Literal["asc", "desc"]


class ShownText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class ShownImage(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str | None
    """A data URL, or null for an image from a chat, which is kept in a file."""
    detail: Literal["auto"] = "auto"


class ShownInput(msgspec.Struct, kw_only=True):
    """A message that a response has answered."""

    type: Literal["message"] = "message"
    id: str
    role: Literal["user"] = "user"
    status: Literal["completed"] = "completed"
    content: list[ShownText | ShownImage]


class InputItems(msgspec.Struct, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: list[ShownInput]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


class ItemsAsked(msgspec.Struct):
    """The page asked for; other parameters, such as `include`, have no effect."""

    after: str | None = None
    limit: int = USUAL_ITEMS
    order: Order = "desc"


def read_page(query: Mapping[str, str]) -> ItemsAsked:
    """Read the page asked for.

    Raises:
        InvalidRequest: a parameter does not fit.
    """
    try:
        asked = msgspec.convert(dict(query), ItemsAsked, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the query does not fit: {error}") from None
    if not 1 <= asked.limit <= MOST_ITEMS:
        raise InvalidRequest(f"limit: expected 1 to {MOST_ITEMS}", param="limit")
    return asked


def show_items(message: Message, asked: ItemsAsked) -> InputItems:
    """Show a page of the items.

    Raises:
        InvalidRequest: `after` is none of them.
    """
    item = ShownInput(
        id=f"msg_{message.id}", content=[part for block in message.content if (part := _part(block)) is not None]
    )
    if asked.after is None:
        return InputItems(data=[item], first_id=item.id, last_id=item.id)
    if asked.after != item.id:
        raise InvalidRequest(f"after: {quoted(asked.after)} is no item of this response", param="after")
    return InputItems(data=[], first_id=None, last_id=None)


def _part(block: Block) -> ShownText | ShownImage | None:
    match block:
        case TextBlock(text):
            return ShownText(text)
        case ImageBlock():
            data = block.data
            return ShownImage(block.url if data is None else f"data:{block.mime_type};base64,{data}")
    return None
