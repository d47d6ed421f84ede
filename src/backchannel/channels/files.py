"""Files of inbound messages: fetched within limits, stored, and named in the message.

A picture goes to the media folder, and to the workspace if the agent has one. Any other file goes to the workspace
only. So does a picture that is too large to be shown. Without a workspace such a file is not even fetched. All is
written before the unit that takes the message. If the process dies between the two, the files do no harm: the message
comes again and finds them. Who may send files is decided before anything comes here.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence

import structlog

from backchannel.core.contracts import Clock, ToolSet
from backchannel.core.delivery.channels import (
    ChannelBusy,
    ChannelError,
    ChannelRefused,
    FileKind,
    InboundEvent,
    InboundId,
    IncomingFile,
)
from backchannel.core.delivery.received import (
    MAX_IMAGE_BYTES,
    clean_note,
    disk_name,
    file_line,
    image_type,
    looks_like_image,
)
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Block, ImageBlock, TextBlock
from backchannel.errors import InvalidRequest, StorageFull, Unavailable
from backchannel.runtime.cluster.media import Media
from backchannel.workspace.tools import WorkspaceTools

log = structlog.get_logger(__name__)

MB = 1024 * 1024
MOST_FILES = 20
"""How many files of one message are fetched."""
FETCH_LIMIT_S = 60.0
"""How long one file may take."""
BUSY_LIMIT_S = 60.0
"""How long a platform may ask in all to be left alone before it gives a file, which holds up its chat."""
_MOST_AT_ONCE = 4
"""How many files are in memory at the same time."""
_MOST_TRIES = 3
"""How often a message is sent back because a file does not come or cannot be kept, which holds up its chat."""
_MOST_COUNTED = 1000
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class _NotFetched(Exception):
    """A file stays where it is; the text says why."""


class _AskedToWait(Exception):
    """The platform gives a file later; the text is its own words."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


class ReceivedFiles:
    """Takes the files of messages."""

    def __init__(self, media: Media, tools: ToolSet, workspace: WorkspaceTools, clock: Clock) -> None:
        self._media = media
        self._tools = tools
        self._workspace = workspace
        self._clock = clock
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)
        self._tries: dict[InboundId, int] = {}
        """How often a message was sent back because of its files, for the newest of such messages."""
        self.fetch_limit_s = FETCH_LIMIT_S

    async def take(
        self, event: InboundEvent, key: SessionKey, files: Sequence[IncomingFile], limit_mb: int
    ) -> tuple[Block, ...]:
        """Fetch and keep the files of a message for a session; returns what stands for them in the transcript.

        Raises:
            Unavailable: a file cannot be had or kept now; the message is to come again.
        """
        has_workspace = self._workspace.is_used_by(self._tools.of(key.agent, str(key)), key)
        blocks: list[Block] = []
        for number, file in enumerate(files):
            is_wanted = number < MOST_FILES and (has_workspace or looks_like_image(file.kind, file.mime_type))
            if not is_wanted or not limit_mb:
                blocks.append(_line(file))
                continue
            blocks += await self._one(event.identity, key, file, limit_mb * MB, has_workspace)
        self._tries.pop(event.identity, None)
        return tuple(blocks)

    async def _one(
        self, id: InboundId, key: SessionKey, file: IncomingFile, limit: int, has_workspace: bool
    ) -> list[Block]:
        """Fetch and keep a file, after the pauses that the platform asks for. Others are fetched during a pause."""
        left_s = BUSY_LIMIT_S
        while True:
            async with self._room:
                try:
                    content = await self._fetch(id, file, _limit(file, limit, has_workspace))
                    return await self._keep(id, key, file, content, has_workspace)
                except _NotFetched as reason:
                    return [_line(file, note=f"not fetched: {reason}")]
                except _AskedToWait as asked:
                    pause_s, reason_told = asked.seconds, str(asked)
            left_s -= pause_s
            if left_s < 0:
                return [_line(file, note=f"not fetched: {reason_told}")]
            await self._clock.sleep(pause_s)

    async def _fetch(self, id: InboundId, file: IncomingFile, limit: int) -> bytes:
        too_large = _NotFetched(f"larger than {limit // MB} MB")
        if file.size is not None and file.size > limit:
            raise too_large
        try:
            async with asyncio.timeout(self.fetch_limit_s) as time_limit:
                content = await file.fetch()
        except ChannelRefused as refused:
            raise _NotFetched(clean_note(refused.reason)) from refused
        except ChannelError as silent:
            if isinstance(silent, ChannelBusy) and silent.retry_after_s is not None:
                raise _AskedToWait(clean_note(silent.reason), silent.retry_after_s) from silent
            raise self._did_not_come(id, silent.reason) from silent
        except Exception as error:  # the edge of a channel: it is logged, and the message comes again
            if isinstance(error, TimeoutError) and time_limit.expired():
                raise _NotFetched(f"it took longer than {self.fetch_limit_s:g} s") from None
            log.exception("a file could not be fetched", channel=id.channel)
            raise self._did_not_come(id, type(error).__name__) from error
        if len(content) > limit:  # whatever the platform said
            raise too_large
        return content

    def _did_not_come(self, id: InboundId, reason: str) -> Exception:
        """Decide what follows when a file does not come: the message comes again, but not for ever."""
        if self._may_come_again(id):
            return Unavailable(f"a file of the message cannot be fetched now: {clean_note(reason)}")
        return _NotFetched(clean_note(reason))

    def _may_come_again(self, id: InboundId) -> bool:
        """Count that a message is to come again; if not, none of its files is waited for any more."""
        tries = self._tries.get(id, 0) + 1
        if tries >= _MOST_TRIES:
            return False
        self._tries[id] = tries
        if len(self._tries) > _MOST_COUNTED:
            del self._tries[next(iter(self._tries))]
        return True

    async def _keep(
        self, id: InboundId, key: SessionKey, file: IncomingFile, content: bytes, has_workspace: bool
    ) -> list[Block]:
        found = image_type(content)
        mime_type = found if len(content) <= MAX_IMAGE_BYTES else None
        path, note = None, ""
        if mime_type is None and looks_like_image(file.kind, file.mime_type):
            note = _unshown(len(content))
        if has_workspace:
            try:
                path = await self._workspace.receive(key, disk_name(file.kind, file.name, found), content)
            except InvalidRequest as error:
                note = f"not put into the workspace: {clean_note(error.message)}"
            except OSError as error:
                if error.errno in _FULL:
                    raise StorageFull("the disk is full: a file that was sent cannot be kept") from error
                note = f"not put into the workspace: {error.strerror}"
        if mime_type is None:
            kind = FileKind.FILE if file.kind is FileKind.IMAGE else file.kind
            return [_text(file_line(kind, file.name, len(content), file.mime_type, path=path, note=note))]
        name = await self._stored(id, content, mime_type)
        note = note or ("" if name else "the picture cannot be kept")
        line = file_line(FileKind.IMAGE, file.name, len(content), mime_type, path=path, note=note)
        return [_text(line)] if name is None else [_text(line), ImageBlock(mime_type=mime_type, file=name)]

    async def _stored(self, id: InboundId, content: bytes, mime_type: str) -> str | None:
        """Keep a picture; returns its name, or None when that does not work however often the message comes.

        Raises:
            Unavailable: it cannot be kept now. A full disk can be waited for: nothing else can be kept there either.
        """
        try:
            return await self._media.store(content, mime_type)
        except StorageFull:
            raise
        except Unavailable as error:
            if self._may_come_again(id):
                raise
            log.error("a picture cannot be kept; its message is taken without it", error=error.message)
            return None


def _limit(file: IncomingFile, limit: int, has_workspace: bool) -> int:
    """Tell how large a file may be: a picture no larger than models are shown, unless it can be kept as a file."""
    if looks_like_image(file.kind, file.mime_type) and not has_workspace:
        return min(limit, MAX_IMAGE_BYTES)
    return limit


def _unshown(size: int) -> str:
    return (
        "no picture that can be shown"
        if size <= MAX_IMAGE_BYTES
        else f"not shown: larger than {MAX_IMAGE_BYTES // MB} MB"
    )


def lines_for(files: Sequence[IncomingFile]) -> tuple[Block, ...]:
    """Tell of files that are not fetched."""
    return tuple(map(_line, files))


def _line(file: IncomingFile, note: str = "") -> TextBlock:
    return _text(file_line(file.kind, file.name, file.size, file.mime_type, note=note))


def _text(line: str) -> TextBlock:
    return TextBlock(text=line)
