"""`backchannel config`: looks at the configuration, without a gateway."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from backchannel.cli.errors import FAILED
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.output import say, show_json, show_table

if TYPE_CHECKING:
    from backchannel.config import Finding

app = typer.Typer(help="Check and show the configuration.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def check(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show everything that is wrong or doubtful in the configuration; exits with 1 if something is wrong."""
    from backchannel.config import check_config

    options = options_of(ctx)
    where = options.where
    findings = check_config(options.config, os.environ, state=options.state)
    errors = sum(finding.level == "error" for finding in findings)
    file = str(where.config_file) if where.has_file else None
    if as_json:
        show_json({"ok": not errors, "file": file, "findings": [finding._asdict() for finding in findings]})
    else:
        _show_findings(findings, file, errors)
    if errors:
        raise typer.Exit(FAILED)


def _show_findings(findings: list[Finding], file: str | None, errors: int) -> None:
    say(file or "There is no configuration file: the defaults hold.")
    rows = [[finding.level, finding.line, finding.path, finding.message] for finding in findings]
    if rows:
        show_table(["level", "line", "setting", "what"], rows, empty="")
    warnings = len(findings) - errors
    say(f"{_count(errors, 'error')}, {_count(warnings, 'warning')}." if findings else "Nothing is wrong.")


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"


@app.command()
def path(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show where the configuration file and the state folder are."""
    where = options_of(ctx).where
    if as_json:
        exists = where.config_file.exists()
        show_json({"file": str(where.config_file), "exists": exists, "state": str(where.state_dir)})
    else:
        say(str(where.config_file))


@app.command()
def show(ctx: typer.Context) -> None:
    """Show the configuration as it holds, with all defaults, as JSON; secrets are hidden."""
    from backchannel.config.schema import ConfigFile

    config = options_of(ctx).load_config()
    show_json({name: _shown(getattr(config, name)) for name in ConfigFile.__struct_fields__})


def _shown(value: Any) -> Any:
    from backchannel.config.base import HIDDEN, Settings, secret_fields

    if isinstance(value, Settings):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        pairs = ((shown, name, getattr(value, name)) for shown, name in names)
        secrets = secret_fields(type(value))
        return {shown: HIDDEN if name in secrets and inner else _shown(inner) for shown, name, inner in pairs}
    if isinstance(value, dict):
        return {name: _shown(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_shown(inner) for inner in value]
    return value
