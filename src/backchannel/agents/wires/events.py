"""Server-sent events of a provider, read piece by piece and within bounds.

An endpoint may send anything: lines without an end, gigabytes, bytes that are no text. Nothing of it holds the event
loop, and no more is kept than one event.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterator

from backchannel.agents.turns import Turns
from backchannel.core.incoming_json import MOST_WORK, PIECE, IncomingJson, TooMuchJson

LONGEST_EVENT = 8 * 1024 * 1024
MOST_RECEIVED = 256 * 1024 * 1024
"""Bytes of one whole stream: a long reply in single letters."""
_READ_AT_ONCE = 32 * 1024
_SLICE = 16 * 1024
_BOM = b"\xef\xbb\xbf"


class BadAnswer(ValueError):
    """What came is not what the API promises."""


async def slices(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Cut what comes into slices that are quickly read, and let others have their turn between them.

    Raises:
        BadAnswer: there is more than any reply has.
    """
    turns, received = Turns(), 0
    async for chunk in chunks:
        received += len(chunk)
        if received > MOST_RECEIVED:
            raise BadAnswer("the answer does not end")
        for start in range(0, len(chunk), _SLICE):
            yield chunk[start : start + _SLICE] if len(chunk) > _SLICE else chunk
            await turns.next()


class EventLines:
    """The lines of a stream, of which events are made."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        """Of the event that has not ended."""
        self._line: list[bytes] = []
        """Of the line that has not ended."""
        self._length = 0
        self._was_return = False
        self._has_begun = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Give the data of each event that ends in this piece.

        Raises:
            BadAnswer: an event is longer than any that is meant.
        """
        if not self._has_begun:
            self._has_begun, piece = True, piece.removeprefix(_BOM)
        if b"\r" in piece or self._was_return:
            piece = self._with_plain_ends(piece)
        *ended, rest = piece.split(b"\n")
        for part in ended:
            line = part
            if self._line:
                line, self._line = b"".join((*self._line, part)), []
            if line:
                self._take(line)
            elif self._data:
                data, self._data, self._length = b"\n".join(self._data), [], 0
                yield data
        if rest:
            self._line.append(rest)
            self._bound(len(rest))

    def end(self) -> Iterator[bytes]:
        """Give the data of an event that the end of the stream ends."""
        yield from self.feed(b"\n\n")

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            self._bound(len(line))

    def _bound(self, more: int) -> None:
        self._length += more
        if self._length > 2 * LONGEST_EVENT or len(self._data) > _READ_AT_ONCE:
            raise BadAnswer("an event of the answer does not end")

    def _with_plain_ends(self, piece: bytes) -> bytes:
        if self._was_return:
            piece = piece.removeprefix(b"\n")
        self._was_return = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


async def checked_json(data: bytes) -> bytes:
    """Give JSON as it can be decoded in a moment.

    Raises:
        BadAnswer: decoding it would take long.
    """
    if len(data) <= _READ_AT_ONCE:
        return data
    turns, json, checked = Turns(), IncomingJson(MOST_WORK // 2), []
    try:
        for start in range(0, len(data), PIECE):
            checked.append(json.take(data[start : start + PIECE]))
            await turns.next()
        checked.append(json.end())
    except TooMuchJson as error:
        raise BadAnswer(str(error)) from None
    return b"".join(checked)


async def whole_body(pieces: AsyncIterable[bytes], most: int) -> bytes:
    """Read an answer that is no stream; what is longer is cut off."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > most:
            break
    return bytes(body[:most])
