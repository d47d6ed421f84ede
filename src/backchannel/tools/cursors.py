"""Cursors: where a list goes on. Opaque to clients, and bound to the query that they came from."""

from __future__ import annotations

import base64
import hashlib
from typing import TypeVar

import msgspec

from backchannel.errors import InvalidRequest

T = TypeVar("T")


def write_cursor(query: object, place: object) -> str:
    """Make the cursor of a place in a query's list."""
    body = msgspec.json.encode([_mark(query), place])
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def read_cursor(cursor: str, query: object, kind: type[T]) -> T:
    """Read the place back.

    Raises:
        InvalidRequest: it is no cursor, or one of another query.
    """
    try:
        body = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        mark, place = msgspec.json.decode(body, type=tuple[str, msgspec.Raw])
        found = msgspec.json.decode(place, type=kind)
    except (ValueError, RecursionError):
        raise InvalidRequest("cursor: not one that a list returned", param="cursor") from None
    if mark != _mark(query):
        raise InvalidRequest(
            "cursor: it belongs to a list with other filters (repeat them, or leave the cursor out)", param="cursor"
        )
    return found


def _mark(query: object) -> str:
    return hashlib.sha256(msgspec.json.encode(query)).hexdigest()[:16]
