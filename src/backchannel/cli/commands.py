"""What all commands share: the global options before and after each, help by theme, errors without a traceback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from backchannel.cli.errors import exit_code_of, next_step, told
from backchannel.cli.options import GLOBAL_OPTIONS, options_of
from backchannel.cli.output import say, say_styled
from backchannel.errors import GatewayError

AFTER_EVERY_HELP = "--state, --config, --url and --json go with every command, before or after it: backchannel --help"

_MEANT = {"list": "sessions", "ls": "sessions", "start": "up", "serve": "up"}
"""What people try first, and which command it is here."""


class Commands(TyperGroup):
    """All commands. An error that can be expected is told without a traceback, with what to do about it."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        shared = [param for param in self.params if param.name in GLOBAL_OPTIONS]
        for command in _below(self):
            command.params += [_repeated(param) for param in shared if not _has(command, param.name)]
            command.epilog = AFTER_EVERY_HELP

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _MEANT:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands under their themes."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        themes: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, command in self.commands.items():
            themes[getattr(command, "rich_help_panel", "")].append((name, command.get_short_help_str(limit)))
        for theme, entries in themes.items():
            with formatter.section(theme):
                formatter.write_dl(entries)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GatewayError as error:
            say_styled(told(error, options_of(ctx)), err=True, fg="red")
            if step := next_step(error, options_of(ctx)):
                say(step, err=True)
            raise typer.Exit(exit_code_of(error)) from None


def _below(group: TyperGroup) -> Iterator[Any]:
    """All commands of a group, and of the groups in it."""
    for command in group.commands.values():
        yield command
        if isinstance(command, TyperGroup):
            yield from _below(command)


def _has(command: Any, name: str) -> bool:
    return any(param.name == name for param in command.params)


def _repeated(param: Any) -> Any:
    """Make a global option once more, for one command; what is given there counts like what stands before it."""
    again = copy(param)
    again.hidden, again.expose_value = True, False
    again.callback = _keep
    return again


def _keep(ctx: Any, param: Any, value: Any) -> None:
    if isinstance(value, Path) and param.name == "state":
        _refuse_status(ctx.command, value)
    if value:
        root = ctx.find_root()
        root.obj = replace(options_of(ctx), **{param.name: value})


def _refuse_status(command: Any, folder: Path) -> None:
    """Catch who means the status of a run or a delivery: `--state` is the state folder with every command."""
    from backchannel.core.delivery import DeliveryState
    from backchannel.core.runs import RunState

    if _has(command, "status") and str(folder) in {*RunState, *DeliveryState} and not folder.exists():
        raise typer.BadParameter(f"that is the state folder; to choose by status: --status {folder}")
