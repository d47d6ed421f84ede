"""The types of settings, taken apart and put into words: for the check, its errors and the reference."""

from __future__ import annotations

import types
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from msgspec import Meta, Struct

from backchannel.core.settings import is_secret, metas


class Kind(NamedTuple):
    """A setting's type, taken apart."""

    exact: Any
    choices: tuple[Any, ...]  # the plain types it may have, without `None`
    limits: Meta
    description: str
    secret: bool

    @property
    def structs(self) -> tuple[type[Struct], ...]:
        """The groups of settings it may be; several are told apart by a tag."""
        return tuple(c for c in self.choices if isinstance(c, type) and issubclass(c, Struct))

    @property
    def struct(self) -> type[Struct] | None:
        """The group of settings it may be, or the first of several."""
        return next(iter(self.structs), None)

    def struct_of(self, value: dict[str, Any]) -> type[Struct] | None:
        """The group of settings that a value is meant to be, by its tag."""
        for struct in self.structs:
            config = struct.__struct_config__
            if config.tag_field is not None and value.get(config.tag_field) == config.tag:
                return struct
        return self.struct

    @property
    def item(self) -> Any | None:
        """The type of its items, if it is a list."""
        return next((get_args(c)[0] for c in self.choices if get_origin(c) is tuple), None)

    @property
    def member(self) -> Any | None:
        """The type of its values, if it is an object with names of the user's choice."""
        return next((get_args(c)[1] for c in self.choices if get_origin(c) is dict), None)

    @property
    def words(self) -> tuple[str, ...]:
        """The words it may be, if it is one of a few."""
        return next((words for words in map(_words, self.choices) if words), ())


def kind_of(exact: Any) -> Kind:
    """Take a field's type apart."""
    bare = get_args(exact)[0] if get_origin(exact) is Annotated else exact
    choices = get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (bare,)
    set_choices = [choice for choice in choices if choice is not types.NoneType]
    plain = tuple(get_args(c)[0] if get_origin(c) is Annotated else c for c in set_choices)
    about = next(iter(metas(exact)), Meta())
    limits = next((meta for choice in set_choices for meta in metas(choice)), about)
    return Kind(exact, plain, limits, about.description or "", is_secret(exact))


def in_words(kind: Kind) -> str:
    """Say what a setting may be: `a whole number from 0 to 5`, `one of "post", "wake"`."""
    return ", or ".join(_choice_in_words(choice, kind) for choice in kind.choices)


def _choice_in_words(choice: Any, kind: Kind) -> str:
    if choice is str:
        return "text" + _length_in_words(kind.limits)
    if choice is bool:
        return "true or false"
    if choice in (int, float):
        return ("a whole number" if choice is int else "a number") + _range_in_words(kind.limits)
    if words := _words(choice):
        return "one of " + ", ".join(f'"{word}"' for word in words)
    if get_origin(choice) is tuple:
        inner = kind_of(get_args(choice)[0])
        return "a list of objects" if inner.struct else "a list of texts"
    return "an object"


def _words(choice: Any) -> tuple[str, ...]:
    if get_origin(choice) is Literal:
        return get_args(choice)
    return tuple(choice) if isinstance(choice, type) and issubclass(choice, StrEnum) else ()


def _length_in_words(meta: Meta) -> str:
    if meta.max_length is not None:
        return f" of at most {meta.max_length} characters"
    if meta.min_length is not None and meta.min_length > 1:
        return f" of at least {meta.min_length} characters"
    return ""


def _range_in_words(meta: Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge} to {meta.le}"
    if meta.ge is not None:
        return f", at least {meta.ge}"
    return f" above {meta.gt}" if meta.gt is not None else ""
