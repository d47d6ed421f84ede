"""The places where a value does not fit a definition, in the same words for each such value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from jsonschema_rs import Draft7Validator, ValidationError

from .cut import CUT
from .shapes import Shape


@cache
def published() -> dict[str, Any]:
    """Read the cut."""
    read: dict[str, Any] = json.loads(CUT.read_text(encoding="utf-8"))
    return read


@cache
def _validator(definition: str) -> Draft7Validator:
    return Draft7Validator(published()["definitions"][definition])  # each says all of itself


def violations(shape: Shape, value: Any) -> set[str]:
    """Say what of a value, or of each of those at the shape's place in it, the definition does not allow."""
    validator = _validator(shape.definition)
    errors = (error for each in at(value, shape.path) for error in validator.iter_errors(each))
    return {f"{shape.definition}: {line}" for error in errors for line in _lines(error)}


def at(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """Give what stands at a place in a value, if anything does."""
    match path:
        case ():
            yield value
        case ("*", *rest):
            for each in value:
                yield from at(each, tuple(rest))
        case (name, *rest):
            if value.get(name) is not None:
                yield from at(value[name], tuple(rest))


def _lines(error: ValidationError) -> Iterable[str]:
    kind: Any = error.kind
    match kind.name:
        case "additionalProperties":
            return [_line(error, f"has {name}") for name in kind.unexpected]
        case "required":
            return [_line(error, f"lacks {kind.property}")]
        case "anyOf":
            return _nearest(kind.context) or [_line(error, "is none of those allowed")]
    return [_line(error, f"breaks {kind.name}")]


def _nearest(branches: list[list[ValidationError]]) -> list[str]:
    """Say what is wrong with a value by the definition, of several for objects, that it nearly fits."""
    objects = [branch for branch in branches if all(_is_about_members(error) for error in branch)]
    nearest = min(objects, key=len, default=[])
    return [line for error in nearest for line in _lines(error)]


def _is_about_members(error: ValidationError) -> bool:
    return error.kind.name in ("additionalProperties", "required", "anyOf")


def _line(error: ValidationError, what: str) -> str:
    place = ".".join("*" if isinstance(step, int) else step for step in error.instance_path)
    return f"{place} {what}".strip()
