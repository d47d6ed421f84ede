"""`backchannel doctor`: what is wrong with the configuration, this machine and the running gateway, and what to do."""

from __future__ import annotations

import typer

from backchannel.cli import answers
from backchannel.cli.client import NoGateway, connected
from backchannel.cli.config import look_for_problems, show_findings
from backchannel.cli.options import DEGRADED, FAILED, AsJson, Options, options_of
from backchannel.cli.output import say, show_json, show_table


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Look for what is wrong, on this machine and in the gateway.

    Looks at the configuration and what it needs, and asks the gateway if it runs. Exits with 1 if something in the
    configuration is wrong, and with 5 if only the gateway has a problem.
    """
    options = options_of(ctx)
    checked = look_for_problems(options)
    problems = None if checked.errors else _problems_of_gateway(options)  # a wrong file does not say where it is
    if as_json:
        gateway = "unknown" if checked.errors else "absent" if problems is None else "running"
        show_json({**checked.shown, "gateway": gateway, "problems": problems or []})
    else:
        show_findings(options, checked)
        if not checked.errors:
            _show_problems(options, problems)
    if checked.errors:
        raise typer.Exit(FAILED)
    if problems:
        raise typer.Exit(DEGRADED)


def _problems_of_gateway(options: Options) -> list[answers.HealthProblem] | None:
    """Ask the gateway what is wrong; None when there is none."""
    try:
        with connected(options) as client:
            return client.call("status", answers.Status).problems
    except NoGateway:
        return None


def _show_problems(options: Options, problems: list[answers.HealthProblem] | None) -> None:
    say()
    if problems is None:
        say(f"No gateway runs here. Start one with: {options.command('up')}")
        return
    rows = [[found.code, options.spell(f"{found.message} {found.hint}")] for found in problems]
    show_table(
        ["problem", "what is wrong, and what to do"], rows, empty="The gateway runs, and nothing is wrong with it."
    )
