"""`backchannel config`: check, show and migrate the configuration, without a gateway."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from backchannel.cli.options import FAILED, AlwaysJson, AsJson, CommandFailed, Options, options_of
from backchannel.cli.output import say, say_styled, show_facts, show_json
from backchannel.cli.tables import show_table

if TYPE_CHECKING:
    from pathlib import Path

    from backchannel.config import ConfigFinding
    from backchannel.openclaw.migrating import Migration

_FATES = {
    "moved": "moved",
    "renamed": "renamed",
    "ignored": "left out: it is given under a newer name",
    "needless": "left out: the agent stands under its id",
    "empty": "left out: there is nothing in it",
}
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

app = typer.Typer(help="Check, show and migrate the configuration.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def check(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show errors and warnings. Exits with 1 if there are errors."""
    options = options_of(ctx)
    checked = look_for_problems(options)
    if as_json:
        show_json(checked.shown)
    else:
        show_findings(options, checked)
    if checked.errors:
        raise typer.Exit(FAILED)


class ConfigChecked(NamedTuple):
    """Findings of a check of the configuration."""

    file: str | None
    findings: list[ConfigFinding]

    @property
    def errors(self) -> int:
        return sum(finding.level == "error" for finding in self.findings)

    @property
    def shown(self) -> dict[str, Any]:
        findings = [finding._asdict() for finding in self.findings]
        return {"ok": not self.errors, "file": self.file, "findings": findings}


def look_for_problems(options: Options) -> ConfigChecked:
    """Check the configuration, and what it needs on this machine."""
    from backchannel.agents.models import Models, why_not_asked
    from backchannel.agents.sandbox.backends import backend_named
    from backchannel.agents.toolset import SESSION_TOOL_GROUP
    from backchannel.channels.registry import why_no_channel
    from backchannel.config import Surroundings, check_config
    from backchannel.tools.registry import SESSION_TOOLS
    from backchannel.workspace.tools import COMMANDS, FILES
    from backchannel.workspace.tools import NAMES as WORKSPACE_TOOLS

    where = options.where
    tools = (
        SESSION_TOOL_GROUP,
        *(tool.name for tool in SESSION_TOOLS),
        *WORKSPACE_TOOLS,
        f"group:{FILES}",
        f"group:{COMMANDS}",
    )
    here = Surroundings(
        why_not_asked=partial(why_not_asked, env=os.environ),
        tools=tools,
        why_no_sandbox=lambda backend: backend_named(backend).why_not(),
        has_price=lambda ref, providers: Models(providers).has_price(ref),
        why_no_channel=why_no_channel,
    )
    findings = check_config(options.config, os.environ, state=options.state, here=here)
    return ConfigChecked(str(where.config_file) if where.has_file else None, findings)


def show_findings(options: Options, checked: ConfigChecked) -> None:
    """Print the findings, each with its place."""
    file, findings = checked
    say(file or "There is no configuration file: the defaults hold.")
    rows = [[finding.level, finding.line, finding.path, options.spell(finding.message)] for finding in findings]
    if rows:
        show_table(["level", "line", "setting", "what"], rows, empty="")
    warnings = len(findings) - checked.errors
    say(f"{_count(checked.errors, 'error')}, {_count(warnings, 'warning')}." if findings else "Nothing is wrong.")


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
        show_facts({"file": where.config_file, "state": where.state_dir})


@app.command()
def show(ctx: typer.Context, as_json: AlwaysJson = True) -> None:
    """Show the configuration with all defaults, as JSON. Secrets are hidden."""
    from backchannel.config.schema import ConfigFile
    from backchannel.core.secrets.known import KnownSecrets, secrets_in, shown_settings

    config = options_of(ctx).load_config()
    secrets = KnownSecrets(secrets_in(config))
    show_json({name: shown_settings(getattr(config, name), secrets) for name in ConfigFile.__struct_fields__})


@app.command()
def migrate(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite older names to the current ones. A backup of the old file is kept."""
    from backchannel.openclaw.migrating import plan_migration

    options = options_of(ctx)
    where = options.where
    migration = plan_migration(where.config_file) if where.has_file else None
    is_due = migration is not None and bool(migration.moves)
    backup = _store(migration) if migration and is_due and not dry_run else None
    if as_json:
        show_json(_migration_json(migration, backup))
    elif migration is None:
        say("There is no configuration file: the defaults hold.")
    elif not is_due:
        say(f"{migration.file} is already up to date.")
    else:
        _show_migration(migration)
        _show_outcome(options, migration, backup)


def _store(migration: Migration) -> Path:
    from backchannel.openclaw.migrating import store_migration

    try:
        return store_migration(migration)
    except OSError as error:
        raise CommandFailed(f"cannot write {migration.file}, which is as it was: {error.strerror}") from error


def _migration_json(migration: Migration | None, backup: Path | None) -> dict[str, Any]:
    if migration is None:
        return {"file": None, "changes": [], "lostComments": [], "diff": "", "backup": None}
    return {
        "file": str(migration.file),
        "changes": [dict(zip(("line", "before", "today", "what"), row, strict=True)) for row in _changes(migration)],
        "lostComments": [{"line": line, "text": text} for line, text in _lost(migration)],
        "diff": "\n".join(migration.diff),
        "backup": str(backup) if backup else None,
    }


def _changes(migration: Migration) -> list[tuple[int | None, str, str | None, str]]:
    from backchannel.config.findings import show_path

    line = migration.source.line
    moves = sorted(migration.moves, key=lambda move: line(move.old) or 0)
    return [(line(move.old), show_path(move.old), show_path(move.new) or None, _FATES[move.fate]) for move in moves]


def _lost(migration: Migration) -> list[tuple[int | None, str]]:
    from backchannel.config.source import without_secrets

    return [(migration.source.line(lost.path), without_secrets(lost.text)) for lost in migration.lost]


def _show_migration(migration: Migration) -> None:
    show_table(["line", "before", "today", "what"], _changes(migration), empty="")
    say()
    for line in migration.diff:
        say_styled(line, fg=_DIFF_COLOURS.get(line[:1]))
    if migration.lost:
        say("\nThese comments stood at settings that are left out, and are not kept:")
        show_table(["line", "comment"], _lost(migration), empty="")
    say()


def _show_outcome(options: Options, migration: Migration, backup: Path | None) -> None:
    from backchannel.config import check_config

    if backup is None:
        say("Nothing was written.")
        return
    say(f"Wrote {migration.file}. The file as it was: {backup}")
    if any(finding.level == "error" for finding in check_config(options.config, os.environ, state=options.state)):
        say(f"It had errors before, and has them still; see them with: {options.command('config', 'check')}")
