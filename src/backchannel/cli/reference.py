"""The reference of all commands, rendered from the command line itself.

    python -m backchannel.cli.reference docs/reference/cli.md

rewrites the part of that page between its two marks; a test checks that it is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from backchannel.cli.errors import EXIT_CODES
from backchannel.cli.main import app
from backchannel.core.markdown import replace_between, table

BEGIN = "<!-- commands: made by `python -m backchannel.cli.reference` -->"
END = "<!-- end of commands -->"

_LEFT_OUT = ("help", "install_completion", "show_completion")


def render_reference() -> str:
    """Render a section for each command, and the exit codes."""
    root = get_command(app)
    sections = [*_sections(root, []), _exit_codes()]
    return "\n".join(sections)


def insert_reference(page: str) -> str:
    """Replace what stands between the marks of a page.

    Raises:
        ValueError: the page lacks a mark.
    """
    return replace_between(page, BEGIN, END, render_reference())


def _sections(command: object, path: list[str]) -> Iterator[str]:
    if isinstance(command, TyperCommand | TyperGroup) and (not path or command.callback is not None):
        yield _section(command, path)
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _sections(inner, [*path, name])


def _section(command: TyperCommand | TyperGroup, path: list[str]) -> str:
    name = " ".join(["backchannel", *path])
    title = f"### `{name}`" if path else "### Options of all commands"
    arguments = [param for param in command.params if isinstance(param, TyperArgument)]
    options = [param for param in command.params if isinstance(param, TyperOption) and _is_shown(param)]
    usage = " ".join([name, *(_argument(argument) for argument in arguments), *(["[OPTIONS]"] if options else [])])
    if isinstance(command, TyperGroup):
        usage += " COMMAND" if command.no_args_is_help else " [COMMAND]"
    lines = [title, "", (command.help or "").strip(), "", f"    {usage}", ""]
    rows = [*(_argument_row(argument) for argument in arguments), *(_option_row(option) for option in options)]
    if rows:
        lines += [*table(["", "default", ""], rows), ""]
    return "\n".join(lines)


def _is_shown(option: TyperOption) -> bool:
    return not option.hidden and option.name not in _LEFT_OUT


def _argument(argument: TyperArgument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _argument_row(argument: TyperArgument) -> tuple[str, ...]:
    return _row(f"`{argument.metavar or (argument.name or '').upper()}`", argument.default, argument.help)


def _option_row(option: TyperOption) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    return _row(names, None if option.is_flag else option.default, option.help)


def _row(name: str, default: object, text: str | None) -> tuple[str, ...]:
    return name, f"`{default}`" if isinstance(default, str | int | float) else "–", text or ""


def _exit_codes() -> str:
    rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    return "\n".join(["### Exit codes", "", *table(["code", "meaning"], rows), ""])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(insert_reference(target.read_text(encoding="utf-8")), encoding="utf-8")
    typer.echo(f"wrote {target}")
