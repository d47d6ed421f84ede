"""`backchannel slots`: what works in the gateway and what waits for its turn, and ending one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.naming import find_id, short_ids, short_key
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.output import age, say, say_or_json, show_json, show_table
from backchannel.core.short_ids import IdKind

app = typer.Typer(help="List what works and what waits for its turn; end one.", rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="Its id, or the beginning of it, as `slots` shows it.")]


@app.callback(invoke_without_command=True)
@app.command("list")
def list_slots(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List what has a slot, then what waits for one, the longest first. `slots` alone does the same."""
    if ctx.invoked_subcommand is not None:
        return
    listed = ask(options_of(ctx), "slots.list", answers.SlotsListed)
    if as_json:
        show_json(listed)
        return
    counts = [[each.kind, each.used, each.limit, each.own, each.waiting] for each in listed.kinds]
    show_table(["kind", "used", "of", "kept for each agent", "waiting"], counts, empty="There are no slots.")
    say()
    show_uses(listed.slots)
    if listed.has_more:
        say("… and more.")


def show_uses(slots: Sequence[answers.SlotUse]) -> None:
    """Print pieces of work as a table."""
    ids = short_ids([use.id for use in slots])
    rows = [
        [
            id,
            use.kind,
            "waits" if use.is_waiting else "works",
            age(use.since),
            use.agent_id,
            short_key(use.session_key),
            use.what,
        ]
        for id, use in zip(ids, slots, strict=True)
    ]
    columns = ["id", "kind", "state", "for", "agent", "session", "what"]
    show_table(columns, rows, empty="Nothing is at work.", spare=("agent",))


@app.command()
def end(ctx: typer.Context, slot_id: Id, as_json: AsJson = False) -> None:
    """End a command with all that it started, a call, or a run.

    The model is told that the operator ended it.
    """
    options = options_of(ctx)
    ended = ask(options, "slots.end", answers.SlotEnded, id=find_id(options, IdKind.SLOT, slot_id))
    say_or_json("It was ended.", ended, as_json=as_json)
