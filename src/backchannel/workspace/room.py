"""Room left in the workspaces of sandboxed sessions, for the tools that write there.

The leash counts what commands write. This is the same limit for `write`, `edit` and files that people send.
"""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import NamedTuple

from backchannel.agents.leash_usage import FOLDER, FolderCount, why_full
from backchannel.errors import InvalidRequest
from backchannel.workspace.beneath import Place

KNOWN_FOR_S, KNOWN_FACTOR = 1.0, 10
"""How long a count is good, and for how many times the time that it took."""


class _Counted(NamedTuple):
    bytes: int
    files: int
    until: float


class Rooms:
    """Counts what workspaces hold, each not too often. It blocks, and is used in threads."""

    def __init__(self) -> None:
        self._counted: dict[Path, _Counted] = {}
        self._counting = threading.Lock()

    def check(self, place: Place) -> None:
        """Refuse to write into a workspace that holds as much as it may.

        Raises:
            InvalidRequest: the message names the setting.
        """
        if place.most_bytes is None or place.most_files is None or not place.root.exists():
            return
        with self._counting:
            known = self._counted.get(place.root)
            if known is None or time.monotonic() > known.until:
                known = self._counted[place.root] = _count(place.root)
        found = ((known.bytes, place.most_bytes, "diskMb"), (known.files, place.most_files, "files"))
        for name, (now, most, setting) in zip(FOLDER, found, strict=True):
            if (full := why_full(name, now, most)) is not None:
                raise InvalidRequest(f"{full} (sandbox.limits.{setting}): something has to be deleted first")


def _count(root: Path) -> _Counted:
    began = time.monotonic()
    count = FolderCount(str(root))
    count.go_on(math.inf)
    now = time.monotonic()
    return _Counted(count.bytes, count.files, now + max(KNOWN_FOR_S, (now - began) * KNOWN_FACTOR))
