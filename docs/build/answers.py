"""Shapes of answers and events in words, made from their types.

A field with a question mark may be absent. A struct that several methods answer with stands apart, under its name.
"""

from __future__ import annotations

import ast
import inspect as source
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Any, get_args

from msgspec import Struct, inspect

from backchannel.core.settings import Settings
from backchannel.wire.shapes import describe_type

_LARGE = 5
"""From so many fields on, a struct of several methods stands apart."""
_HUGE = 10
"""From so many fields on, a struct inside another stands apart."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write rows under their columns, a line each; a bar in a text does not end its cell."""
    shown = [_row([cell.replace("|", "\\|") for cell in row]) for row in rows]
    return [_row(columns), "|" + "---|" * len(columns), *shown]


def _row(cells: Iterable[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


class Shapes:
    """The structs of a page: those that stand apart, and how all are written."""

    def __init__(self, types: Iterable[Any], always: Iterable[type[Struct]] = ()) -> None:
        seen: Counter[type[Struct]] = Counter()
        inside: set[type[Struct]] = set()
        for each in types:
            kinds = _alternatives(each)
            found = {struct for kind in kinds for struct in _structs(kind)}
            seen.update(found)
            inside |= found - {kind.cls for kind in kinds if isinstance(kind, inspect.StructType)}
        self._apart = {
            struct
            for struct, count in seen.items()
            if len(struct.__struct_fields__) >= (_LARGE if count > 1 else _HUGE) and (struct in inside or count > 1)
        } | set(always)

    @property
    def apart(self) -> list[type[Struct]]:
        """The structs that stand apart, by name."""
        return sorted(self._apart, key=lambda struct: struct.__name__)

    def show(self, type_: Any) -> str:
        """Write a type: `{runId, status, error?}`."""
        return "`, or `".join(self._value(kind) or describe_type(kind) for kind in _alternatives(type_))

    def notes(self, type_: Any) -> list[str]:
        """Say what the fields of a type mean, a line each, as far as that is written beside them."""
        return [f"- `{path}`: {said}" for kind in _alternatives(type_) for path, said in self._notes(kind, "")]

    def rows(self, struct: type[Struct]) -> list[tuple[str, str, str]]:
        """Write the fields of a struct that stands apart: name, type, meaning."""
        return [
            (f"`{name}`", self._cell(field.type), said)
            for name, field, said in _fields(inspect.type_info(struct), sort=False)
        ]

    def links(self, type_: Any) -> list[str]:
        """Name the structs that a shape refers to."""
        return sorted({struct.__name__ for kind in _alternatives(type_) for struct in self._named(kind)})

    def _named(self, kind: inspect.Type) -> Iterator[type[Struct]]:
        if isinstance(kind, inspect.StructType) and kind.cls in self._apart:
            yield kind.cls
        else:
            for inner in _inside(kind):
                yield from self._named(inner)

    def _cell(self, kind: inspect.Type) -> str:
        shape = self._value(kind)
        return f"`{shape}`" if shape else describe_type(kind)

    def _value(self, kind: inspect.Type) -> str:
        """Write what has a shape; nothing of a text or a number."""
        match kind:
            case inspect.Metadata():
                return self._value(kind.type)
            case inspect.UnionType():
                shown = [text for each in kind.types if (text := self._value(each)) and text != "null"]
                return " | ".join(shown)
            case inspect.StructType() if _is_plain(kind):
                return ""
            case inspect.StructType() if kind.cls in self._apart:
                return kind.cls.__name__
            case inspect.StructType():
                return "{" + ", ".join(self._field(name, field) for name, field, _ in _fields(kind)) + "}"
            case inspect.ListType() | inspect.VarTupleType():
                shown_item = self._value(kind.item_type)
                return f"[{shown_item}]" if shown_item else ""
            case inspect.TupleType(item_types=()):
                return "[]"
            case inspect.DictType():
                shown_value = self._value(kind.value_type)
                return f"{{<name>: {shown_value}}}" if shown_value else ""
            case inspect.LiteralType():
                return " | ".join(str(value) for value in kind.values)
            case inspect.EnumType():
                return " | ".join(str(member.value) for member in kind.cls)
            case inspect.NoneType():
                return "null"
        return ""

    def _field(self, name: str, field: inspect.Field) -> str:
        shape = self._value(field.type)
        if not name.endswith("?") and _may_be_null(field.type):
            shape = f"{shape} | null" if shape and shape != "null" else "null" if shape else ""
        if not shape:
            return name
        return f"{name} {shape}" if shape.startswith("{") and not shape.startswith("{<") else f"{name}: {shape}"

    def _notes(self, kind: inspect.Type, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(kind, inspect.StructType):
            if kind.cls in self._apart or _is_plain(kind):
                return
            for name, field, said in _fields(kind):
                here = f"{path}.{name}".lstrip(".").rstrip("?")
                if said:
                    yield here, said
                yield from self._notes(field.type, here)
        else:
            for inner in _inside(kind):
                yield from self._notes(inner, path)


def show_value(value: Any) -> str:
    """Write an answer that is always the same: `{tasks: []}`."""
    match value:
        case dict():
            shown = ((name, show_value(inner)) for name, inner in value.items())
            return "{" + ", ".join(f"{name}: {text}" if text else name for name, text in shown) + "}"
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return "[]"
    return ""


def paragraphs(text: str) -> list[str]:
    """Take a docstring apart into its paragraphs, without the errors it names; each on one line."""
    parts = source.cleandoc(text).partition("\nRaises:")[0].strip().split("\n\n")
    return [" ".join(part.split()) for part in parts]


def meanings(struct: type[Struct]) -> dict[str, str]:
    """Say what the fields of parameters mean, by the names on the wire, as far as that is written below them."""
    said = _meanings(struct)
    return {
        wire: said[name]
        for name, wire in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
        if name in said
    }


def _is_plain(kind: inspect.StructType) -> bool:
    """Whether the fields of a struct are not shown: settings, and blocks of a message, have pages of their own."""
    return issubclass(kind.cls, Settings) or kind.tag is not None


def _may_be_null(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.UnionType) and kind.includes_none


def _inside(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.Metadata():
            yield from _inside(kind.type)
        case inspect.UnionType():
            yield from kind.types
        case inspect.ListType() | inspect.VarTupleType():
            yield kind.item_type
        case inspect.DictType():
            yield kind.value_type
        case inspect.StructType():
            yield from (field.type for field in kind.fields)


def _alternatives(type_: Any) -> list[inspect.Type]:
    """List the types that an answer may have."""
    each = get_args(type_) if isinstance(type_, UnionType) else (type_,)
    return [inspect.type_info(one) for one in each]


def _structs(kind: inspect.Type) -> Iterator[type[Struct]]:
    if isinstance(kind, inspect.StructType):
        if _is_plain(kind):
            return
        yield kind.cls
    for inner in _inside(kind):
        yield from _structs(inner)


def _fields(kind: inspect.Type, *, sort: bool = True) -> list[tuple[str, inspect.Field, str]]:
    """List the fields of a struct, those that are always there first: name, field, meaning."""
    assert isinstance(kind, inspect.StructType)
    omits = kind.cls.__struct_config__.omit_defaults
    said = _meanings(kind.cls)
    found = []
    for field in kind.fields:
        is_unset = not field.required and field.default is field.default_factory
        is_optional = is_unset or (omits and not field.required)
        meaning = said.get(field.name, "")
        if isinstance(field.type, inspect.Metadata):
            meaning = str((field.type.extra_json_schema or {}).get("description", meaning))
        found.append((field.encode_name + ("?" if is_optional else ""), field, meaning))
    return sorted(found, key=lambda each: each[0].endswith("?")) if sort else found


@cache
def _meanings(struct: type[Struct]) -> dict[str, str]:
    """Read the texts below the fields of a struct and of those that it is made from."""
    said: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        if not issubclass(each, Struct) or each.__module__.startswith("msgspec"):
            continue
        (node,) = ast.parse(textwrap.dedent(source.getsource(each))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    said[name] = " ".join(words.split())
    return said
