"""Hints about unknown settings name what could be meant at that place, and never another meaning elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import fields

from backchannel.config.schema import ConfigFile
from backchannel.config.source import ConfigSource
from backchannel.config.validation import check_shape, kind_of, setting_paths
from backchannel.core.settings import all_fields

NAMES = sorted({path.split(".")[-1].removesuffix("[]") for path in setting_paths(ConfigFile)} - {"<name>"})
FOREIGN = ["enabled", "mode", "botToken", "dmPolicy", "workspace", "identity", "skills", "path", "reset", "web"]


def _places(struct: type[Struct], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], type[Struct]]]:
    """Each group of settings, with a path that leads there."""
    yield path, struct
    for field in fields(struct):
        kind, below = kind_of(field.type), (*path, field.encode_name)
        if kind.item is not None:
            kind, below = kind_of(kind.item), (*below, 0)
        elif kind.member is not None:
            kind, below = kind_of(kind.member), (*below, "telegram")
        if kind.struct:
            yield from _places(kind.struct, below)


PLACES = {".".join(map(str, path)) or "top": (path, struct) for path, struct in _places(ConfigFile)}


def _told(path: tuple[Any, ...], name: str) -> str:
    """Put a setting at a place, and give what is told about it."""
    raw: Any = {name: "x"}
    for step in reversed(path):
        raw = [raw] if step == 0 else {step: raw}
    findings = check_shape(raw, ConfigFile, ConfigSource(raw))
    return next(found.message for found in findings if "unknown setting" in found.message)


@pytest.mark.parametrize("place", PLACES)
def test_a_hint_names_a_setting_of_the_same_place_whatever_the_name(place: str) -> None:
    path, struct = PLACES[place]
    siblings = {field.encode_name for field in all_fields(struct)}

    for name in {*NAMES, *FOREIGN} - siblings:
        told = _told(path, name)
        named = re.findall(r"`([^`]+)`", told) or told.partition("known here: ")[2].split(", ")
        assert named and set(named) <= siblings, f"{place}.{name}: {told}"
