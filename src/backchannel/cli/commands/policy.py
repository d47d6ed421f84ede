"""`backchannel policy`: explain what is allowed between sessions, and which setting decides."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.naming import find_key
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.output import say, show_facts, show_json
from backchannel.cli.tables import show_table

app = typer.Typer(help="Explain what a session may do.", no_args_is_help=True, rich_markup_mode=None)

NO_RULE = "(none)"
_EMPTY = "No rule says anything about it."


@app.callback()
def _group() -> None:
    """Keeps `explain` a command of its own, so that more can come beside it."""


@app.command()
def explain(
    ctx: typer.Context,
    target: Annotated[str, typer.Option(metavar="KEY", help="The target session.")],
    caller: Annotated[
        str | None,
        typer.Option("--caller", "--as", metavar="KEY", help="The session that asks. [default: the operator]"),
    ] = None,
    channel: Annotated[str | None, typer.Option(help="Assume this channel, such as discord.")] = None,
    chat_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Assume this kind of chat: direct, group or channel.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is allowed, and which setting decides. It covers each session tool and a send, and does nothing."""
    options = options_of(ctx)
    caller = find_key(options, caller)
    target = find_key(options, target, caller)
    asked = {"target": target, "caller": caller, "channel": channel, "chatType": chat_type}
    explained = ask(options, "policy.explain", answers.Explanation, **asked)
    if as_json:
        show_json(explained)
        return
    show_facts({"caller": explained.caller, "target": explained.target})
    say()
    _show([*explained.tools, explained.send])


def _show(decisions: list[answers.DecisionExplained]) -> None:
    verdicts = [[entry.what, "allowed" if entry.allowed else "denied", entry.rule or NO_RULE] for entry in decisions]
    show_table(["what", "verdict", "rule"], verdicts, empty=_EMPTY)
    say()
    reasons = dict.fromkeys((entry.rule or NO_RULE, entry.reason) for entry in decisions)  # most are the same
    show_table(["rule", "reason"], [*reasons], empty=_EMPTY)
