"""Places: where in its transcript a message stands, told with the message, as OpenClaw's clients read it.

They know a message again by it, so that a page that is read anew shows none twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw

from backchannel.core.flows.steps import line_with_step
from backchannel.core.messages import Role
from backchannel.gateway.openclaw.forwarding import line_for_people


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    """What has to be known of a line to tell its place, as it is written there."""

    id: Raw
    role: Role
    run_id: Raw = Raw(b"")


_PLACE = b',"__openclaw":{"id":'
_PLACE_OF_NOTE = b',"command":true' + _PLACE
"""A note is to OpenClaw's clients something that is said beside the conversation. They show no other."""

_USER, _SYSTEM = Role.USER, Role.SYSTEM  # looking them up takes longer than asking a message for its role
_read = msgspec.json.Decoder(_Line).decode


def placed(line: bytes, shown: bytes, seq: int) -> bytes:
    """Add a message's place, which its line tells, to what is shown of it: its id, its number from 1, and its run.

    A message that a run answers has an `idempotencyKey` instead: by it the client that sent it, and chose the run's id,
    finds it. `seq` counts from 0, as rows do.
    """
    message = _read(line)
    role, run = message.role, bytes(message.run_id)
    if not run:
        end = b"}}"
    elif role is _USER:
        end = b',"idempotencyKey":' + run[:-1] + b':user"}}'
    else:
        end = b',"runId":' + run + b"}}"
    begin = _PLACE_OF_NOTE if role is _SYSTEM else _PLACE
    return b"".join((shown[:-1], begin, message.id, b',"seq":', str(seq + 1).encode(), end))


def placed_all(lines: Iterable[tuple[int, str]], *, for_people: bool = False) -> Iterator[bytes]:
    """Write lines with their places, one at a time: a page may hold fewer than were read."""
    for seq, body in lines:
        line = body.encode()
        shown = line_for_people(line) if for_people else line_with_step(line)
        if shown is not None:
            yield placed(line, shown, seq)
