"""Places: where in its transcript a message stands, told with the message, as OpenClaw's clients read it.

They know a message again by it, so that a page that is read anew shows none twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw

from backchannel.core.messages import Message, Role
from backchannel.core.shapes import Answer
from backchannel.gateway.forwarding import line_for_people


class MessagePlace(Answer, frozen=True):
    """A message's id, its number in its transcript, from 1, and the run that it belongs to."""

    id: str
    seq: int
    run_id: str | None = None
    idempotency_key: str | None = None
    """Of a message that a run answers: how the client that sent it finds it, since it chose the run's id."""


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    """What has to be known of a line to tell its place."""

    id: str
    role: Role
    run_id: str | None = None


_NOTE = b'"command":true,'
"""What a note is to OpenClaw's clients: something that is said beside the conversation. They show no other."""

_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(_Line).decode


def placed(message: Message | _Line, line: bytes, seq: int) -> Raw:
    """Add a message's place to its line; `seq` counts from 0, as rows do."""
    run_id = message.run_id
    if message.role is Role.USER and run_id is not None:
        place = MessagePlace(message.id, seq + 1, None, f"{run_id}:user")
    else:
        place = MessagePlace(message.id, seq + 1, run_id)
    mark = _NOTE if message.role is Role.SYSTEM else b""
    return Raw(b'%b,%b"__openclaw":%b}' % (line[:-1], mark, _encode(place)))


def placed_all(lines: Iterable[tuple[int, str]], *, for_people: bool = False) -> Iterator[Raw]:
    """Write lines with their places, one at a time: a page may hold fewer than were read."""
    for seq, body in lines:
        line = body.encode()
        shown = line_for_people(line) if for_people else line
        if shown is not None:
            yield placed(_read(line), shown, seq)
