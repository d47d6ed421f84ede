"""Pictures that people sent, on whichever gateway they came in.

They lie in the media folder of the gateway that took them. Where several gateways share a database they are there too,
before the message that refers to them. A gateway without a picture takes it from there, and keeps it.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress

from backchannel.core.delivery.received import is_media_name
from backchannel.errors import Unavailable
from backchannel.storage.files.media import PART_BYTES, MediaFolder
from backchannel.storage.store import Store


class Media:
    """Keeps pictures, and finds them again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = MediaFolder(store.folder.media)

    async def store(self, content: bytes, mime_type: str) -> str:
        """Keep a picture; returns the name that messages refer to it by.

        Raises:
            Unavailable: it cannot be written now.
        """
        name = await asyncio.to_thread(self._folder.store, content, mime_type)
        if self._store.database.is_shared and not await self._store.has_media(name):
            starts = range(0, len(content), PART_BYTES)
            for part, start in enumerate(starts):
                await self._store.store_media_part(name, part, len(starts), content[start : start + PART_BYTES])
        return name

    async def load(self, name: str, limit: int) -> bytes | None:
        """Read a picture; None when it is nowhere, cannot be read, or has more than `limit` bytes."""
        content = await asyncio.to_thread(self._folder.load, name, limit)
        if content is None and self._store.database.is_shared and is_media_name(name):
            with suppress(Unavailable):
                content = await self._load_shared(name)
        return content if content is not None and len(content) <= limit else None

    async def _load_shared(self, name: str) -> bytes | None:
        content = await self._store.load_media(name)
        if content is None or not name.startswith(await asyncio.to_thread(_digest, content)):
            return None
        with suppress(Unavailable):  # no room to keep it: it is read from there again
            await asyncio.to_thread(self._folder.keep, name, content)
        return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
