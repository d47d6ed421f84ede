"""Files that people sent, stored in the workspace of the agent that they wrote to.

They lie in `received`, each under a name that nothing else has. The same file again has the same path, so a message
that comes a second time after a crash leaves no second copy. This blocks, and is run in a thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import PurePosixPath

from backchannel.errors import InvalidRequest
from backchannel.workspace.beneath import Place, look, opened_file, opened_folder
from backchannel.workspace.files import replace_file

_FOLDER = "received"
_MOST_NAMES = 100


def put_received(place: Place, name: str, content: bytes) -> str:
    """Write a file, or find it there; returns its path in the workspace.

    Raises:
        InvalidRequest: the workspace does not take it; the message says why.
        OSError: it cannot be written.
    """
    with opened_folder(place, (_FOLDER,), create=True) as folder:
        for candidate in _names(name, content):
            found = look(folder, candidate)
            if found is None:
                replace_file(folder, candidate, content, None)
            elif found.st_size != len(content) or not _has(folder, candidate, content):
                continue
            return f"{_FOLDER}/{candidate}"
    raise InvalidRequest(f"{_FOLDER}: too many files of one name lie there")


def _names(name: str, content: bytes) -> Iterator[str]:
    """Name the places that a file may have: by its own name, then by its content too, then numbered."""
    yield name
    path, checksum = PurePosixPath(name), hashlib.sha256(content).hexdigest()[:8]
    yield f"{path.stem}-{checksum}{path.suffix}"
    for number in range(2, _MOST_NAMES):  # somebody has changed what was received before
        yield f"{path.stem}-{checksum}-{number}{path.suffix}"


def _has(folder: int, name: str, content: bytes) -> bool:
    """Whether an ordinary file has this content."""
    try:
        with opened_file(folder, name) as file, os.fdopen(os.dup(file), "rb") as stream:
            return stream.read(len(content) + 1) == content
    except InvalidRequest:
        return False
