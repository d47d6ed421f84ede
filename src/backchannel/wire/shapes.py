"""Shapes of requests and answers: strict parameters, no blank fields, types in words.

Errors and the reference pages are made from the same description of a type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, inspect

from backchannel.core.settings import Settings
from backchannel.core.text import nearest
from backchannel.errors import InvalidRequest

ONE_LINE = r"^[^\x00-\x1f\x7f]+$(?!\n)"
"""A pattern: text without control characters; `$` alone would let a line break pass at the end."""
NAME = r"^(?=.*\S)" + ONE_LINE[1:]
"""A pattern: such a text that is not blank."""
CLIENTS_KEY = r"^(?!hook/|agent:[^:/]+:node-[^/]*/)" + ONE_LINE[1:]
"""A pattern: such a text that is not a run id of a hook or a node (see `scoped_run_id`)."""
NAME_LIMIT = 64
"""The longest label."""
_PATTERNS = {
    ONE_LINE: ", on one line",
    NAME: ", on one line and not blank",
    CLIENTS_KEY: ", on one line; `hook/…` and `agent:<id>:node-<id>/…` are those of hooks and nodes",
}
_STEP = re.compile(r"[.\[]")
_GOT = re.compile(r", got `(\w+)`$|^Invalid enum value (.+)", re.DOTALL)
_SORTS = {
    "str": "text",
    "int": "a whole number",
    "float": "a fractional number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
"""The decoder's names of JSON types, in our words."""


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The base of all parameters: unknown ones are refused."""


class SharedParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The base of the parameters of a method that OpenClaw's gateway has too: unknown ones are ignored.

    Its clients send more with each release, and must not fail here.
    """


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The base of every answer and event payload: unknown values are absent."""


def plain(answer: Answer) -> dict[str, Any]:
    """Turn an answer into plain values, the same that every door writes as JSON."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return values


@lru_cache(maxsize=128)  # bounded, since functions that become tools have parameters of their own
def params_schema(params: type[Struct]) -> dict[str, Any]:
    """Describe parameters as one JSON Schema. It is shared: never write to it."""
    _, components = msgspec.json.schema_components([params], ref_template="#/$defs/{name}")
    schema = components.pop(params.__name__)
    for extra in ("title", "description"):
        schema.pop(extra, None)
    schema["additionalProperties"] = False
    return {**schema, "$defs": components} if components else schema


def doc(description: str) -> msgspec.Meta:
    """Say what a field means, for the reference page."""
    return msgspec.Meta(description=description)


class FieldDescription(NamedTuple):
    """A field, described for people."""

    name: str
    kind: str
    default: str
    meaning: str


def describe(struct: type[msgspec.Struct]) -> Iterator[FieldDescription]:
    """Describe every field of parameters or of an answer."""
    for field in fields_of(struct):
        kind, meaning = field.type, ""
        if isinstance(kind, inspect.Metadata):
            meaning = str((kind.extra_json_schema or {}).get("description", ""))
        shown = describe_type(kind) + (" | null" if _can_be_cleared(field) else "")
        yield FieldDescription(f"`{field.encode_name}`", shown, _describe_default(field), meaning)


def fields_of(struct: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    return described.fields


def encoded_name(struct: Struct, name: str) -> str:
    """Give the name under which a field is written."""
    return struct.__struct_encode_fields__[struct.__struct_fields__.index(name)]


def _can_be_cleared(field: inspect.Field) -> bool:
    """Whether null means something else than leaving the parameter out."""
    is_unset = not field.required and field.default is field.default_factory is msgspec.NODEFAULT
    return is_unset and isinstance(field.type, inspect.UnionType) and field.type.includes_none


def _describe_default(field: inspect.Field) -> str:
    """Describe the default of a parameter."""
    if field.required:
        return "required"
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return "–" if default in (None, msgspec.NODEFAULT) else f"`{msgspec.json.encode(default).decode()}`"


def describe_type(kind: inspect.Type) -> str:
    """Describe a type and its limits, as errors and references say it: `a whole number from 0 to 5`."""
    match kind:
        case inspect.Metadata():
            return describe_type(kind.type)
        case inspect.UnionType():
            return ", or ".join(describe_type(each) for each in kind.types if not isinstance(each, inspect.NoneType))
        case inspect.StrType(max_length=0):
            return "empty text"
        case inspect.StrType():
            length = _length(kind.min_length, kind.max_length, "characters")
            return f"text{length}{_PATTERNS.get(kind.pattern or '', '')}"
        case inspect.IntType():
            return "a whole number" + _range(kind)
        case inspect.FloatType():
            return "a number" + _range(kind)
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return one_of(kind.values)
        case inspect.EnumType():
            return one_of([member.value for member in kind.cls])
        case inspect.ListType(max_length=0):
            return "an empty list"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list of {_items(kind.item_type)}" + _length(kind.min_length, kind.max_length, "of them")
        case inspect.StructType() if not issubclass(kind.cls, Settings):
            names = (field.encode_name + ("" if field.required else "?") for field in kind.fields)
            return f"`{{{', '.join(names)}}}`"
        case inspect.StructType() | inspect.DictType():
            return "an object"  # of a group of settings each is described by itself
        case inspect.RawType():
            return "a message"
    return "anything"


def one_of(values: Sequence[Any]) -> str:
    """List the allowed values."""
    return "one of " + ", ".join(f'"{value}"' for value in values)


def _items(kind: inspect.Type) -> str:
    words = describe_type(kind)
    return {"text": "texts", "an object": "objects"}.get(words, words.replace("one of ", "any of ", 1))


def _length(low: int | None, high: int | None, of_what: str) -> str:
    if high is None:
        return ", not empty" if low == 1 else f" of at least {low} {of_what}" if low else ""
    return f" of {low} to {high} {of_what}" if low else f" of at most {high} {of_what}"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    low, above, high = (None if limit is None else _number(limit) for limit in (kind.ge, kind.gt, kind.le))
    if low is not None and high is not None:
        return f" from {low} to {high}"
    least = f", at least {low}" if low is not None else f" above {above}" if above is not None else ""
    return least + (f", at most {high}" if high is not None else "")


def _number(limit: float) -> str:
    return f"{limit:.0f}" if limit == int(limit) else f"{limit:g}"


def bad_params(method: str, error: msgspec.ValidationError, params: type[Params]) -> InvalidRequest:
    """Turn a decoder's error into one that names the parameter and what would work."""
    said, place = _placed(str(error))
    kind = _kind_at(inspect.type_info(params), place)
    if said.startswith("Object "):
        structs = (each for each in _choices(kind) if isinstance(each, inspect.StructType))
        known = [field.encode_name for struct in structs for field in struct.fields]
        return _bad_field(method, said, place, known)
    return InvalidRequest(f"{method}: {place or 'params'}: {_wrong(said, kind)}", **({"param": place} if place else {}))


def _placed(error: str) -> tuple[str, str]:
    """Split a decoder's error into text and place: `Expected `int` - at `$.limit``."""
    said, at, place = error.rpartition(" - at `$")
    return (said, place[:-1].removeprefix(".")) if at and place.endswith("`") else (error, "")


def _bad_field(method: str, said: str, place: str, known: list[str]) -> InvalidRequest:
    """Name an unknown or missing parameter of the request or of an object in it."""
    written = said.split("`")[1][:64]
    name = f"{place}.{written}" if place else written
    if said.startswith("Object missing"):
        return InvalidRequest(f"{method}: the parameter {name} is missing", param=name)
    close = nearest(written, known)
    hint = f"did you mean {close}?" if close else f"known: {', '.join(sorted(known)) or 'none'}"
    return InvalidRequest(f"{method}: unknown parameter {name!r} ({hint})", param=name)


def _kind_at(kind: inspect.Type, place: str) -> inspect.Type:
    """Find the expected type at a place such as `deliver.to` or `kinds[0]`."""
    for part in _STEP.split(place) if place else ():
        kind = next((inner for each in _choices(kind) for inner in _inside(each, part)), inspect.AnyType())
    return kind


def _choices(kind: inspect.Type) -> Iterator[inspect.Type]:
    """List the plain types that a parameter may have."""
    match kind:
        case inspect.Metadata():
            yield from _choices(kind.type)
        case inspect.UnionType():
            for each in kind.types:
                yield from _choices(each)
        case _:
            yield kind


def _inside(kind: inspect.Type, part: str) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType():
            yield from (field.type for field in kind.fields if field.encode_name == part)
        case inspect.ListType() | inspect.VarTupleType():
            yield kind.item_type


def _wrong(said: str, kind: inspect.Type) -> str:
    """Say what came, if the decoder says it, and what would work."""
    expected = f"expected {describe_type(kind)}"
    if got := _GOT.search(said):
        sort, word = got.groups()
        return f"got {word[:64] if word else _SORTS.get(sort, sort)}, {expected}"
    return expected if said.startswith("Expected ") else f"{said}, {expected}"
