"""Files that people send: their type, their name, and their line in the transcript.

The sender chooses the name and the type. The name is cleaned before anybody sees it. The type of a picture is read
from its first bytes. The line stands in the transcript beside the person's text, so a reader knows what came.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from backchannel.core.delivery.channels import FileKind
from backchannel.core.text import clean_name, storable_text

_NAME_LIMIT = 100
"""How many characters of a file's name are kept."""
MAX_IMAGE_BYTES = 10 * 1024 * 1024
"""How large a picture may be that is shown to a model."""
EXTENSIONS: Mapping[str, str] = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""The pictures that models can see, and how their files end."""

_AT_A_TIME = 256 * 1024
_SIGNATURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_MIME_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,40}/[a-z0-9][a-z0-9.+-]{0,80}\Z")
_BRACKETS = str.maketrans({"[": "(", "]": ")", "`": "'"})
_NOT_IN_NAMES = _BRACKETS | str.maketrans({":": "_"})
_NOT_ON_DISK = re.compile(r"[^\w.+-]+")
_DISK_NAME_BYTES = 200
"""What a file system takes of a name is 255 bytes; a checksum may be added."""
_LONGEST_ENDING = 10
_NOTE_LIMIT = 120
OTHER_ENDING = "bin"
"""How kept files end that are no pictures."""
_MEDIA_NAME = re.compile(rf"[0-9a-f]{{64}}\.(?:{'|'.join(EXTENSIONS.values())}|{OTHER_ENDING})\Z")


def is_media_name(name: str) -> bool:
    """Whether a name can be that of a kept file: its checksum, and its type."""
    return _MEDIA_NAME.match(name) is not None


def image_type(content: bytes) -> str | None:
    """Tell the type of a picture by its first bytes; None when it is none that models can see."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES if content.startswith(signature)), None)


def encode_base64(content: bytes) -> str:
    """Write a picture as base64, a piece at a time: in a thread, the event loop gets its turn between two of them."""
    size = 3 * _AT_A_TIME
    return "".join(base64.b64encode(content[at : at + size]).decode() for at in range(0, len(content), size))


def decode_base64(text: str) -> bytes:
    """Read base64, a piece at a time, as `encode_base64` writes it.

    Raises:
        binascii.Error: it is none.
    """
    size, pieces = 4 * _AT_A_TIME, []
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        if "=" in piece and at + size < len(text):
            raise binascii.Error("padding in the middle")
        pieces.append(base64.b64decode(piece, validate=True))
    return b"".join(pieces)


def clean_file_name(name: str | None) -> str | None:
    """Bring a file's name to one line of what can be seen, without folders; None when nothing of it is left.

    A long one keeps its ending, by which people and programs know what it is.
    """
    path = clean_name(storable_text(name or ""), limit=4 * _NAME_LIMIT).replace("\\", "/").rstrip("/")
    seen = path.rpartition("/")[2].translate(_NOT_IN_NAMES).strip(" .")
    if len(seen) <= _NAME_LIMIT:
        return seen or None
    stem, dot, ending = seen.rpartition(".")
    if not dot or len(ending) > _LONGEST_ENDING:
        return seen[:_NAME_LIMIT].strip(" .")
    return f"{stem[: _NAME_LIMIT - len(ending) - 1].strip(' .')}.{ending}"


def disk_name(kind: FileKind, name: str | None, mime_type: str | None) -> str:
    """Make the name that a file is written under: without anything that a shell would take for more than a name.

    `mime_type` is that of a picture, which then ends as such do.
    """
    cleaned = clean_file_name(name) or str(kind)
    plain = _NOT_ON_DISK.sub("_", cleaned).lstrip("._-") or str(kind)
    ending = EXTENSIONS.get(mime_type or "", "")
    if ending and not plain.lower().endswith((f".{ending}", ".jpeg") if ending == "jpg" else f".{ending}"):
        plain = f"{plain}.{ending}"
    stem, dot, last = plain.rpartition(".")
    if not dot or len(last) > _LONGEST_ENDING:
        stem, dot, last = plain, "", ""
    room = _DISK_NAME_BYTES - len(f"{dot}{last}".encode())
    return f"{stem.encode()[:room].decode(errors='ignore')}{dot}{last}"


def looks_like_image(kind: FileKind, mime_type: str | None) -> bool:
    """Whether a platform says that a file is a picture."""
    return kind is FileKind.IMAGE or (clean_mime_type(mime_type) or "").startswith("image/")


def clean_note(text: str) -> str:
    """Bring what a platform says about a file to words that fit into its line."""
    return clean_name(storable_text(text), limit=_NOTE_LIMIT).translate(_BRACKETS)


def clean_mime_type(mime_type: str | None) -> str | None:
    """Give a type as the sender wrote it; None when it is no type."""
    plain = (mime_type or "").partition(";")[0].strip().lower()
    return plain if _MIME_TYPE.match(plain) else None


def file_line(
    kind: FileKind,
    name: str | None,
    size: int | None,
    mime_type: str | None,
    *,
    path: str | None = None,
    note: str = "",
) -> str:
    """Write the line that tells of a file: `[image photo.jpg, 2.1 MB, image/jpeg]`.

    `path` is where the agent finds it; `note` says what became of it, where it is not there.
    """
    shown_name, shown_type = clean_file_name(name), clean_mime_type(mime_type)
    words = f"{kind} {shown_name}" if shown_name else str(kind)
    with_type = kind is FileKind.IMAGE or not shown_name
    facts = (
        words,
        None if size is None or size < 0 else shown_size(size),
        shown_type if with_type else None,
        path and f"at {path}",
        note,
    )
    return f"[{', '.join(fact for fact in facts if fact)}]"


def shown_size(size: int) -> str:
    """Write a number of bytes for people: `240 KB`, `2.1 MB`. It is rounded up: over 10 MB never looks like 10 MB."""
    if size < 1024:
        return f"{size} bytes"
    if size < 1024 * 1000:
        return f"{-(-size // 1024)} KB"
    return f"{-(-size * 10 // 1024**2) / 10:.1f} MB".replace(".0 MB", " MB")
