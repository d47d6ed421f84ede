"""Files that agents send, as parts of the reply's delivery.

A file that a chat cannot take becomes a line of text.
"""

from __future__ import annotations

from collections.abc import Iterable

from backchannel.core.delivery.delivery import INSTEAD, Part
from backchannel.core.delivery.outgoing import FileCopy, TakenFile, write_file
from backchannel.core.delivery.received import clean_file_name, clean_note, image_type, shown_size

MAX_FILE_BYTES = 20 * 1024 * 1024
"""How large a file may be that an agent sends."""
_UNNAMED = "file"
_TYPES = ((b"%PDF-", "application/pdf"), (b"PK\x03\x04", "application/zip"), (b"\x1f\x8b", "application/gzip"))


def content_type(content: bytes) -> str:
    """Tell the type of a file by its content."""
    if (image := image_type(content)) is not None:
        return image
    if (known := next((kind for start, kind in _TYPES if content.startswith(start)), None)) is not None:
        return known
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "application/octet-stream" if "\0" in text else "text/plain"


def describe(taken: TakenFile, file: str, mime_type: str) -> FileCopy:
    """Describe the kept copy of a file."""
    name = clean_file_name(taken.name) or _UNNAMED
    caption = (taken.caption or "").strip() or None
    return FileCopy(name=name, mime_type=mime_type, size=len(taken.content), file=file, caption=caption)


def file_parts(delivery_id: str, files: Iterable[FileCopy], limit: int, *, after: int) -> list[Part]:
    """Make a part of each file, for a channel that takes so many bytes; `after` is the last number that is taken."""
    return [_part(delivery_id, n, copy, limit) for n, copy in enumerate(files, after + 1)]


def _part(delivery_id: str, n: int, copy: FileCopy, limit: int) -> Part:
    if copy.size <= limit:
        return Part(delivery_id=delivery_id, n=n, text=copy.caption or "", file=write_file(copy))
    why = "this chat takes no files" if not limit else f"this chat takes files up to {shown_size(limit)}"
    return Part(delivery_id=delivery_id, n=n, text=instead_line(copy, why), purpose=INSTEAD)


def instead_line(copy: FileCopy, why: str) -> str:
    """Write the line that stands for a file which is not sent."""
    caption = f"{copy.caption}\n" if copy.caption else ""
    return f"{caption}[file {copy.name}, {shown_size(copy.size)}: not sent, {clean_note(why)}]"
