"""Validation: each setting is checked against the schema, and all errors are reported at once.

`msgspec` converts and would stop at its first error, without a line and without a suggestion. This walk
visits each setting with its type, and the conversion then cannot fail. A `SettingKind` is such a type taken apart; the
reference is made from it too.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, inspect
from msgspec.structs import FieldInfo

from backchannel.config.adapters import CHANNELS, DATABASES, SANDBOXES, AdapterUnusable, is_database_url
from backchannel.config.findings import MAX_FINDINGS, ConfigFinding
from backchannel.config.source import ConfigSource
from backchannel.core.delivery.channels import ChannelSettings
from backchannel.core.settings import SettingPath, all_fields, is_secret, metas
from backchannel.core.text import nearest
from backchannel.wire.shapes import describe_type, one_of


class SettingKind(NamedTuple):
    """A setting's type, taken apart."""

    exact: Any
    choices: tuple[Any, ...]  # the plain types it may have, without `None`
    limits: Meta
    description: str
    secret: bool

    @property
    def structs(self) -> tuple[type[Struct], ...]:
        """The groups of settings it may be; several are told apart by a tag."""
        if self.is_channel:
            return tuple(adapter.settings for adapter in CHANNELS.usable() if adapter.settings is not None)
        return tuple(c for c in self.choices if isinstance(c, type) and issubclass(c, Struct))

    @property
    def adapters(self) -> str | None:
        """The kind of adapters that it names one of."""
        return (self.limits.extra or {}).get("adapters")

    @property
    def is_channel(self) -> bool:
        """Whether it is the settings of a channel: those of one of the adapters that are installed."""
        return ChannelSettings in self.choices

    @property
    def struct(self) -> type[Struct] | None:
        """The group of settings it may be, or the first of several."""
        return next(iter(self.structs), None)

    def struct_of(self, value: dict[str, Any]) -> type[Struct] | None:
        """The group of settings that a value is meant to be, by its tag.

        Raises:
            AdapterUnusable: it is a channel, and the package of its adapter fails.
        """
        if self.is_channel and isinstance(name := value.get("adapter"), str) and (adapter := CHANNELS.find(name)):
            return adapter.settings
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
    def in_words(self) -> str:
        """What it may be, in the words of all errors: `a whole number from 0 to 5`."""
        if self.words and len(self.choices) == 1:
            return one_of(self.words)  # in the order of the schema, which a description may follow
        return describe_type(inspect.type_info(self.exact))

    @property
    def words(self) -> tuple[str, ...]:
        """The words it may be, if it is one of a few."""
        if self.adapters == SANDBOXES.group:
            return SANDBOXES.names
        return next((words for words in map(_words, self.choices) if words), ())


def kind_of(exact: Any) -> SettingKind:
    """Take a field's type apart."""
    bare = get_args(exact)[0] if get_origin(exact) is Annotated else exact
    choices = get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (bare,)
    set_choices = [choice for choice in choices if choice is not types.NoneType]
    plain = tuple(get_args(c)[0] if get_origin(c) is Annotated else c for c in set_choices)
    about = next(iter(metas(exact)), Meta())
    limits = next((meta for choice in set_choices for meta in metas(choice)), about)
    return SettingKind(exact, plain, limits, about.description or "", is_secret(exact))


def _words(choice: Any) -> tuple[str, ...]:
    if get_origin(choice) is Literal:
        return get_args(choice)
    return tuple(choice) if isinstance(choice, type) and issubclass(choice, StrEnum) else ()


def check_shape(raw: dict[str, Any], schema: type[Struct], source: ConfigSource) -> list[ConfigFinding]:
    """Find every setting that is unknown, missing, or of the wrong type or range."""
    return list(itertools.islice(_Walk(source).group(raw, all_fields(schema), ()), MAX_FINDINGS + 1))


class _Walk:
    def __init__(self, source: ConfigSource) -> None:
        self._source = source

    def group(self, value: dict[str, Any], own: Sequence[FieldInfo], path: SettingPath) -> Iterator[ConfigFinding]:
        known = {field.encode_name: field for field in own}
        for name in value:
            if name not in known:
                yield self._finding((*path, name), self._unknown(name, list(known)))
        for name, field in known.items():
            if name in value:
                yield from self._setting(value[name], field.type, (*path, name))
            elif field.required:
                yield self._finding(path, f"`{name}` is missing: {kind_of(field.type).in_words}")

    def _setting(self, value: Any, exact: Any, path: SettingPath) -> Iterator[ConfigFinding]:
        kind = kind_of(exact)
        if isinstance(value, dict) and kind.is_channel:
            yield from self._channel(value, kind, path)
        elif isinstance(value, dict) and (struct := kind.struct_of(value)):
            yield from self.group(value, all_fields(struct, kind.structs), path)
        elif isinstance(value, dict) and kind.member is not None:
            for name, member in value.items():
                yield from self._setting(member, kind.member, (*path, name))
        elif isinstance(value, list) and kind.item is not None:
            for index, item in enumerate(value):
                yield from self._setting(item, kind.item, (*path, index))
        elif not _fits(value, kind):
            yield self._finding(path, self._misfit(value, kind, path))

    def _channel(self, value: dict[str, Any], kind: SettingKind, path: SettingPath) -> Iterator[ConfigFinding]:
        """Check a channel by the settings of its adapter."""
        try:
            struct = kind.struct_of(value)
        except AdapterUnusable:  # only what all channels share is known; `channel_issues` tells why
            shared = all_fields(ChannelSettings)
            names = {field.encode_name for field in shared}
            yield from self.group({name: value[name] for name in value if name in names}, shared, path)
            return
        own = all_fields(struct or ChannelSettings)
        if struct is None or struct.__struct_config__.tag != value.get("adapter"):
            own = all_fields(kind.structs[0], kind.structs)
            if "adapter" in value:  # nobody knows it, so nothing else can be said
                value, own = {"adapter": value["adapter"]}, own[:1]
        yield from self.group(value, own, path)

    def _finding(self, path: SettingPath, message: str) -> ConfigFinding:
        return ConfigFinding("error", self._source.named(path), message, self._source.line(path))

    def _unknown(self, name: str, known: list[str]) -> str:
        """Name what could be meant at this place. The same name elsewhere means something else: a hint there would make
        a bot's token the operator's. (Names of older generations were moved before this.)
        """
        if close := nearest(name, known):
            return f"unknown setting; did you mean `{close}`?"
        return f"unknown setting; known here: {', '.join(sorted(known))}"

    def _misfit(self, value: Any, kind: SettingKind, path: SettingPath) -> str:
        hint = ""
        if isinstance(value, str) and (close := nearest(value, kind.words)):
            hint = f"; did you mean `{close}`?"
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and kind.choices == (str,):
            hint = " (put it in quotes)"
        elif isinstance(value, str) and _is_number(value) and {int, float} & set(kind.choices):
            hint = " (write it without quotes)"
        elif kind.limits.pattern and isinstance(value, str):
            hint = f" ({kind.description})"
        return f"{self._shown(value, kind, path)}, expected {kind.in_words}{hint}"

    def _shown(self, value: Any, kind: SettingKind, path: SettingPath) -> str:
        if kind.secret:  # its type may be shown, its value never
            return f"got a text of {len(value)} characters" if isinstance(value, str) else describe_value_type(value)
        if isinstance(value, (dict, list)) or value is None:
            return describe_value_type(value)
        return f"got {self._source.shown(path, value)}"


def setting_paths(schema: type[Struct], prefix: str = "") -> Iterator[str]:
    """Every path of the schema, with `[]` for items and `<name>` for names of the user's choice."""
    for field in all_fields(schema):
        path = f"{prefix}{field.encode_name}"
        yield path
        kind = kind_of(field.type)
        if kind.item is not None:
            path, kind = f"{path}[]", kind_of(kind.item)
        elif kind.member is not None:
            path, kind = f"{path}.<name>", kind_of(kind.member)
        if kind.structs:
            yield from dict.fromkeys(found for each in kind.structs for found in setting_paths(each, f"{path}."))


def _fits(value: Any, kind: SettingKind) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False  # `NaN` and `Infinity` are JSON5, and no setting has a use for them
    if isinstance(value, str) and kind.words and value not in kind.words:
        return False
    if isinstance(value, str) and kind.adapters == DATABASES.group and not is_database_url(value):
        return False
    try:
        msgspec.convert(value, kind.exact)
    except (msgspec.ValidationError, ValueError):  # the latter for half a surrogate pair
        return False
    return True


def _is_number(text: str) -> bool:
    return text.strip().lstrip("+-").replace(".", "", 1).isdecimal()


def describe_value_type(value: Any) -> str:
    """Say what came where something else was expected."""
    match value:
        case None:
            return "got null"
        case dict():
            return "got an object"
        case list():
            return "got a list"
        case bool():
            return "got a truth value"
        case str():
            return "got a text"
    return "got a number"
