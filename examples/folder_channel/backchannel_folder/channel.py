"""The channel: files of `in/` are handed in, and each reply becomes a file of `out/`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backchannel import Channel, Clock, InboundEvent, InboundTaker, OutboundPart, Sent

from . import FolderSettings

LOOK_EVERY_S = 0.2


class FolderChannel(Channel):
    """The messages of one folder."""

    settings: FolderSettings
    takes_key = True  # a part that comes again writes the same file again

    def __init__(self, name: str, settings: FolderSettings, clock: Clock) -> None:
        self.name = name
        self.settings = settings
        self._clock = clock
        self._in, self._out = Path(settings.path, "in"), Path(settings.path, "out")

    async def run(self, inbound: InboundTaker) -> None:
        """Hand in each file, and remove it when it is committed."""
        self._in.mkdir(parents=True, exist_ok=True)
        while True:
            for file in sorted(self._in.glob("*.json")):
                await inbound(msgspec.json.decode(file.read_bytes(), type=InboundEvent))
                file.unlink()
            await self._clock.sleep(LOOK_EVERY_S)

    async def send(self, part: OutboundPart) -> Sent:
        """Write a part as a file, named by its key."""
        self._out.mkdir(parents=True, exist_ok=True)
        name = f"{part.key.replace('/', '-')}.txt"
        (self._out / name).write_text(f"to {part.to}: {part.text}\n", encoding="utf-8")
        return Sent(name)
