"""What is given to a command, taken as it is where there is nothing to convert.

Typer converts each value with pydantic, also those of options that were not given; importing that takes as long as
importing typer. Most commands are given nothing, or texts alone, and then do without it. Numbers and paths are left to
typer, which also checks them.
"""

from __future__ import annotations

from functools import partial
from typing import Any


def spare_conversion(command: Any) -> None:
    """Let a command take texts, and what it was not given, without converting them."""
    whole = command.get_params

    def get_params(ctx: Any) -> Any:  # not once for all: `--help` and what completion needs are added later
        params = whole(ctx)
        for param in params:
            param.process_value = partial(_process, param)
        return params

    command.get_params = get_params


def _process(param: Any, ctx: Any, value: Any) -> Any:
    """Do what `process_value` of a parameter does: convert, refuse what is missing, call back."""
    if not _is_ready(param, value):
        return type(param).process_value(param, ctx, value)
    if value is None and (param.multiple or param.nargs == -1):
        value = ()
    return value if param.callback is None else param.callback(ctx, param, value)


def _is_ready(param: Any, value: Any) -> bool:
    """Whether a value was not given, and need not be, or is a text where one is asked for."""
    asked = getattr(param, "type_descriptor", None)
    if asked is None:  # an older version of typer, which converts without pydantic
        return False
    if value is None:
        return not param.required
    return value is param.default or (asked.annotation is str and isinstance(value, str))
