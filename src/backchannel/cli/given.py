"""Plain values of options, taken without pydantic.

Typer converts each value with pydantic, also the values of options that were not given. Importing pydantic takes as
long as importing typer, and a gateway would keep it in memory. Most commands get nothing, or valid texts, whole numbers
and paths: these are converted here. Everything else is left to typer, which reports errors.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

_DIGITS = 9
_LEFT_TO_TYPER = object()


def spare_conversion(command: Any) -> None:
    """Let a command convert plain and missing values without pydantic."""
    whole = command.get_params

    def get_params(ctx: Any) -> Any:  # not once for all: `--help` and what completion needs are added later
        params = whole(ctx)
        for param in params:
            param.process_value = partial(_process, param)
        return params

    command.get_params = get_params


def _process(param: Any, ctx: Any, value: Any) -> Any:
    """Do what `process_value` of a parameter does: convert, check that it is there, call back."""
    converted = _converted(param, value)
    if converted is _LEFT_TO_TYPER:
        return type(param).process_value(param, ctx, value)
    return converted if param.callback is None else param.callback(ctx, param, converted)


def _converted(param: Any, value: Any) -> Any:
    asked = getattr(param, "type_descriptor", None)
    if asked is None:  # an older version of typer, which converts without pydantic
        return _LEFT_TO_TYPER
    if value is None:
        if param.required:
            return _LEFT_TO_TYPER
        return () if param.multiple or param.nargs == -1 else None
    if value is param.default:
        return value
    convert = _PLAIN.get(asked.annotation) if isinstance(value, str) else None
    return _LEFT_TO_TYPER if convert is None else convert(value, asked.parameter_info)


def _as_text(value: str, info: Any) -> Any:
    return value


def _as_number(value: str, info: Any) -> Any:
    """Take digits alone, inside the limits of the option."""
    if len(value) > _DIGITS or not (value.isascii() and value.isdigit()):
        return _LEFT_TO_TYPER
    number = int(value)
    is_inside = (info.min is None or number >= info.min) and (info.max is None or number <= info.max)
    return number if is_inside else _LEFT_TO_TYPER


def _as_path(value: str, info: Any) -> Any:
    """Take a path that does not exist, or that can be read."""
    asks_more = info.exists or info.resolve_path or info.writable or not (info.file_okay and info.dir_okay)
    if asks_more or not value or (os.access(value, os.F_OK) and not os.access(value, os.R_OK)):
        return _LEFT_TO_TYPER
    return Path(value)


_PLAIN = {str: _as_text, int: _as_number, Path: _as_path}
