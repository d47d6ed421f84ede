"""Places: where in its transcript a message stands, told with the message, as OpenClaw's clients read it.

They know a message again by it, so that a page that is read anew shows none twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw

from backchannel.core.messages import Message, Role, encode_message
from backchannel.core.shapes import Answer


class MessagePlace(Answer, frozen=True, kw_only=True):
    """A message's id, its number in its transcript, from 1, and the run that it belongs to."""

    id: str
    seq: int
    run_id: str | None = None
    idempotency_key: str | None = None
    """Of a message that a run answers: how the client that sent it finds it, since it chose the run's id."""


_encode = msgspec.json.Encoder().encode


def placed(message: Message, line: bytes, seq: int) -> Raw:
    """Add a message's place to its line; `seq` counts from 0, as rows do."""
    asks = message.role is Role.USER and message.run_id is not None
    place = MessagePlace(
        id=message.id,
        seq=seq + 1,
        run_id=None if asks else message.run_id,
        idempotency_key=f"{message.run_id}:user" if asks else None,
    )
    return Raw(b'%b,"__openclaw":%b}' % (line[:-1], _encode(place)))


def placed_all(messages: Iterable[Message], seqs: Iterable[int]) -> Iterator[Raw]:
    """Write messages with their places, one at a time: a page may hold fewer than were read."""
    for message, seq in zip(messages, seqs, strict=True):
        yield placed(message, encode_message(message), seq)
