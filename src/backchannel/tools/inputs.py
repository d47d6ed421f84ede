"""What is common to everything that is asked and answered: strict parameters, and answers without blanks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from backchannel.config.findings import nearest
from backchannel.errors import InvalidRequest


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The base of all parameters: what is not known is refused."""


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The base of every answer and event payload: what is not known is absent."""


def bad_params(method: str, error: msgspec.ValidationError, known: Iterable[str]) -> InvalidRequest:
    """Turn what the decoder said into an error that names the parameter and what would work."""
    text = str(error)
    if text.startswith("Object contains unknown field") and " - at" not in text:
        name = text.split("`")[1]
        close = nearest(name, known)
        hint = f"did you mean {close}?" if close else f"known: {', '.join(sorted(known)) or 'none'}"
        return InvalidRequest(f"{method}: unknown parameter {name[:64]!r} ({hint})", param=name[:64])
    if text.startswith("Object missing required field") and " - at" not in text:
        name = text.split("`")[1]
        return InvalidRequest(f"{method}: the parameter {name} is missing", param=name)
    said, _, place = text.partition(" - at `$")
    name = place.strip("`").lstrip(".")
    if not name:
        return InvalidRequest(f"{method}: params: {said}")
    return InvalidRequest(f"{method}: {name}: {said}", param=name)
