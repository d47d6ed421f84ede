"""The next version of this program, as far as rows go: each struct that is stored has one more field."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from backchannel.core import stored

FIELD, VALUE = "aFieldOfTheNextVersion", {"and": ["more", 1]}


def grown(shape: inspect.Type, raw: Any) -> Any:
    """Add a field to each struct in a decoded value; an array gets one item more."""
    if (found := stored.object_shape(shape, raw)) is not None:
        if isinstance(raw, list):
            items = [grown(field.type, item) for field, item in zip(found.fields, raw, strict=False)]
            return [*items, VALUE] if len(items) == len(found.fields) else items
        fields = stored.field_shapes(found)
        return {name: grown(fields[name], item) for name, item in raw.items()} | {FIELD: VALUE}
    inner = stored.item_shape(shape)
    if inner is not None and isinstance(raw, list):
        return [grown(inner, item) for item in raw]
    if inner is not None and isinstance(raw, dict):
        return {name: grown(inner, item) for name, item in raw.items()}
    return raw


def grow_text(form: stored.StoredForm[Any], body: bytes) -> bytes:
    """Write a stored value as the next version would."""
    return msgspec.json.encode(grown(form.shape, msgspec.json.decode(body)))


def grow_all() -> None:
    """Let all that this process stores be as of the next version, from its start."""
    kind: Any = stored.StoredForm
    plain = kind.__init__

    def begin(form: stored.StoredForm[Any], kind: Any) -> None:
        plain(form, kind)
        encode = form.encode
        form.encode = lambda value: grow_text(form, encode(value))

    def write(form: stored.StoredForm[Any], value: Any, over: str | None = None) -> str:
        return form.encode(value).decode()  # it knows the field, and writes it itself

    kind.__init__, kind.write = begin, write
