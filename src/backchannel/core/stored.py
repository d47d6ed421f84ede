"""Values kept as JSON: in rows, in files of the state folder, and in echoes.

A `StoredForm` reads and writes one kind of value, and is the only way to do it. Gateways of two versions may work on
one database, so reading is tolerant. A field that this version does not know is ignored, even if the same struct is
strict in the configuration. Writing a value back keeps unknown fields, outside of lists.

A new field of a stored struct needs a default, since older rows do not have it. Older versions do not understand a new
enum value or a new kind of a tagged struct. Such a change needs a schema step that is not additive.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

FORMS: list[StoredForm[Any]] = []
"""All of them, as far as their modules are loaded."""

_Object = inspect.StructType | inspect.DataclassType


class StoredForm(Generic[T]):
    """How one kind of value is kept as JSON."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(kind).decode
        FORMS.append(self)

    @cached_property
    def shape(self) -> inspect.Type:
        return inspect.type_info(self.kind)

    def read(self, body: bytes | str) -> T:
        """Read a value; fields of a later version are passed over.

        Raises:
            msgspec.DecodeError: it is not of this kind.
        """
        try:
            value: T = self._decode(body)
        except msgspec.ValidationError:
            value = msgspec.convert(_known(self.shape, msgspec.json.decode(body)), self.kind)
        return value

    def write(self, value: T, over: str | None = None) -> str:
        """Write a value; `over` is the text that it was made from, whose unknown fields are kept."""
        body = self.encode(value)
        if over is not None:
            old, new = msgspec.json.decode(over), msgspec.json.decode(body)
            if (kept := _with_unknown(self.shape, old, new)) != new:
                body = msgspec.json.encode(kept)
        return body.decode()


def _known(shape: inspect.Type, raw: Any) -> Any:
    """Take what this version knows out of a decoded value."""
    if (found := object_shape(shape, raw)) is not None:
        if isinstance(raw, list):
            return [_known(field.type, item) for field, item in zip(found.fields, raw, strict=False)]
        fields = field_shapes(found)
        return {name: _known(fields[name], item) for name, item in raw.items() if name in fields}
    inner = item_shape(shape)
    if inner is not None and isinstance(raw, list):
        return [_known(inner, item) for item in raw]
    if inner is not None and isinstance(raw, dict):
        return {name: _known(inner, item) for name, item in raw.items()}
    return raw


def _with_unknown(shape: inspect.Type, old: Any, new: Any) -> Any:
    """Add to a new value what only the old one has, and this version does not know."""
    if type(old) is not type(new) or (found := object_shape(shape, new)) is None:
        return new
    if object_shape(shape, old) is not found:
        return new
    if isinstance(new, list):
        return [*new, *old[len(found.fields) :]]
    fields = field_shapes(found)
    nested = [name for name, item in new.items() if isinstance(item, dict | list)]
    known = {name: _with_unknown(fields[name], old.get(name), new[name]) for name in nested}
    return new | known | {name: item for name, item in old.items() if name not in fields}


def object_shape(shape: inspect.Type, raw: Any) -> _Object | None:
    """Find the struct that a decoded value is of; None if it is of none."""
    if not isinstance(raw, dict | list):
        return None
    if isinstance(shape, inspect.Metadata):
        return object_shape(shape.type, raw)
    if isinstance(shape, inspect.UnionType):
        return next((found for each in shape.types if (found := object_shape(each, raw)) is not None), None)
    if isinstance(shape, inspect.DataclassType):
        return shape if isinstance(raw, dict) else None
    if not isinstance(shape, inspect.StructType) or shape.array_like is not isinstance(raw, list):
        return None
    is_other = isinstance(raw, dict) and shape.tag_field is not None and raw.get(shape.tag_field) != shape.tag
    return None if is_other else shape


def field_shapes(found: _Object) -> Mapping[str, inspect.Type]:
    """Name the fields of a struct as they are written, its tag among them."""
    tag_field = found.tag_field if isinstance(found, inspect.StructType) else None
    fields = {field.encode_name: field.type for field in found.fields}
    return fields if tag_field is None else {tag_field: inspect.AnyType(), **fields}


def item_shape(shape: inspect.Type) -> inspect.Type | None:
    """Tell what the items of a list, or the values of a mapping, are."""
    match shape:
        case inspect.Metadata(type=inner):
            return item_shape(inner)
        case inspect.UnionType(types=types):
            return next((item for each in types if (item := item_shape(each)) is not None), None)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return item
        case inspect.DictType(value_type=item):
            return item
    return None
