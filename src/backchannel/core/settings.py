"""The base of all settings: strictness, camel-case names, and secrets hidden from `repr`.

A setting is a field with `Annotated[type, Meta(description=…)]`. The description is the setting's
documentation: the reference page and the error messages are made from it and from the type.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

HIDDEN = "<hidden>"

Step: TypeAlias = str | int
SettingPath: TypeAlias = tuple[Step, ...]


class SettingIssue(NamedTuple):
    """One problem that a rule found in the settings, without its line in the file.

    An issue about another setting too has its path in `other`: the message goes on from that one's name.
    """

    level: Literal["error", "warning"]
    path: SettingPath
    message: str
    got: str | None = None
    """The value that came, if it may be shown."""
    other: SettingPath | None = None


# Limits of settings that may be unset stand inside the union, where msgspec wants them.
NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]
AtLeastOne: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The base of every group of settings."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:  # rich prints by this one, not by __repr__
        secrets = secret_fields(type(self))
        config = self.__struct_config__
        pairs = [(config.tag_field, config.tag)] if config.tag_field else []
        pairs += [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, HIDDEN if name in secrets and value is not None else value) for name, value in pairs]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


def setting(text: str, **limits: Any) -> Meta:
    """Describe a setting, with the limits of its value."""
    return Meta(description=text, **limits)


def secret(text: str, **limits: Any) -> Meta:
    """Describe a setting whose value is never shown: not in errors, not by `repr`."""
    return Meta(description=text, extra={"secret": True}, **limits)


def is_secret(kind: Any) -> bool:
    """Whether a field's type marks its value as a secret."""
    return any(bool(meta.extra and meta.extra.get("secret")) for meta in metas(kind))


def metas(kind: Any) -> list[Meta]:
    """The `Meta`s of an annotated type."""
    return [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]


@cache
def secret_fields(struct: type[Struct]) -> frozenset[str]:
    """The names of the fields of `struct` that hold secrets."""
    return frozenset(field.name for field in fields(struct) if is_secret(field.type))


@cache
def all_fields(struct: type[Struct], among: tuple[type[Struct], ...] = ()) -> tuple[FieldInfo, ...]:
    """The fields of a group of settings; where groups are told apart by a tag, it is the first of them.

    `among` are all the groups that it is one of; without them the tag has only its own word.
    """
    config = struct.__struct_config__
    if config.tag_field is None:
        return fields(struct)
    words: Any = Literal[tuple(each.__struct_config__.tag for each in among or (struct,))]
    exact: Any = Annotated[words, setting(getattr(struct, "TAG", "Which kind it is."))]
    return (FieldInfo(config.tag_field, config.tag_field, exact), *fields(struct))
