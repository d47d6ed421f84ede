"""`backchannel init`: writes the starter configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backchannel.cli.options import AsJson, CommandFailed, options_of
from backchannel.cli.output import say, show_json


def init(
    ctx: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented starter configuration."""
    options = options_of(ctx)
    file = options.where.config_file
    if not write_starter(file, force=force):
        raise CommandFailed(
            f"{file} is there already, and stays as it is. To replace it: {options.command('init', '--force')}"
        )
    if as_json:
        show_json({"file": str(file)})
        return
    say(f"Wrote {file}: three agents that may talk to each other.")
    say(f"Start the gateway with: {options.command('up')}")


def write_starter(file: Path, *, force: bool = False) -> bool:
    """Write the starter file; False means that a file is there and was left alone.

    Raises:
        CommandFailed: it cannot be written.
    """
    from backchannel.config import starter_config
    from backchannel.config.files import store_private

    try:
        return store_private(file, starter_config(), replaces=force)
    except OSError as error:
        raise CommandFailed(
            f"cannot write {file}: {error.strerror} (check its folder, or name another with --state)"
        ) from error
