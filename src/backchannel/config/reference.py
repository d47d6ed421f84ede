"""The reference of all settings, rendered from the schema.

    python -m backchannel.config.reference docs/reference/configuration.md

rewrites the part of that page between its two marks; a test checks that it is up to date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from backchannel.config.kinds import Kind, in_words, kind_of
from backchannel.config.schema import ConfigFile
from backchannel.core.markdown import replace_between, table

BEGIN = "<!-- settings: made by `python -m backchannel.config.reference` -->"
END = "<!-- end of settings -->"


def render_reference(schema: type[Struct] = ConfigFile) -> str:
    """Render a section with a table for each top-level group of settings."""
    return "\n".join(_section(field) for field in fields(schema))


def insert_reference(page: str) -> str:
    """Replace what stands between the marks of a page.

    Raises:
        ValueError: the page lacks a mark.
    """
    return replace_between(page, BEGIN, END, render_reference())


def _section(field: FieldInfo) -> str:
    kind = kind_of(field.type)
    rows = list(_rows(field, ""))
    if kind.struct:
        rows = rows[1:]  # the group itself is the heading
    settings = table(["setting", "value", "default", ""], rows)
    return "\n".join([f"### `{field.encode_name}`", "", kind.description, "", *settings, ""])


def _rows(field: FieldInfo, prefix: str) -> Iterator[tuple[str, ...]]:
    path, kind = f"{prefix}{field.encode_name}", kind_of(field.type)
    yield f"`{path}`", in_words(kind), _default(field), kind.description
    yield from _inner_rows(path, kind)


def _inner_rows(path: str, kind: Kind) -> Iterator[tuple[str, ...]]:
    if kind.item is not None:
        path, kind = f"{path}[]", kind_of(kind.item)
    elif kind.member is not None:
        path, kind = f"{path}.<name>", kind_of(kind.member)
    for inner in fields(kind.struct) if kind.struct else ():
        yield from _rows(inner, f"{path}.")


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is NODEFAULT and field.default_factory is NODEFAULT:
        return "required"
    if value is NODEFAULT:
        return "`{}`"
    if value is None or isinstance(value, Struct):
        return "–"
    if isinstance(value, tuple):
        return "`[]`"
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(insert_reference(target.read_text(encoding="utf-8")), encoding="utf-8")
