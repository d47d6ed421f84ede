"""What is common to everything that is asked and answered: strict parameters, and answers without blanks."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct, inspect

from backchannel.config.findings import nearest
from backchannel.errors import InvalidRequest

ONE_LINE = r"^[^\x00-\x1f\x7f]+$(?!\n)"
"""A pattern: text without control characters; `$` alone would let a line break pass at the end."""
NAME = r"^(?=.*\S)" + ONE_LINE[1:]
"""A pattern: such a text that is not blank."""
NAME_LIMIT = 64
"""How long a label may be, wherever one is given."""


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The base of all parameters: what is not known is refused."""


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The base of every answer and event payload: what is not known is absent."""


def plain(answer: Answer) -> dict[str, Any]:
    """Turn an answer into plain values, the same that every door writes as JSON."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return values


def told(description: str) -> msgspec.Meta:
    """Say what a field means, for the reference page."""
    return msgspec.Meta(description=description)


def bad_params(method: str, error: msgspec.ValidationError, params: type[Params]) -> InvalidRequest:
    """Turn what the decoder said into an error that names the parameter and what would work."""
    text, known = str(error), params.__struct_encode_fields__
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
    if said.startswith("Invalid enum value") and (words := _words_of(params, re.split(r"[.\[]", name)[0])):
        said += f" (expected {', '.join(words)})"
    return InvalidRequest(f"{method}: {name}: {said}", param=name)


def _words_of(params: type[Params], name: str) -> list[str]:
    described = inspect.type_info(params)
    assert isinstance(described, inspect.StructType)
    return [word for field in described.fields if field.encode_name == name for word in _words(field.type)]


def _words(kind: inspect.Type) -> list[str]:
    """List the words that a parameter takes, where it takes only some."""
    match kind:
        case inspect.LiteralType():
            return [str(value) for value in kind.values]
        case inspect.EnumType():
            return [str(member.value) for member in kind.cls]
        case inspect.Metadata():
            return _words(kind.type)
        case inspect.UnionType():
            return [word for each in kind.types for word in _words(each)]
        case inspect.ListType() | inspect.VarTupleType():
            return _words(kind.item_type)
    return []
